use engine::ModelMessage;
use serde_json::{Map, json};
use wire::Role;

use super::*;

fn read(events: &[Value]) -> Result<Vec<ModelEvent>, Fault> {
    let mut stream = Stream::default();
    let read = |event: &Value| stream.read(&Event { data: event.to_string() });
    Ok(events.iter().map(read).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

fn block(index: u64, start: &Value, deltas: &[Value]) -> Vec<Value> {
    let mut events = vec![json!({ "type": "content_block_start", "index": index, "content_block": start })];
    events.extend(deltas.iter().map(|delta| json!({ "type": "content_block_delta", "index": index, "delta": delta })));
    events.push(json!({ "type": "content_block_stop", "index": index }));
    events
}

#[test]
fn a_stream_becomes_events_one_to_one() {
    let mut events =
        vec![json!({ "type": "message_start", "message": { "id": "msg_x", "content": [], "container": { "id": "c" },
        "usage": { "input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 1 } } })];
    events.extend(block(
        0,
        &json!({ "type": "thinking", "thinking": "", "signature": "" }),
        &[
            json!({ "type": "thinking_delta", "thinking": "Hm" }),
            json!({ "type": "signature_delta", "signature": "s" }),
        ],
    ));
    events.push(json!({ "type": "ping" }));
    events.extend(block(
        1,
        &json!({ "type": "text", "text": "" }),
        &[
            json!({ "type": "text_delta", "text": "Hello" }),
            json!({ "type": "citations_delta", "citation": { "at": 1 } }),
            json!({ "type": "new_delta", "b": 1, "a": null }),
        ],
    ));
    events.extend(block(
        2,
        &json!({ "type": "tool_use", "id": "toolu_1", "name": "f", "input": {} }),
        &[json!({ "type": "input_json_delta", "partial_json": "{}" })],
    ));
    events.extend(block(3, &json!({ "type": "redacted_thinking", "data": "x" }), &[]));
    events.push(json!({ "type": "to_be_invented" }));
    events.push(json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use", "stop_sequence": null },
        "usage": { "input_tokens": null, "output_tokens": 30 } }));
    events.push(json!({ "type": "message_stop" }));
    let usage =
        |output_tokens| Usage { input_tokens: 9, cache_read_input_tokens: 4, output_tokens, ..Usage::default() };
    let said = |delta| ModelEvent::Delta(delta);
    assert_eq!(
        read(&events).unwrap(),
        [
            ModelEvent::Start { usage: usage(1) },
            ModelEvent::Open(OpenBlock::Thinking),
            said(BlockDelta::Thinking("Hm".into())),
            said(BlockDelta::Signature("s".into())),
            ModelEvent::Close,
            ModelEvent::Open(OpenBlock::Text),
            said(BlockDelta::Text("Hello".into())),
            said(BlockDelta::Citation(json!({ "at": 1 }))),
            said(BlockDelta::Raw(json!({ "type": "new_delta", "b": 1, "a": null }))),
            ModelEvent::Close,
            ModelEvent::Open(OpenBlock::Tool { id: Some("toolu_1".into()), name: "f".into() }),
            said(BlockDelta::Json("{}".into())),
            ModelEvent::Close,
            ModelEvent::Open(OpenBlock::Raw(json!({ "type": "redacted_thinking", "data": "x" }))),
            ModelEvent::Close,
            ModelEvent::End { stop: StopReason::ToolUse, stop_sequence: None, stop_details: None, usage: usage(30) },
        ]
    );
}

#[test]
fn what_a_block_begins_with_is_said_too() {
    for (start, delta) in [
        (json!({ "type": "text", "text": "a" }), BlockDelta::Text("a".into())),
        (json!({ "type": "thinking", "thinking": "a" }), BlockDelta::Thinking("a".into())),
        (json!({ "type": "thinking", "thinking": "", "signature": "s" }), BlockDelta::Signature("s".into())),
        (
            json!({ "type": "tool_use", "name": "f", "input": { "b": 1, "a": 2 } }),
            BlockDelta::Json(r#"{"b":1,"a":2}"#.into()),
        ),
    ] {
        let events = read(&block(0, &start, &[])).unwrap();
        assert_eq!(events[1..], [ModelEvent::Delta(delta), ModelEvent::Close], "{start}");
    }
}

#[test]
fn a_block_that_is_not_ended_ends_with_the_next_or_with_the_message() {
    let begin = |index: u64| json!({ "type": "content_block_start", "index": index, "content_block": { "type": "text", "text": "" } });
    let events = read(&[begin(0), begin(1), json!({ "type": "message_stop" })]).unwrap();
    let block = [ModelEvent::Open(OpenBlock::Text), ModelEvent::Close];
    assert_eq!(events[..4], [block.clone(), block].concat());
    assert!(matches!(events[4..], [ModelEvent::End { .. }]));
}

#[test]
fn the_end_tells_why() {
    let end = |delta: &Value| {
        let events =
            read(&[json!({ "type": "message_delta", "delta": delta, "usage": {} }), json!({ "type": "message_stop" })]);
        let Some(ModelEvent::End { stop, stop_sequence, stop_details, .. }) = events.unwrap().pop() else {
            panic!("no end")
        };
        (stop, stop_sequence, stop_details)
    };
    assert_eq!(
        end(&json!({ "stop_reason": "stop_sequence", "stop_sequence": "END", "stop_details": null })),
        (StopReason::StopSequence, Some("END".into()), None)
    );
    let details = json!({ "type": "refusal", "category": "cyber", "explanation": null });
    assert_eq!(
        end(&json!({ "stop_reason": "refusal", "stop_details": details })),
        (StopReason::Refusal, None, Some(details))
    );
    assert_eq!(end(&json!({ "stop_reason": "to_be_invented" })).0, StopReason::EndTurn);
}

#[test]
fn numbers_come_in_parts_and_a_later_one_counts() {
    let message = |usage: Value| json!({ "type": "message_start", "message": { "usage": usage } });
    let delta = |delta: Value, usage: Value| json!({ "type": "message_delta", "delta": delta, "usage": usage });
    let events = [
        message(json!({ "input_tokens": 9, "cache_creation_input_tokens": 5, "output_tokens": 1,
            "cache_creation": { "ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 3 } })),
        delta(json!({ "stop_reason": "max_tokens" }), json!({ "output_tokens": 20, "cache_creation": null })),
        delta(json!({}), json!({ "output_tokens": 30, "output_tokens_details": { "thinking_tokens": 8 } })),
        json!({ "type": "message_stop" }),
    ];
    let Some(ModelEvent::End { stop, usage, .. }) = read(&events).unwrap().pop() else { panic!("no end") };
    assert_eq!(stop, StopReason::MaxTokens);
    let expected = Usage {
        input_tokens: 9,
        cache_creation_input_tokens: 5,
        output_tokens: 30,
        cache_creation: Some(CacheCreation { ephemeral_5m_input_tokens: 2, ephemeral_1h_input_tokens: 3 }),
        output_tokens_details: Some(OutputTokensDetails { thinking_tokens: 8 }),
        ..Usage::default()
    };
    assert_eq!(usage, expected);
}

#[test]
fn what_is_not_of_the_dialect_is_a_fault() {
    let rows = [
        (
            "no block open",
            vec![json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta" } })],
        ),
        ("no index", vec![json!({ "type": "content_block_stop" })]),
        ("no index of a block", vec![json!({ "type": "content_block_start", "content_block": { "type": "text" } })]),
        ("no block", vec![json!({ "type": "content_block_start", "index": 0 })]),
        ("no type", vec![json!({ "type": "content_block_start", "index": 0, "content_block": { "text": "x" } })]),
        ("a call without a name", block(0, &json!({ "type": "tool_use", "id": "x" }), &[])),
        ("a delta without a type", block(0, &json!({ "type": "text" }), &[json!({ "text": "x" })])),
        (
            "another block's delta",
            vec![
                json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text" } }),
                json!({ "type": "content_block_delta", "index": 1, "delta": { "type": "text_delta", "text": "x" } }),
            ],
        ),
    ];
    for (name, events) in rows {
        assert!(matches!(read(&events), Err(Fault::Malformed(_))), "{name}");
    }
    let not_json = Stream::default().read(&Event { data: "{".into() });
    assert!(matches!(not_json, Err(Fault::Malformed(_))));
    assert_eq!(Stream::default().at_end(), Err(Fault::Cut));
}

#[test]
fn an_error_event_stands_for_its_status() {
    for (kind, status) in
        [("overloaded_error", 529), ("rate_limit_error", 429), ("authentication_error", 401), ("new_error", 500)]
    {
        let event = json!({ "type": "error", "error": { "type": kind, "message": "words" } });
        let expected = Fault::Answer { status, message: "words".into(), retry_after: None };
        assert_eq!(read(&[event]), Err(expected), "{kind}");
    }
}

fn request() -> ModelRequest {
    ModelRequest {
        model: "alias".into(),
        max_tokens: 5,
        system: vec![json!({ "type": "text", "text": "be brief" })],
        messages: vec![ModelMessage { role: Role::User, content: vec![json!({ "type": "text", "text": "hi" })] }],
        tools: vec![json!({ "name": "f", "input_schema": {} })],
        tool_choice: None,
        stop_sequences: vec!["END".into()],
        options: Map::from_iter([
            ("temperature".to_owned(), json!(0.5)),
            ("thinking".to_owned(), json!({ "type": "disabled" })),
        ]),
    }
}

#[test]
fn the_body_names_the_upstreams_model_and_asks_for_a_stream() {
    assert_eq!(
        body(&request(), "real").to_string(),
        r#"{"model":"real","max_tokens":5,"system":[{"type":"text","text":"be brief"}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"tools":[{"name":"f","input_schema":{}}],"stop_sequences":["END"],"temperature":0.5,"thinking":{"type":"disabled"},"stream":true}"#
    );
    let counted: Vec<String> = count_body(&request(), "real").as_object().unwrap().keys().cloned().collect();
    assert_eq!(counted, ["model", "system", "messages", "tools", "thinking"]);
}

#[test]
fn betas_of_the_upstream_are_passed_on_and_those_of_this_server_are_not() {
    let header = |betas: &[&str]| beta_header(&betas.iter().map(|beta| (*beta).to_owned()).collect::<Vec<_>>());
    assert_eq!(
        header(&["interleaved-thinking-2025-05-14", " context-1m-2025-08-07 "]).unwrap(),
        "interleaved-thinking-2025-05-14,context-1m-2025-08-07"
    );
    assert_eq!(header(&["code-execution-2025-08-25", "files-api-2025-04-14", "message-threads-2026-08-12"]), None);
    assert_eq!(header(&["a\nb", "", "c d", "ok-1"]).unwrap(), "ok-1");
    assert_eq!(header(&["x"; 100]).unwrap().split(',').count(), MAX_BETAS);
}
