use std::cell::Cell;

use serde_json::json;
use wire::{ApiError, ContentBlock, StreamEvent};

use super::*;
use crate::testing::{DATED, Driven, LEGACY, REPL, Rig, V1, ask, bash_of, code_tool, ok, weather};
use crate::{BlockDelta, Captured, Exit, ModelFailure, OpenBlock};

mod cells;
mod code_calls;
mod edits;
mod failures;
mod invalid;
mod mixed;
mod order;

fn fenced(language: &str, content: &str) -> String {
    format!("```{language}\n{content}\n```\n")
}

/// The request that goes on with an answer: the same, the answer's blocks, and what else the client says.
fn reply(body: &Value, driven: &Driven, user: Option<Value>) -> Value {
    let mut next = body.clone();
    let messages = next["messages"].as_array_mut().unwrap();
    messages.push(json!({ "role": "assistant", "content": driven.content() }));
    messages.extend(user.map(|content| json!({ "role": "user", "content": content })));
    next
}

#[test]
fn a_command_runs_and_its_result_follows_its_call() {
    let body = ask(DATED, &format!("Say it.\n\n{}{}", fenced("bash", "echo hi"), fenced("text", "Printed hi.")));
    let driven = Rig { sandbox: Box::new(|_| ok("hi\n")), ..Rig::default() }.drive(&body).unwrap();
    let id = driven.runs[0].id.clone();
    assert_eq!(
        driven.body(),
        json!({
            "id": "msg_01Test", "type": "message", "role": "assistant", "model": "demo",
            "content": [
                { "type": "server_tool_use", "id": id, "name": "bash_code_execution", "input": { "command": "echo hi" },
                  "caller": { "type": "direct" } },
                { "type": "bash_code_execution_tool_result", "tool_use_id": id, "content": {
                    "type": "bash_code_execution_result", "stdout": "hi\n", "stderr": "", "return_code": 0, "content": [] } },
                { "type": "text", "text": "Printed hi." },
            ],
            "stop_reason": "end_turn", "stop_sequence": null, "stop_details": null,
            "container": { "id": id.replace("srvtoolu_", "container_"), "expires_at": "2026-12-01T10:28:40.590791Z" },
            "usage": driven.body()["usage"],
        })
    );
    assert!(id.strip_prefix("srvtoolu_").unwrap().bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let usage = &driven.body()["usage"];
    assert_eq!(
        usage["server_tool_use"],
        json!({ "web_search_requests": 0, "web_fetch_requests": 0, "code_execution_requests": 1 })
    );
    let inputs: u64 = driven.samples.iter().map(crate::demo::count_tokens).sum();
    assert_eq!(usage["input_tokens"], inputs, "input tokens are summed over samplings");
}

#[test]
fn the_stream_reads_as_the_contract_shows() {
    let body = ask(DATED, &format!("{}{}", fenced("bash", "echo hi"), fenced("text", "Printed.")));
    let driven = Rig { sandbox: Box::new(|_| ok("hi\n")), ..Rig::default() }.drive(&body).unwrap();
    let frames: String = driven.events.iter().map(|event| event.frame(Surface::Anthropic, "req_1")).collect();
    let id = &driven.runs[0].id;
    let body_of = id.strip_prefix("srvtoolu_").unwrap();
    let [tokens, output] = ["input_tokens", "output_tokens"].map(|key| driven.body()["usage"][key].clone());
    let first = crate::demo::count_tokens(&driven.samples[0]);
    let expected = [
        r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_01Test","type":"message","role":"assistant","model":"demo","content":[],"stop_reason":null,"stop_sequence":null,"stop_details":null,"container":null,"usage":{"input_tokens":FIRST,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}}"#,
        r#"event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"server_tool_use","id":"srvtoolu_ID","name":"bash_code_execution","input":{},"caller":{"type":"direct"}}}"#,
        r#"event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"command\":\"echo hi\"}"}}"#,
        r#"event: content_block_stop
data: {"type":"content_block_stop","index":0}"#,
        r#"event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"bash_code_execution_tool_result","tool_use_id":"srvtoolu_ID","content":{"type":"bash_code_execution_result","stdout":"hi\n","stderr":"","return_code":0,"content":[]}}}"#,
        r#"event: content_block_stop
data: {"type":"content_block_stop","index":1}"#,
        r#"event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"text","text":""}}"#,
        r#"event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"Printed."}}"#,
        r#"event: content_block_stop
data: {"type":"content_block_stop","index":2}"#,
        r#"event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null,"stop_details":null,"container":{"id":"container_ID","expires_at":"2026-12-01T10:28:40.590791Z"}},"usage":{"input_tokens":TOKENS,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":OUTPUT,"server_tool_use":{"web_search_requests":0,"web_fetch_requests":0,"code_execution_requests":1}}}"#,
        "event: message_stop\ndata: {\"type\":\"message_stop\"}",
        "",
    ]
    .join("\n\n")
    .replace("_ID", &format!("_{body_of}"))
    .replace("FIRST", &first.to_string())
    .replace("TOKENS", &tokens.to_string())
    .replace("OUTPUT", &output.to_string());
    assert_eq!(frames, expected);
}

#[test]
fn the_zylon_surface_says_how_the_interaction_ended() {
    let plain = Rig::zylon().drive(&ask(V1, &fenced("text", "Hello."))).unwrap();
    let body = plain.body();
    assert_eq!((&body["interaction_stop_reason"], &body["container"]), (&json!("stop"), &Value::Null));
    assert!(body.get("errors").is_none());
    let refused = Rig::zylon().drive(&ask(V1, &fenced("turn", "{\"text\":\"No.\"}\n{\"stop\":\"refusal\"}"))).unwrap();
    let body = refused.body();
    assert_eq!((&body["interaction_stop_reason"], &body["stop_reason"]), (&json!("refusal"), &json!("refusal")));
    assert_eq!(body["stop_details"]["type"], "refusal");
    let named = Rig::zylon().drive(&ask(V1, &fenced("bash", "ls"))).unwrap();
    assert_eq!(named.body()["container"]["id"], "mine");
    assert_eq!(named.runs[0].container, "mine");
    let anthropic = Rig::default().drive(&ask(DATED, "hi")).unwrap().body();
    assert!(anthropic.get("interaction_stop_reason").is_none());
}

#[test]
fn several_calls_of_one_sampling_run_in_order_with_a_result_each() {
    let lines: Vec<String> = (1..=4)
        .map(|n| json!({ "name": "bash_code_execution", "input": { "command": format!("echo {n}") } }).to_string())
        .collect();
    let driven = Rig::default().drive(&ask(DATED, &fenced("tool_use", &lines.join("\n")))).unwrap();
    let content = driven.content();
    for n in 0..4 {
        assert_eq!(content[n]["type"], "server_tool_use");
        let result = &content[n + 4];
        assert_eq!(result["tool_use_id"], content[n]["id"]);
        assert_eq!(result["content"]["stdout"], format!("ran: echo {}\n", n + 1));
    }
    assert_eq!(driven.samples.len(), 2);
    let container = content[0]["id"].as_str().unwrap().replace("srvtoolu_", "container_");
    assert!(driven.runs.iter().all(|run| run.container == container), "named by the first call");
}

#[test]
fn a_named_container_is_used_and_given_back() {
    let mut body = ask(DATED, &fenced("bash", "ls"));
    body["container"] = json!({ "id": "container_01Mine" });
    let driven = Rig::default().drive(&body).unwrap();
    assert_eq!(driven.runs[0].container, "container_01Mine");
    assert_eq!(driven.body()["container"]["id"], "container_01Mine");
}

#[test]
fn a_turn_pauses_at_the_sampling_limit_and_goes_on_from_there() {
    let body = ask(DATED, &format!("{}{}{}", fenced("bash", "one"), fenced("bash", "two"), fenced("text", "The end.")));
    let paused = Rig { max_samplings: 1, ..Rig::default() }.drive(&body).unwrap();
    assert_eq!(paused.stop(), "pause_turn");
    assert_eq!(paused.kinds(), ["server_tool_use", "bash_code_execution_tool_result"], "after a result only");
    let container = paused.body()["container"]["id"].clone();
    let resumed = Rig::default().drive(&reply(&body, &paused, None)).unwrap();
    assert_eq!(bash_of(&resumed.runs[0]).command, "two");
    assert_eq!(resumed.stop(), "end_turn");
    assert_eq!(resumed.kinds(), ["server_tool_use", "bash_code_execution_tool_result", "text"], "nothing is repeated");
    assert_eq!(resumed.body()["container"]["id"], container, "the paused turn's, also without naming it");
}

#[test]
fn a_turn_short_of_time_pauses_after_a_result() {
    let body = ask(DATED, &format!("{}{}", fenced("bash", "one"), fenced("bash", "two")));
    let driven = Rig { time_left: Duration::from_secs(59), ..Rig::default() }.drive(&body).unwrap();
    assert_eq!((driven.stop().as_str(), driven.samples.len()), ("pause_turn", 1));
    let driven = Rig { time_left: Duration::from_mins(1), ..Rig::default() }.drive(&body).unwrap();
    assert_eq!((driven.stop().as_str(), driven.samples.len()), ("end_turn", 3));
}

#[test]
fn max_tokens_is_the_turns_and_what_remains_is_the_samplings() {
    let script =
        "{\"tool\":\"bash_code_execution\",\"input\":{\"command\":\"ls\"}}\n{\"usage\":{\"output_tokens\":40}}";
    let mut body = ask(DATED, &fenced("turn", script).repeat(3));
    body["max_tokens"] = json!(100);
    let driven = Rig::default().drive(&body).unwrap();
    let limits: Vec<u64> = driven.samples.iter().map(|sample| sample.max_tokens).collect();
    assert_eq!(limits, [100, 60, 20]);
    assert_eq!(driven.stop(), "max_tokens");
    assert_eq!(driven.body()["usage"]["output_tokens"], 120);
    assert_eq!(driven.kinds().len(), 6, "every call has its result");
}

#[test]
fn a_call_cut_by_max_tokens_is_answered_as_invalid() {
    let mut body = ask(DATED, &fenced("bash", &"x".repeat(400)));
    body["max_tokens"] = json!(20);
    let driven = Rig::default().drive(&body).unwrap();
    assert!(driven.runs.is_empty());
    assert_eq!(driven.stop(), "max_tokens");
    let content = driven.content();
    assert_eq!((&content[0]["type"], &content[0]["input"]), (&json!("server_tool_use"), &json!({})));
    assert_eq!(content[1]["content"]["error_code"], "invalid_tool_input");
    assert_eq!(driven.body()["container"], Value::Null, "nothing ran");
}

#[test]
fn a_forced_tool_choice_holds_for_the_first_sampling_only() {
    let mut body = ask(DATED, &format!("{}{}", fenced("bash", "one"), fenced("bash", "two")));
    body["tool_choice"] = json!({ "type": "tool", "name": "code_execution", "disable_parallel_tool_use": true });
    let driven = Rig::default().drive(&body).unwrap();
    let choices: Vec<_> = driven.samples.iter().map(|sample| sample.tool_choice.clone().unwrap()).collect();
    assert_eq!(choices[0], json!({ "type": "tool", "name": "bash_code_execution", "disable_parallel_tool_use": true }));
    assert_eq!(choices[1], json!({ "type": "auto", "disable_parallel_tool_use": true }));
    assert_eq!(choices[1], choices[2]);
}

#[test]
fn an_answer_replayed_verbatim_makes_the_prompt_that_the_model_saw() {
    let script = "{\"thinking\":\"Let me see.\"}\n{\"text\":\"I look.\"}\n{\"tool\":\"bash_code_execution\",\"input\":{\"command\":\"ls\"}}\n{\"tool\":\"bash_code_execution\",\"input\":{\"command\":\"pwd\"}}";
    let body = ask(DATED, &format!("{}{}{}", fenced("turn", script), fenced("bash", "false"), fenced("bash", "last")));
    let first = Cell::new(true);
    let driven = Rig {
        sandbox: Box::new(|_| {
            if first.replace(false) {
                ok("a\n")
            } else {
                ToolOutcome::Failed(ToolFailure { kind: FailureKind::Unavailable, explanation: "gone".into() })
            }
        }),
        ..Rig::default()
    }
    .drive(&body)
    .unwrap();
    let next = reply(&body, &driven, Some(json!("Thanks.")));
    let replayed = crate::testing::history(&next).unwrap();
    let seen = &driven.samples.last().unwrap().messages;
    assert_eq!(replayed.messages[..seen.len()], seen[..]);
}

#[test]
fn empty_text_is_never_emitted() {
    let script = "{\"tool\":\"bash_code_execution\",\"input\":{\"command\":\"ls\"}}";
    let body = ask(DATED, &format!("{}{}", fenced("turn", script), fenced("turn", "{\"text\":\"\"}")));
    let driven = Rig::default().drive(&body).unwrap();
    assert_eq!(driven.kinds(), ["server_tool_use", "bash_code_execution_tool_result"]);
    assert_eq!(driven.stop(), "end_turn");
    let next = Rig::default().drive(&reply(&body, &driven, Some(json!("And?")))).unwrap();
    assert_eq!(next.stop(), "end_turn");
}

#[test]
fn a_request_without_our_tool_is_handed_through() {
    let mut body = ask(
        DATED,
        &fenced("tool_use", "{\"name\":\"get_weather\",\"input\":{\"city\":\"Oslo\"},\"id\":\"toolu_up1\"}"),
    );
    body["tools"] = json!([weather()]);
    let driven = Rig::default().drive(&body).unwrap();
    assert_eq!(driven.stop(), "tool_use");
    assert_eq!(
        driven.content(),
        [
            json!({ "type": "tool_use", "id": "toolu_up1", "name": "get_weather", "input": { "city": "Oslo" }, "caller": { "type": "direct" } })
        ]
    );
    assert_eq!(driven.body()["container"], Value::Null);
    assert!(driven.body()["usage"].get("server_tool_use").is_none());
    let results = json!([{ "type": "tool_result", "tool_use_id": "toolu_up1", "content": "rain" }]);
    let done = Rig::default().drive(&reply(&body, &driven, Some(results))).unwrap();
    assert_eq!(done.stop(), "end_turn");
    assert!(done.content()[0]["text"].as_str().unwrap().contains("rain"));
}

#[test]
fn stop_sequences_end_the_turn() {
    let mut body = ask(DATED, &fenced("text", "One, two, STOP, three."));
    body["stop_sequences"] = json!(["STOP"]);
    let driven = Rig::default().drive(&body).unwrap();
    assert_eq!(driven.body()["stop_sequence"], "STOP");
    assert_eq!(driven.content()[0]["text"], "One, two, ");
}

#[test]
fn long_inputs_come_in_several_deltas_that_add_up() {
    let command = format!("cat <<'E'\n{}\nE", "é\"\\\u{1f600}".repeat(20_000));
    let driven = Rig::default().drive(&ask(DATED, &fenced("bash", &command)).tap_max(1_000_000)).unwrap();
    let deltas = driven.events.iter().filter(|event| matches!(event, StreamEvent::BlockDelta { index: 0, .. })).count();
    assert!((2..=16).contains(&deltas), "{deltas}");
    assert_eq!(driven.content()[0]["input"]["command"], command);
    assert_eq!(bash_of(&driven.runs[0]).command, command);
}

trait TapMax {
    fn tap_max(self, max_tokens: u64) -> Self;
}

impl TapMax for Value {
    fn tap_max(mut self, max_tokens: u64) -> Self {
        self["max_tokens"] = max_tokens.into();
        self
    }
}

#[test]
fn output_files_are_listed_in_the_result() {
    let driven = Rig {
        sandbox: Box::new(|_| ToolOutcome::Finished {
            stdout: Captured::default(),
            stderr: Captured::default(),
            exit: Exit::Code(3),
            outputs: vec!["file_01Out".into()],
        }),
        ..Rig::default()
    }
    .drive(&ask(DATED, &fenced("bash", "make")))
    .unwrap();
    let result = &driven.content()[1]["content"];
    assert_eq!(result["return_code"], 3);
    assert_eq!(result["content"], json!([{ "type": "bash_code_execution_output", "file_id": "file_01Out" }]));
    let shown = driven.samples[1].messages.last().unwrap().content[0]["content"].as_str().unwrap();
    assert!(!shown.contains("file_01Out"), "the model does not see the list");
}
