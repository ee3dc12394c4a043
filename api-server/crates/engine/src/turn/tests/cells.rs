//! Python cells in a turn.

use super::*;
use crate::CallInput;

/// Says which kind of call it got.
fn sandbox(call: &ServerCall) -> ToolOutcome {
    match &call.input {
        CallInput::Cell(code) => ok(&format!("cell: {code}")),
        CallInput::Bash(input) => ok(&format!("bash: {}\n", input.command)),
        input @ (CallInput::Edit(_) | CallInput::Answers(_)) => panic!("nobody asks for it: {input:?}"),
    }
}

fn drive(body: &Value, rig: Rig<'_>) -> Driven {
    Rig { sandbox: Box::new(sandbox), ..rig }.drive(body).unwrap()
}

fn script() -> String {
    format!("{}{}{}", fenced("python", "x = 1"), fenced("bash", "ls"), fenced("text", "Done."))
}

#[test]
fn a_cell_is_one_call_with_its_own_result_on_both_surfaces() {
    for rig in [Rig::default(), Rig::zylon()] {
        let driven = drive(&ask(REPL, &script()), rig);
        let kinds = [
            "server_tool_use",
            "code_execution_tool_result",
            "server_tool_use",
            "bash_code_execution_tool_result",
            "text",
        ];
        assert_eq!(driven.kinds(), kinds);
        let content = driven.content();
        assert_eq!(
            (&content[0]["name"], &content[0]["input"]),
            (&json!("code_execution"), &json!({ "code": "x = 1\n" }))
        );
        assert_eq!(content[1]["tool_use_id"], content[0]["id"]);
        assert_eq!(content[1]["content"]["stdout"], "cell: x = 1\n");
        let told = &driven.samples[1].messages.last().unwrap().content[0]["content"];
        assert_eq!(*told, json!("exit_code: 0\n\nstdout:\ncell: x = 1\n"));
        assert_eq!(driven.body()["usage"]["server_tool_use"]["code_execution_requests"], 2);
    }
}

#[test]
fn an_answer_with_cells_replays_as_the_prompt_that_the_model_saw() {
    for kind in [REPL, LEGACY] {
        let text = format!("{}{}", fenced("python", "x = 1"), fenced("python", "x"));
        let body = ask(kind, &text);
        let driven = drive(&body, Rig::default());
        let replayed = crate::testing::history(&reply(&body, &driven, Some(json!("Thanks.")))).unwrap();
        let seen = &driven.samples.last().unwrap().messages;
        assert_eq!(replayed.messages[..seen.len()], seen[..], "{kind}");
    }
}

#[test]
fn a_deferred_cell_runs_when_the_client_has_answered() {
    let calls = "{\"name\":\"code_execution\",\"input\":{\"code\":\"y\"}}\n{\"name\":\"get_weather\",\"input\":{}}";
    let mut body = ask(REPL, &fenced("tool_use", calls));
    body["tools"] = json!([code_tool(REPL), weather()]);
    let paused = drive(&body, Rig::default());
    assert_eq!((paused.stop().as_str(), paused.runs.len()), ("tool_use", 0));
    let call = paused.content().into_iter().find(|block| block["type"] == "tool_use").unwrap();
    let results = json!([{ "type": "tool_result", "tool_use_id": call["id"], "content": "sun" }]);
    let driven = drive(&reply(&body, &paused, Some(results)), Rig::default());
    assert_eq!(driven.kinds()[0], "code_execution_tool_result");
}

#[test]
fn without_a_shell_an_unknown_call_is_told_as_a_cell() {
    let call = "{\"name\":\"bash_code_execution\",\"input\":{\"command\":\"ls\"}}";
    let driven = drive(&ask(LEGACY, &fenced("tool_use", call).repeat(4)), Rig::default());
    let content = driven.content();
    assert_eq!((&content[0]["name"], driven.runs.len()), (&json!("code_execution"), 0));
    assert_eq!(
        content[1]["content"],
        json!({ "type": "code_execution_tool_result_error", "error_code": "invalid_tool_input" })
    );
}

#[test]
fn a_forced_choice_of_the_tool_is_one_of_its_sub_tool() {
    for (kind, name) in [(LEGACY, "code_execution"), (REPL, "bash_code_execution")] {
        let mut body = ask(kind, &fenced("python", "1"));
        body["tool_choice"] = json!({ "type": "tool", "name": "code_execution" });
        let driven = drive(&body, Rig::default());
        assert_eq!(driven.samples[0].tool_choice, Some(json!({ "type": "tool", "name": name })), "{kind}");
    }
}
