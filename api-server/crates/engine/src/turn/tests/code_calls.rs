//! Calls of the client's tools from Python code.

use super::*;
use crate::{CallInput, CodeAnswer, CodeAnswers, CodeCall};

fn stock() -> Value {
    json!({
        "name": "get_stock", "description": "Units in a place.", "allowed_callers": ["code_execution_20260120"],
        "input_schema": { "type": "object", "properties": { "place": { "type": "string" } } },
    })
}

fn body(script: &str) -> Value {
    let mut body = ask(REPL, script);
    body["tools"] = json!([code_tool(REPL), stock(), weather()]);
    body
}

/// The blocks of an answer, how it ended, and what ran for it. Cells make the calls of `rounds`, one list each time, and end then.
fn drive(body: &Value, rounds: &mut Vec<Vec<&str>>) -> (Vec<Value>, Value, Vec<ServerCall>) {
    let (mut turn, actions) = Turn::new(Rig::default().plan(body).unwrap());
    let mut todo = VecDeque::from(actions);
    let (mut fold, mut events, mut runs) = (crate::Fold::default(), Vec::new(), Vec::<ServerCall>::new());
    while let Some(action) = todo.pop_front() {
        match action {
            Action::Emit(event) => {
                fold.push(&event);
                events.push(event);
            }
            Action::Sample(request) => {
                for step in crate::demo::respond(&request) {
                    if let crate::demo::Step::Event(event) = step {
                        todo.extend(turn.step(Input::Model(event)));
                    }
                }
            }
            Action::Run(call) => {
                let is_cell = matches!(call.input, CallInput::Cell(_) | CallInput::Answers(_));
                let input = if is_cell && !rounds.is_empty() {
                    let seen = if let CallInput::Answers(answers) = &call.input { answers.calls } else { 0 };
                    let call_of = |(number, place): (u32, &str)| CodeCall {
                        number,
                        name: "get_stock".into(),
                        input: json!({ "place": place }).as_object().unwrap().clone(),
                    };
                    let calls = (seen..).zip(rounds.remove(0)).map(call_of).collect();
                    Input::Calls { id: call.id.clone(), calls }
                } else {
                    Input::Result { id: call.id.clone(), outcome: ok("done\n") }
                };
                todo.extend(turn.step(input));
                runs.push(call);
            }
            Action::CancelModel | Action::CancelRun(_) => {}
            Action::Done(end) => {
                assert_eq!(end, TurnEnd::Finished);
                crate::testing::assert_well_formed(&events, true);
                let message = fold.finish(&end, Surface::Anthropic).unwrap().body(Surface::Anthropic);
                return (message["content"].as_array().unwrap().clone(), message, runs);
            }
        }
    }
    panic!("the turn did not end");
}

fn kinds(content: &[Value]) -> Vec<&str> {
    content.iter().map(|block| block["type"].as_str().unwrap()).collect()
}

/// The continuation: the answer, and a result for each of its calls.
fn answered(body: &Value, message: &Value) -> Value {
    let calls = message["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use");
    let results: Vec<_> = calls
        .map(
            |call| json!({ "type": "tool_result", "tool_use_id": call["id"], "content": format!("at {}", call["id"]) }),
        )
        .collect();
    let mut next = body.clone();
    next["container"] = message["container"]["id"].clone();
    let messages = next["messages"].as_array_mut().unwrap();
    messages.push(json!({ "role": "assistant", "content": message["content"] }));
    messages.push(json!({ "role": "user", "content": results }));
    next
}

fn refused(body: &Value) -> String {
    Rig::default().plan(body).err().unwrap().message
}

#[test]
fn a_cell_pauses_at_its_calls_and_goes_on_with_their_results() {
    let first_body = body(&format!("{}{}", fenced("python", "code"), fenced("text", "All there.")));
    let (content, paused, runs) = drive(&first_body, &mut vec![vec!["east", "west"]]);
    assert_eq!(kinds(&content), ["server_tool_use", "tool_use", "tool_use"]);
    let cell = content[0]["id"].as_str().unwrap().to_owned();
    for (number, place) in [(0, "east"), (1, "west")] {
        let expected = json!({
            "type": "tool_use", "id": format!("{}_{number}", cell.replace("srvtoolu_", "toolu_")), "name": "get_stock",
            "input": { "place": place }, "caller": { "type": "code_execution_20260120", "tool_id": cell },
        });
        assert_eq!(content[number + 1], expected);
    }
    assert_eq!(paused["stop_reason"], "tool_use");
    assert_eq!(paused["container"]["id"], cell.replace("srvtoolu_", "container_"));
    assert!(matches!(runs[0].input, CallInput::Cell(_)));

    // Once more at its calls.
    let second_body = answered(&first_body, &paused);
    let (content, again, runs) = drive(&second_body, &mut vec![vec!["north"]]);
    let CallInput::Answers(answers) = &runs[0].input else { panic!("{runs:?}") };
    let answer = |number: u32, id: &Value| CodeAnswer { number, content: format!("at {id}"), is_error: false };
    let results = vec![answer(0, &paused["content"][1]["id"]), answer(1, &paused["content"][2]["id"])];
    assert_eq!((&runs[0].id, *answers == CodeAnswers { results, calls: 2 }), (&cell, true), "{answers:?}");
    assert_eq!(kinds(&content), ["tool_use"]);
    assert_eq!(content[0]["id"], format!("{}_2", cell.replace("srvtoolu_", "toolu_")));
    assert_eq!((&again["usage"]["input_tokens"], &again["usage"]["output_tokens"]), (&json!(0), &json!(0)));
    // The same continuation again has the same answer.
    assert_eq!(drive(&second_body, &mut vec![vec!["north"]]).0, content);

    let third_body = answered(&second_body, &again);
    let (content, done, runs) = drive(&third_body, &mut Vec::new());
    assert!(matches!(&runs[0].input, CallInput::Answers(answers) if answers.calls == 3 && answers.results.len() == 1));
    assert_eq!(kinds(&content), ["code_execution_tool_result", "text"], "the call is not repeated");
    assert_eq!((&content[0]["tool_use_id"], &content[0]["content"]["stdout"]), (&json!(cell), &json!("done\n")));
    assert_eq!((&done["stop_reason"], &content[1]["text"]), (&json!("end_turn"), &json!("All there.")));

    // The model hears of its code and what it printed, and of nothing in between.
    let mut next = third_body.clone();
    let messages = next["messages"].as_array_mut().unwrap();
    messages.push(json!({ "role": "assistant", "content": content }));
    messages.push(json!({ "role": "user", "content": "Thanks." }));
    let prompt = serde_json::to_string(&Rig::default().plan(&next).unwrap().request.body(false)["messages"]).unwrap();
    assert!(!prompt.contains("get_stock") && prompt.contains("done"), "{prompt}");
}

#[test]
fn what_waits_behind_a_cell_runs_after_it() {
    let calls = "{\"name\":\"code_execution\",\"input\":{\"code\":\"x\"}}\n{\"name\":\"bash_code_execution\",\"input\":{\"command\":\"ls\"}}";
    let first_body = body(&fenced("tool_use", calls));
    let (content, paused, _) = drive(&first_body, &mut vec![vec!["east"]]);
    assert_eq!(kinds(&content), ["server_tool_use", "server_tool_use", "tool_use"]);
    let second_body = answered(&first_body, &paused);
    let (_, again, runs) = drive(&second_body, &mut vec![vec!["west"]]);
    assert_eq!(runs.len(), 1);
    let (content, _, runs) = drive(&answered(&second_body, &again), &mut Vec::new());
    assert_eq!(kinds(&content), ["code_execution_tool_result", "bash_code_execution_tool_result", "text"]);
    assert!(matches!(runs[1].input, CallInput::Bash(_)));
}

#[test]
fn a_cell_beside_a_direct_call_begins_when_that_is_answered_and_may_call_then() {
    let calls = "{\"name\":\"code_execution\",\"input\":{\"code\":\"x\"}}\n{\"name\":\"get_weather\",\"input\":{}}";
    let first_body = body(&fenced("tool_use", calls));
    let (content, deferred, runs) = drive(&first_body, &mut Vec::new());
    assert_eq!((kinds(&content), runs.len()), (vec!["server_tool_use", "tool_use"], 0));
    let second_body = answered(&first_body, &deferred);
    let (content, paused, runs) = drive(&second_body, &mut vec![vec!["east"]]);
    assert!(matches!(runs[0].input, CallInput::Cell(_)));
    assert_eq!(kinds(&content), ["tool_use"]);
    let (content, ..) = drive(&answered(&second_body, &paused), &mut Vec::new());
    assert_eq!(kinds(&content), ["code_execution_tool_result", "text"]);
}

#[test]
fn results_are_text_and_say_whether_the_tool_failed() {
    let first_body = body(&fenced("python", "x"));
    let (content, paused, _) = drive(&first_body, &mut vec![vec!["east"]]);
    let mut next = answered(&first_body, &paused);
    let text = |text: &str| json!({ "type": "text", "text": text });
    for (result, expected, failed) in [
        (json!({ "content": [text("a"), text("b")], "is_error": true }), "a\nb", true),
        (json!({ "content": null }), "", false),
        (json!({ "content": "c" }), "c", false),
    ] {
        let mut block = json!({ "type": "tool_result", "tool_use_id": content[1]["id"] });
        block.as_object_mut().unwrap().extend(result.as_object().unwrap().clone());
        next["messages"][2]["content"] = json!([block]);
        let answers = Rig::default().plan(&next).unwrap().deferred[0].answers.clone().unwrap();
        assert_eq!(answers.results, [CodeAnswer { number: 0, content: expected.into(), is_error: failed }]);
    }
    let image = json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "" } });
    next["messages"][2]["content"] =
        json!([{ "type": "tool_result", "tool_use_id": content[1]["id"], "content": [image] }]);
    assert!(refused(&next).starts_with("messages.2.content.0.content: "), "{}", refused(&next));
}

#[test]
fn a_continuation_that_is_not_one_is_refused() {
    let first_body = body(&fenced("python", "x"));
    let (content, paused, _) = drive(&first_body, &mut vec![vec!["east", "west"]]);
    let good = answered(&first_body, &paused);
    assert!(Rig::default().plan(&good).is_ok());
    let cell = content[0]["id"].as_str().unwrap();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut changed = good.clone();
        change(&mut changed);
        refused(&changed)
    };
    let without_container = with(&|body| drop(body.as_object_mut().unwrap().remove("container")));
    assert_eq!(
        without_container,
        "container_id is required when there are pending tool uses generated by code execution with tools."
    );
    let without_one = with(&|body| drop(body["messages"][2]["content"].as_array_mut().unwrap().pop()));
    assert!(without_one.contains("`tool_use` ids were found without `tool_result` blocks"), "{without_one}");
    let more = with(&|body| {
        body["messages"][2]["content"].as_array_mut().unwrap().push(json!({ "type": "text", "text": "also" }));
    });
    assert!(more.starts_with(&format!("`code_execution` tool use with id `{cell}` was found without")), "{more}");
    let other_tool = with(&|body| body["tools"] = json!([code_tool(DATED)]));
    assert!(other_tool.ends_with("but no `code_execution` tool was provided"), "{other_tool}");
    let no_cell = with(&|body| drop(body["messages"][1]["content"].as_array_mut().unwrap().remove(0)));
    assert!(no_cell.starts_with(&format!("source tool `{cell}` not found for tool use block")), "{no_cell}");
    let prompt = with(&|body| body["messages"][2]["content"] = json!("And now?"));
    assert!(prompt.contains("`tool_use` ids were found without `tool_result` blocks"), "{prompt}");
}

#[test]
fn the_model_is_told_of_a_function_or_of_a_tool_or_of_both() {
    for (callers, direct, code) in [
        (json!(["direct"]), true, false),
        (json!(["code_execution_20260521"]), false, true),
        (json!(["direct", "code_execution_20260521"]), true, true),
    ] {
        let mut body = body("hi");
        body["tools"][1]["allowed_callers"] = callers.clone();
        let tools = Rig::default().plan(&body).unwrap().request.tools;
        assert_eq!(tools.iter().any(|tool| tool["name"] == "get_stock"), direct, "{callers}");
        let cell = tools.iter().find(|tool| tool["name"] == "code_execution").unwrap();
        let description = cell["description"].as_str().unwrap();
        assert_eq!(description.contains("- `get_stock`: Units in a place."), code, "{callers}");
        assert_eq!(description.contains("{\"place\":{\"type\":\"string\"}}"), code, "{callers}");
        assert!(!description.contains("get_weather"));
    }
}
