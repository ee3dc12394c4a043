use serde_json::json;
use wire::Surface;

use super::*;
use crate::testing::{DATED, LEGACY, REPL, Rig, ask, bash_of, facts, read, weather};
use crate::{History, ToolProfile};

fn prompt(body: &Value) -> ModelRequest {
    let request = read(body, Surface::Anthropic).unwrap();
    let profile = ToolProfile::of(&request, &facts());
    let history = History::read(&request, profile.as_ref(), &std::collections::BTreeMap::new()).unwrap();
    ModelRequest::build(&request, &history, profile.as_ref(), &facts())
}

fn say(text: &str) -> Vec<Step> {
    respond(&prompt(&ask(DATED, text)))
}

/// The answer's text, calls as `name json`, and stop reason.
fn heard(steps: &[Step]) -> (String, Vec<String>, Option<StopReason>) {
    let (mut text, mut calls, mut stop) = (String::new(), Vec::<String>::new(), None);
    for step in steps {
        match step {
            Step::Event(ModelEvent::Delta(BlockDelta::Text(more))) => text.push_str(more),
            Step::Event(ModelEvent::Open(OpenBlock::Tool { name, .. })) => calls.push(format!("{name} ")),
            Step::Event(ModelEvent::Delta(BlockDelta::Json(more))) => calls.last_mut().unwrap().push_str(more),
            Step::Event(ModelEvent::End { stop: why, .. }) => stop = Some(*why),
            _ => {}
        }
    }
    (text, calls, stop)
}

fn only_call(text: &str) -> String {
    let (_, calls, stop) = heard(&say(text));
    assert_eq!((calls.len(), stop), (1, Some(StopReason::ToolUse)), "{text}");
    calls[0].clone()
}

#[test]
fn the_same_request_gets_the_same_answer() {
    let text = "```bash\nls\n```\n```text\nbye\n```";
    assert_eq!(say(text), say(text));
}

#[test]
fn shell_and_python_blocks_are_calls() {
    assert_eq!(only_call("```bash\nls -la\n```"), r#"bash_code_execution {"command":"ls -la"}"#);
    assert_eq!(only_call("~~~sh\nls\npwd\n~~~"), r#"bash_code_execution {"command":"ls\npwd"}"#);
    assert_eq!(
        only_call("```python\nprint(1)\n```"),
        r#"bash_code_execution {"command":"python3 - <<'PYTHON'\nprint(1)\nPYTHON"}"#
    );
    assert!(only_call("````python\nx = '''\nPYTHON\n'''\n````").contains("<<'PYTHON_'"));
    assert_eq!(
        only_call("```tool_use\n{\"name\":\"bash_code_execution\",\"input\":{\"command\":\"id\"}}\n```"),
        r#"bash_code_execution {"command":"id"}"#
    );
}

#[test]
fn a_python_block_is_a_cell_where_the_tool_offers_one() {
    for kind in [LEGACY, REPL] {
        let (_, calls, stop) = heard(&respond(&prompt(&ask(kind, "```python\nx = 1\nx\n```"))));
        assert_eq!((calls.len(), stop), (1, Some(StopReason::ToolUse)), "{kind}");
        assert_eq!(calls[0], r#"code_execution {"code":"x = 1\nx\n"}"#, "{kind}");
    }
    let (text, calls, _) = heard(&respond(&prompt(&ask(LEGACY, "```bash\nls\n```"))));
    assert_eq!((text.as_str(), calls.len()), (NO_TOOL, 0));
}

#[test]
fn other_blocks_are_ignored_and_text_without_a_script_gets_help() {
    let (text, calls, stop) = heard(&say("Hello!\n```json\n{}\n```"));
    assert_eq!((text.as_str(), calls.len(), stop), (USAGE, 0, Some(StopReason::EndTurn)));
}

#[test]
fn text_goes_before_the_next_call_and_closes_at_the_end() {
    let script = "```text\nFirst I look.\n```\n```bash\nls\n```\n```text\nThat was it.\n```";
    let (text, calls, _) = heard(&say(script));
    assert_eq!((text.as_str(), calls.len()), ("First I look.", 1));
    let driven = Rig::default().drive(&ask(DATED, script)).unwrap();
    let texts: Vec<_> = driven.content().iter().filter_map(|block| block["text"].as_str().map(str::to_owned)).collect();
    assert_eq!(texts, ["First I look.", "That was it."]);
}

#[test]
fn the_closing_text_quotes_the_last_results() {
    let driven = Rig::default().drive(&ask(DATED, "```bash\necho hi\n```")).unwrap();
    let content = driven.content();
    assert_eq!(content[2]["text"], "Done. The last result:\n\nexit_code: 0\n\nstdout:\nran: echo hi\n");
}

#[test]
fn turns_are_counted_since_the_last_text_of_the_user() {
    let mut body =
        ask(DATED, "```tool_use\n{\"name\":\"get_weather\",\"input\":{\"city\":\"Oslo\"}}\n```\n```bash\nsecond\n```");
    body["tools"].as_array_mut().unwrap().push(weather());
    let first = Rig::default().drive(&body).unwrap();
    assert_eq!(first.stop(), "tool_use");
    body["messages"].as_array_mut().unwrap().extend([
        json!({ "role": "assistant", "content": first.content() }),
        json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": first.content()[0]["id"], "content": "rain" }] }),
    ]);
    let second = Rig::default().drive(&body).unwrap();
    assert_eq!(bash_of(&second.runs[0]).command, "second");
    body["messages"].as_array_mut().unwrap().extend([
        json!({ "role": "assistant", "content": second.content() }),
        json!({ "role": "user", "content": "```bash\nthird\n```" }),
    ]);
    assert_eq!(bash_of(&Rig::default().drive(&body).unwrap().runs[0]).command, "third", "a new text is a new script");
}

#[test]
fn turn_blocks_say_everything_else() {
    let script = r#"```turn
{"thinking": "Hm."}
{"text": "So."}
{"sleep_ms": 250}
{"tool": "bash_code_execution", "raw": "{\"comm"}
{"tool": "get_weather", "input": {"city": "Oslo"}, "id": "toolu_given"}
{"usage": {"input_tokens": 11, "output_tokens": 7}}
{"stop": "max_tokens"}
```"#;
    let steps = say(script);
    let (text, calls, stop) = heard(&steps);
    assert_eq!(text, "So.");
    assert_eq!(calls, [r#"bash_code_execution {"comm"#, r#"get_weather {"city":"Oslo"}"#]);
    assert_eq!(stop, Some(StopReason::MaxTokens));
    assert!(steps.contains(&Step::SleepMs(250)));
    let opened = OpenBlock::Tool { id: Some("toolu_given".into()), name: "get_weather".into() };
    assert!(steps.contains(&Step::Event(ModelEvent::Open(opened))));
    assert!(steps.contains(&Step::Event(ModelEvent::Delta(BlockDelta::Thinking("Hm.".into())))));
    let Some(Step::Event(ModelEvent::End { usage, .. })) = steps.last() else { panic!("no end") };
    assert_eq!((usage.input_tokens, usage.output_tokens), (11, 7));
}

#[test]
fn text_and_input_stream_in_several_deltas() {
    let steps = say(&format!("```text\n{}\n```\n```bash\n{}\n```", "word ".repeat(20), "echo ".repeat(20)));
    let count = |is: fn(&BlockDelta) -> bool| {
        steps.iter().filter(|step| matches!(step, Step::Event(ModelEvent::Delta(delta)) if is(delta))).count()
    };
    assert!(count(|delta| matches!(delta, BlockDelta::Text(_))) > 2);
    assert!(count(|delta| matches!(delta, BlockDelta::Json(_))) > 2);
}

#[test]
fn limits_are_honoured() {
    let mut body = ask(DATED, "```text\nOne, two, three, four, five, six.\n```");
    body["max_tokens"] = json!(2);
    let (text, _, stop) = heard(&respond(&prompt(&body)));
    assert_eq!((text.as_str(), stop), ("One, two", Some(StopReason::MaxTokens)));
    body["max_tokens"] = json!(100);
    body["stop_sequences"] = json!(["four", "three"]);
    let steps = respond(&prompt(&body));
    assert_eq!(heard(&steps).0, "One, two, ");
    let Some(Step::Event(ModelEvent::End { stop, stop_sequence, .. })) = steps.last() else { panic!("no end") };
    assert_eq!((*stop, stop_sequence.as_deref()), (StopReason::StopSequence, Some("three")));
}

#[test]
fn a_script_that_cannot_be_played_says_why() {
    for (text, reason) in [
        ("```tool_use\nnonsense\n```", "line 1 of a block is not a JSON object"),
        ("```tool_use\n{\"input\":{}}\n```", "a call needs a `name`"),
        ("```turn\n{\"dance\":1}\n```", "a line of a `turn` block with dance means nothing"),
        ("```turn\n{\"stop\":\"tired\"}\n```", "there is no stop reason `tired`"),
    ] {
        let (said, calls, stop) = heard(&say(text));
        assert!(said.contains(reason), "{said}");
        assert_eq!((calls.len(), stop), (0, Some(StopReason::EndTurn)));
    }
    let mut body = ask(DATED, "```bash\nls\n```");
    body["tools"] = json!([]);
    assert_eq!(heard(&respond(&prompt(&body))).0, NO_TOOL);
}

#[test]
fn errors_fail_in_their_place() {
    let status = |text: &str| match say(text).last() {
        Some(Step::Event(ModelEvent::Fail(failure))) => (failure.error.status(), failure.retryable, say(text).len()),
        other => panic!("{other:?}"),
    };
    assert_eq!(status("```turn\n{\"error\":{\"status\":529}}\n```"), (529, true, 1));
    assert_eq!(status("```turn\n{\"error\":{\"status\":401}}\n```"), (401, false, 1));
    assert_eq!(status("```turn\n{\"text\":\"x\"}\n{\"error\":{\"status\":500,\"after\":2}}\n```"), (500, true, 3));
}

#[test]
fn tokens_are_estimated_from_the_prompt() {
    let short = count_tokens(&prompt(&ask(DATED, "x")));
    let long = count_tokens(&prompt(&ask(DATED, &"x".repeat(4_000))));
    assert!(short >= 1 && long >= short + 900, "{short} {long}");
}
