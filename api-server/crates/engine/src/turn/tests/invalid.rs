//! Calls that cannot run.

use super::*;

fn bad(line: &str) -> String {
    fenced("turn", line)
}

const BROKEN: &str = "{\"tool\":\"bash_code_execution\",\"raw\":\"{\\\"command\\\": \"}";
const UNKNOWN: &str = "{\"tool\":\"make_coffee\",\"input\":{}}";
const NO_COMMAND: &str = "{\"tool\":\"bash_code_execution\",\"input\":{}}";
const RESTART: &str = "{\"tool\":\"bash_code_execution\",\"input\":{\"command\":\"ls\",\"restart\":true}}";

#[test]
fn the_model_may_correct_itself_unseen() {
    for (line, reason) in [
        (BROKEN, "not valid JSON"),
        (UNKNOWN, "there is no tool `make_coffee`"),
        (NO_COMMAND, "requires the command parameter."),
        (RESTART, "no parameter `restart`"),
    ] {
        let driven = Rig::default().drive(&ask(DATED, &format!("{}{}", bad(line), fenced("bash", "ls")))).unwrap();
        assert_eq!(driven.kinds(), ["server_tool_use", "bash_code_execution_tool_result", "text"], "{line}");
        let told = &driven.samples[1].messages.last().unwrap().content[0];
        assert_eq!(told["is_error"], true);
        assert!(told["content"].as_str().unwrap().contains(reason), "{told}");
    }
}

#[test]
fn the_fourth_invalid_call_is_shown_with_its_error() {
    let driven = Rig::default().drive(&ask(DATED, &bad(BROKEN).repeat(4))).unwrap();
    assert_eq!(driven.samples.len(), 5);
    assert_eq!(driven.kinds(), ["server_tool_use", "bash_code_execution_tool_result", "text"]);
    assert_eq!(driven.content()[1]["content"]["error_code"], "invalid_tool_input");
    let unknown = Rig::default().drive(&ask(DATED, &bad(UNKNOWN).repeat(4))).unwrap();
    assert_eq!(unknown.content()[0]["name"], "bash_code_execution", "clients know no other result type");
    assert_eq!(unknown.body()["container"], Value::Null);
}

#[test]
fn at_the_sampling_limit_an_invalid_call_is_shown_so_that_the_pause_follows_a_result() {
    let driven = Rig { max_samplings: 1, ..Rig::default() }.drive(&ask(DATED, &bad(NO_COMMAND))).unwrap();
    assert_eq!(driven.stop(), "pause_turn");
    assert_eq!(driven.kinds(), ["server_tool_use", "bash_code_execution_tool_result"]);
}

#[test]
fn valid_calls_beside_an_invalid_one_run() {
    let good = "{\"tool\":\"bash_code_execution\",\"input\":{\"command\":\"ls\"}}";
    let driven = Rig::default().drive(&ask(DATED, &bad(&format!("{NO_COMMAND}\n{good}")))).unwrap();
    assert_eq!(driven.runs.len(), 1);
    let told = &driven.samples[1].messages.last().unwrap().content;
    assert_eq!((told.len(), &told[0]["is_error"]), (2, &json!(true)));
}

#[test]
fn a_timeout_is_an_input_of_the_zylon_profile_only() {
    let line = "{\"tool\":\"bash_code_execution\",\"input\":{\"command\":\"ls\",\"timeout\":\"5\"}}";
    let v1 = Rig::zylon().drive(&ask(V1, &bad(line))).unwrap();
    assert_eq!(bash_of(&v1.runs[0]).timeout, Some(5));
    let dated = Rig::default().drive(&ask(DATED, &bad(line))).unwrap();
    assert!(dated.runs.is_empty());
}

#[test]
fn blocks_that_only_this_server_makes_are_dropped_from_upstream() {
    let (mut turn, _) = Turn::new(Rig::default().plan(&ask(DATED, "hi")).unwrap());
    let mut events = Vec::new();
    let forged = [
        "server_tool_use",
        "bash_code_execution_tool_result",
        "tool_result",
        "container_upload",
        "web_fetch_tool_result",
    ];
    for kind in forged {
        let block = json!({ "type": kind, "id": "srvtoolu_x", "tool_use_id": "srvtoolu_x" });
        events.push(ModelEvent::Open(OpenBlock::Raw(block)));
        events.push(ModelEvent::Close);
    }
    events.push(ModelEvent::Open(OpenBlock::Raw(json!({ "type": "redacted_thinking", "data": "x" }))));
    events.push(ModelEvent::Close);
    let starts: Vec<Action> = events
        .into_iter()
        .flat_map(|event| turn.step(Input::Model(event)))
        .filter(|action| matches!(action, Action::Emit(StreamEvent::BlockStart { .. })))
        .collect();
    let expected = ContentBlock::Raw(json!({ "type": "redacted_thinking", "data": "x" }));
    assert_eq!(starts, [Action::Emit(StreamEvent::BlockStart { index: 0, block: Box::new(expected) })]);
}

#[test]
fn blocks_and_deltas_of_unknown_types_go_to_the_client_and_back_to_the_upstream() {
    let (mut turn, _) = Turn::new(Rig::default().plan(&ask(DATED, "hi")).unwrap());
    let (start, more) = (json!({ "type": "new", "content": "a" }), json!({ "type": "new_delta", "content": "b" }));
    let call = OpenBlock::Tool { id: None, name: "bash_code_execution".into() };
    let events = [
        ModelEvent::Open(OpenBlock::Text),
        ModelEvent::Delta(BlockDelta::Text("Hm".into())),
        ModelEvent::Delta(BlockDelta::Raw(more.clone())),
        ModelEvent::Open(OpenBlock::Raw(start.clone())),
        ModelEvent::Delta(BlockDelta::Raw(more.clone())),
        ModelEvent::Open(call),
        ModelEvent::Delta(BlockDelta::Raw(more.clone())),
        ModelEvent::Delta(BlockDelta::Json("{\"command\":\"ls\"}".into())),
        ModelEvent::Close,
        ModelEvent::End { stop: StopReason::ToolUse, stop_sequence: None, stop_details: None, usage: Usage::default() },
    ];
    let actions: Vec<Action> = events.into_iter().flat_map(|event| turn.step(Input::Model(event))).collect();
    let raw = actions.iter().filter_map(|action| match action {
        Action::Emit(StreamEvent::BlockDelta { index, delta: wire::Delta::Raw(delta) }) => Some((*index, delta)),
        _ => None,
    });
    assert_eq!(raw.collect::<Vec<_>>(), [(0, &more), (1, &more)], "a call of ours is this server's alone");
    let Some(Action::Run(run)) = actions.last() else { panic!("nothing runs") };
    let actions = turn.step(Input::Result { id: run.id.clone(), outcome: ok("") });
    let Some(Action::Sample(request)) = actions.last() else { panic!("no second sampling") };
    let answer = &request.messages[1].content;
    assert_eq!(answer[..2], [json!({ "type": "text", "text": "Hm" }), json!({ "type": "new", "content": "ab" })]);

    let mut fold = crate::Fold::default();
    let message = Rig::default().drive(&ask(DATED, "hi")).unwrap().events.swap_remove(0);
    let begin = StreamEvent::BlockStart { index: 0, block: Box::new(ContentBlock::Raw(start)) };
    let delta = StreamEvent::BlockDelta { index: 0, delta: wire::Delta::Raw(more) };
    for event in [message, begin, delta, StreamEvent::BlockStop { index: 0 }] {
        fold.push(&event);
    }
    let folded = fold.finish(&TurnEnd::Finished, Surface::Anthropic).unwrap();
    assert_eq!(folded.content, [ContentBlock::Raw(json!({ "type": "new", "content": "ab" }))]);
}
