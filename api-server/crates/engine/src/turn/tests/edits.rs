//! Edits in a turn.

use sandboxd_protocol::{Edit, EditOutcome, EditRefusal, MediaFormat};

use super::*;
use crate::CallInput;

const CREATE: &str =
    "{\"name\":\"text_editor_code_execution\",\"input\":{\"command\":\"create\",\"path\":\"a\",\"file_text\":\"x\"}}";
const VIEW: &str = "{\"name\":\"text_editor_code_execution\",\"input\":{\"command\":\"view\",\"path\":\"a\"}}";

/// A sandbox in which every view shows a picture.
fn sandbox(call: &ServerCall) -> ToolOutcome {
    match &call.input {
        CallInput::Bash(_) | CallInput::Cell(_) | CallInput::Answers(_) => ok("ran\n"),
        CallInput::Edit(Edit::View { .. }) => ToolOutcome::Edited(EditOutcome::Media {
            format: MediaFormat::Png,
            data: "iVBORw0KGgoAAAANSUhEUg==".into(),
        }),
        CallInput::Edit(_) => ToolOutcome::Edited(EditOutcome::Created { is_file_update: false }),
    }
}

#[test]
fn calls_of_both_tools_run_in_order_with_a_result_each() {
    let bash = "{\"name\":\"bash_code_execution\",\"input\":{\"command\":\"cat a\"}}";
    let script = format!("{}{}", fenced("tool_use", &[CREATE, bash].join("\n")), fenced("text", "Done."));
    let driven = Rig { sandbox: Box::new(sandbox), ..Rig::default() }.drive(&ask(DATED, &script)).unwrap();
    assert_eq!(
        driven.kinds(),
        [
            "server_tool_use",
            "server_tool_use",
            "text_editor_code_execution_tool_result",
            "bash_code_execution_tool_result",
            "text"
        ]
    );
    let content = driven.content();
    assert_eq!(content[2]["tool_use_id"], content[0]["id"]);
    assert_eq!(content[0]["input"], json!({ "command": "create", "path": "a", "file_text": "x" }));
    assert_eq!(driven.body()["usage"]["server_tool_use"]["code_execution_requests"], 2);
    let told = &driven.samples[1].messages.last().unwrap().content;
    assert_eq!(
        (&told[0]["content"], &told[1]["content"]),
        (&json!("File created."), &json!("exit_code: 0\n\nstdout:\nran\n"))
    );
}

#[test]
fn an_answer_with_edits_replays_as_the_prompt_that_the_model_saw() {
    let script = format!("{}{}", fenced("tool_use", &[CREATE, VIEW].join("\n")), fenced("tool_use", VIEW));
    let body = ask(V1, &script);
    let driven = Rig { sandbox: Box::new(sandbox), ..Rig::zylon() }.drive(&body).unwrap();
    let replayed = crate::testing::history(&reply(&body, &driven, Some(json!("Thanks.")))).unwrap();
    let seen = &driven.samples.last().unwrap().messages;
    assert_eq!(replayed.messages[..seen.len()], seen[..]);
    let picture = &seen.last().unwrap().content[0]["content"][1];
    assert_eq!((&picture["type"], &picture["source"]["media_type"]), (&json!("image"), &json!("image/png")));
}

#[test]
fn a_refused_edit_is_shown_and_the_turn_goes_on() {
    let refused = |_: &ServerCall| ToolOutcome::Edited(EditOutcome::Refused { why: EditRefusal::EmptyOldStr });
    let script = format!("{}{}", fenced("tool_use", VIEW), fenced("text", "Well."));
    let driven = Rig { sandbox: Box::new(refused), ..Rig::default() }.drive(&ask(DATED, &script)).unwrap();
    assert_eq!(driven.content()[1]["content"]["error_code"], "invalid_tool_input");
    assert_eq!(driven.samples[1].messages.last().unwrap().content[0]["is_error"], true);
    assert_eq!(driven.stop(), "end_turn");
}

#[test]
fn an_edit_of_a_stopped_turn_has_an_editors_result() {
    let (mut turn, mut actions) = Turn::new(Rig::zylon().plan(&ask(V1, &fenced("tool_use", VIEW))).unwrap());
    let Some(Action::Sample(request)) = actions.pop() else { panic!("no sampling") };
    let mut events = Vec::new();
    for step in crate::demo::respond(&request) {
        if let crate::demo::Step::Event(event) = step {
            events.extend(turn.step(Input::Model(event)));
        }
    }
    assert!(matches!(events.last(), Some(Action::Run(ServerCall { input: CallInput::Edit(_), .. }))));
    let stopped = turn.step(Input::Cancel(ApiError::new(wire::ErrorType::Overloaded, "bye")));
    let is_editors = |action: &Action| {
        matches!(action, Action::Emit(StreamEvent::BlockStart { block, .. })
            if matches!(block.as_ref(), ContentBlock::TextEditorCodeExecutionToolResult { .. }))
    };
    assert!(stopped.iter().any(is_editors), "{stopped:?}");
}

#[test]
fn a_deferred_edit_runs_when_the_client_has_answered() {
    let weather_call = "{\"name\":\"get_weather\",\"input\":{}}";
    let mut body = ask(DATED, &fenced("tool_use", &[CREATE, weather_call].join("\n")));
    body["tools"] = json!([code_tool(DATED), weather()]);
    let paused = Rig::default().drive(&body).unwrap();
    let call = paused.content().into_iter().find(|block| block["type"] == "tool_use").unwrap();
    let results = json!([{ "type": "tool_result", "tool_use_id": call["id"], "content": "sun" }]);
    let rig = Rig { sandbox: Box::new(sandbox), ..Rig::default() };
    let driven = rig.drive(&reply(&body, &paused, Some(results))).unwrap();
    assert_eq!(driven.kinds()[0], "text_editor_code_execution_tool_result");
}
