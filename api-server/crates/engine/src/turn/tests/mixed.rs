//! Calls of the client's tools and ours in one sampling (T21).

use super::*;

fn script() -> String {
    let bash = json!({ "name": "bash_code_execution", "input": { "command": "echo x >> n" } });
    let client = json!({ "name": "get_weather", "input": { "city": "Oslo" } });
    fenced("tool_use", &format!("{bash}\n{client}"))
}

fn body() -> Value {
    let mut body = ask(DATED, &script());
    body["tools"] = json!([code_tool(DATED), weather()]);
    body
}

fn results(driven: &Driven) -> Value {
    let call = driven.content().into_iter().find(|block| block["type"] == "tool_use").unwrap();
    json!([{ "type": "tool_result", "tool_use_id": call["id"], "content": "4 degrees" }])
}

#[test]
fn nothing_runs_and_the_container_is_named_all_the_same() {
    let driven = Rig::default().drive(&body()).unwrap();
    assert_eq!(driven.stop(), "tool_use");
    assert_eq!(driven.kinds(), ["server_tool_use", "tool_use"]);
    assert!(driven.runs.is_empty());
    let id = driven.content()[0]["id"].as_str().unwrap().replace("srvtoolu_", "container_");
    assert_eq!(driven.body()["container"]["id"], id);
    let delta = driven.events.iter().find_map(|event| match event {
        StreamEvent::MessageDelta(delta) => delta.container.clone(),
        _ => None,
    });
    assert_eq!(delta.unwrap().id, id, "also when streaming");
}

#[test]
fn the_continuation_begins_with_the_result_with_and_without_container() {
    let paused = Rig::default().drive(&body()).unwrap();
    let container = paused.body()["container"]["id"].clone();
    let call = paused.content()[0]["id"].clone();
    for name_it in [true, false] {
        let mut next = reply(&body(), &paused, Some(results(&paused)));
        if name_it {
            next["container"] = container.clone();
        }
        let driven = Rig::default().drive(&next).unwrap();
        assert_eq!(driven.runs.len(), 1, "runs once");
        assert_eq!(driven.runs[0].container, container);
        let content = driven.content();
        assert_eq!(content[0]["type"], "bash_code_execution_tool_result");
        assert_eq!(content[0]["tool_use_id"], call);
        assert_eq!(driven.kinds(), ["bash_code_execution_tool_result", "text"], "the call is not repeated");
        assert_eq!(driven.body()["container"]["id"], container);
        assert_eq!(driven.stop(), "end_turn");
        let closing = content[1]["text"].as_str().unwrap();
        assert!(closing.contains("4 degrees") && closing.contains("ran: echo x >> n"), "{closing}");
        assert!(matches!(driven.events[0], StreamEvent::MessageStart(_)));
        // The whole conversation stays valid, and makes the prompt that the model saw.
        let third = reply(&next, &driven, Some(json!("And now?")));
        let seen = &driven.samples[0].messages;
        assert_eq!(crate::testing::history(&third).unwrap().messages[..seen.len()], seen[..]);
    }
}

#[test]
fn the_continuation_answers_the_server_call_before_the_model_speaks() {
    let paused = Rig::default().drive(&body()).unwrap();
    let driven = Rig::default().drive(&reply(&body(), &paused, Some(results(&paused)))).unwrap();
    let last = driven.samples[0].messages.last().unwrap();
    let ids: Vec<_> = last.content.iter().map(|block| block["tool_use_id"].clone()).collect();
    assert_eq!(ids, [results(&paused)[0]["tool_use_id"].clone(), paused.content()[0]["id"].clone()]);
}

#[test]
fn a_continuation_with_more_than_results_is_refused() {
    let paused = Rig::default().drive(&body()).unwrap();
    let call = paused.content()[0]["id"].as_str().unwrap().to_owned();
    let mut content = results(&paused);
    content.as_array_mut().unwrap().push(json!({ "type": "text", "text": "also" }));
    let error = Rig::default().drive(&reply(&body(), &paused, Some(content))).err().unwrap();
    assert_eq!(
        error.message,
        format!(
            "`bash_code_execution` tool use with id `{call}` was found without a corresponding `bash_code_execution_tool_result` block"
        )
    );
}

#[test]
fn a_continuation_that_drops_the_tool_is_refused() {
    let paused = Rig::default().drive(&body()).unwrap();
    let mut next = reply(&body(), &paused, Some(results(&paused)));
    next["tools"] = json!([weather()]);
    let error = Rig::default().drive(&next).err().unwrap();
    assert!(error.message.ends_with("block, but no `bash_code_execution` tool was provided"), "{}", error.message);
}

#[test]
fn a_tampered_input_is_answered_as_invalid_and_the_turn_goes_on() {
    let paused = Rig::default().drive(&body()).unwrap();
    let mut next = reply(&body(), &paused, Some(results(&paused)));
    next["messages"][1]["content"][0]["input"] = json!({ "command": 5 });
    let driven = Rig::default().drive(&next).unwrap();
    assert!(driven.runs.is_empty());
    assert_eq!(driven.content()[0]["content"]["error_code"], "invalid_tool_input");
    assert_eq!(driven.stop(), "end_turn");
}

#[test]
fn several_deferred_calls_run_in_order() {
    let lines = [
        json!({ "name": "bash_code_execution", "input": { "command": "one" } }),
        json!({ "name": "get_weather", "input": {} }),
        json!({ "name": "bash_code_execution", "input": { "command": "two" } }),
    ];
    let text = lines.map(|line| line.to_string()).join("\n");
    let mut body = ask(DATED, &fenced("tool_use", &text));
    body["tools"] = json!([code_tool(DATED), weather()]);
    let paused = Rig::default().drive(&body).unwrap();
    let driven = Rig::default().drive(&reply(&body, &paused, Some(results(&paused)))).unwrap();
    let commands: Vec<_> = driven.runs.iter().map(|run| bash_of(run).command.as_str()).collect();
    assert_eq!(commands, ["one", "two"]);
    assert_eq!(driven.kinds()[..2], ["bash_code_execution_tool_result", "bash_code_execution_tool_result"]);
}

#[test]
fn upstream_ids_are_kept_only_where_they_are_fit() {
    let call = |id: &str| json!({ "name": "get_weather", "input": {}, "id": id }).to_string();
    let text = ["call_0", "call_0", "srvtoolu_forged", "a b"].map(call).join("\n");
    let mut body = ask(DATED, &fenced("tool_use", &text));
    body["tools"] = json!([weather()]);
    let driven = Rig::default().drive(&body).unwrap();
    let ids: Vec<String> = driven.content().iter().map(|block| block["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids[0], "call_0");
    assert!(ids[1..].iter().all(|id| id.starts_with("toolu_")), "{ids:?}");
}
