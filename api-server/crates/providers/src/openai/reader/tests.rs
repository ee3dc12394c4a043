use proptest::prelude::*;
use serde_json::json;

use super::*;

fn chunk(delta: &Value, finish: Option<&str>) -> Value {
    json!({ "id": "x", "object": "chat.completion.chunk", "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
}

fn call(index: Option<u64>, id: Option<&str>, name: Option<&str>, arguments: &str) -> Value {
    chunk(
        &json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": arguments } }] }),
        None,
    )
}

fn read(chunks: &[Value]) -> Result<Vec<ModelEvent>, Fault> {
    let mut stream = Stream::default();
    let mut events = Vec::new();
    for chunk in chunks {
        events.extend(stream.read(&Event { data: chunk.to_string() })?);
    }
    events.extend(stream.read(&Event { data: "[DONE]".into() })?);
    Ok(events)
}

/// A short form: `T`ext, `R`easoning, calls with their input, and the reason of the end.
fn told(chunks: &[Value]) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    let mut open = false;
    for event in read(chunks).unwrap() {
        match event {
            ModelEvent::Start { .. } => assert!(said.is_empty()),
            ModelEvent::Open(block) => {
                assert!(!std::mem::replace(&mut open, true), "one block at a time");
                said.push(match block {
                    OpenBlock::Text => "T:".into(),
                    OpenBlock::Thinking => "R:".into(),
                    OpenBlock::Tool { id, name } => format!("{name}#{}:", id.unwrap_or_default()),
                    OpenBlock::Raw(_) => panic!("no raw blocks"),
                });
            }
            ModelEvent::Delta(BlockDelta::Text(more) | BlockDelta::Thinking(more) | BlockDelta::Json(more)) => {
                assert!(open);
                said.last_mut().unwrap().push_str(&more);
            }
            ModelEvent::Close => assert!(std::mem::replace(&mut open, false)),
            ModelEvent::End { stop, .. } => said.push(stop.name().into()),
            other => panic!("{other:?}"),
        }
    }
    assert!(!open);
    said
}

/// A call's first delta, and one that goes on with it.
fn begin(index: u64, id: &str, name: &str) -> Value {
    call(Some(index), Some(id), Some(name), "")
}

fn more(index: u64, arguments: &str) -> Value {
    call(Some(index), None, None, arguments)
}

fn text(text: &str) -> Value {
    chunk(&json!({ "content": text }), None)
}

fn end(reason: &str) -> Value {
    chunk(&json!({}), Some(reason))
}

#[test]
fn words_become_blocks() {
    let reasoning = |text: &str| chunk(&json!({ "reasoning_content": text }), None);
    let other_choice = json!({ "choices": [{ "index": 1, "delta": { "content": "x" } }] });
    let rows: [(&str, Vec<Value>, &[&str]); 6] = [
        ("text", vec![text(""), text("Hel"), text("lo"), end("stop")], &["T:Hello", "end_turn"]),
        ("reasoning", vec![reasoning("H"), reasoning("m"), text("Yes"), end("stop")], &["R:Hm", "T:Yes", "end_turn"]),
        (
            "reasoning by its other name",
            vec![chunk(&json!({ "reasoning": "Hm", "content": null }), Some("stop"))],
            &["R:Hm", "end_turn"],
        ),
        ("a refusal", vec![chunk(&json!({ "refusal": "No." }), Some("stop"))], &["T:No.", "refusal"]),
        ("a filter", vec![text("W"), end("content_filter")], &["T:W", "refusal"]),
        ("another choice", vec![other_choice, text("a"), end("stop")], &["T:a", "end_turn"]),
    ];
    for (name, chunks, expected) in rows {
        assert_eq!(told(&chunks), expected, "{name}");
    }
}

#[test]
fn calls_become_blocks_one_at_a_time() {
    let (one, two) = ("f#c1:{}", "g#c2:[1]");
    let whole = json!({ "tool_calls": [{ "id": "c1", "function": { "name": "f", "arguments": { "a": 1 } } }] });
    let unnumbered = |id, name, arguments| call(None, id, name, arguments);
    let rows: [(&str, Vec<Value>, &[&str]); 9] = [
        (
            "after text",
            vec![text("So"), begin(0, "c1", "f"), more(0, "{"), more(0, "}"), end("tool_calls")],
            &["T:So", one, "tool_use"],
        ),
        (
            "interleaved",
            vec![
                begin(0, "c1", "f"),
                more(0, "{"),
                begin(1, "c2", "g"),
                more(1, "[1"),
                more(0, "}"),
                more(1, "]"),
                end("tool_calls"),
            ],
            &[one, two, "tool_use"],
        ),
        (
            "without numbers",
            vec![
                unnumbered(Some("c1"), Some("f"), "{"),
                unnumbered(None, None, "}"),
                unnumbered(Some("c2"), Some("g"), "[1]"),
                end("stop"),
            ],
            &[one, two, "end_turn"],
        ),
        (
            "of one number",
            vec![begin(0, "c1", "f"), more(0, "{}"), begin(0, "c2", "g"), more(0, "[1]"), end("tool_calls")],
            &[one, two, "tool_use"],
        ),
        (
            "with an id that is repeated",
            vec![
                call(Some(0), Some("c1"), Some("f"), "{"),
                call(Some(0), Some("c1"), Some("f"), "}"),
                end("tool_calls"),
            ],
            &[one, "tool_use"],
        ),
        ("without an id", vec![call(Some(0), None, Some("f"), "{}"), end("tool_calls")], &["f#:{}", "tool_use"]),
        (
            "before text",
            vec![begin(0, "c1", "f"), more(0, "{"), text("a"), text("b"), more(0, "}"), end("tool_calls")],
            &[one, "T:ab", "tool_use"],
        ),
        ("with arguments as they are", vec![chunk(&whole, Some("tool_calls"))], &["f#c1:{\"a\":1}", "tool_use"]),
        ("cut off", vec![begin(0, "c1", "f"), more(0, "{\"a"), end("length")], &["f#c1:{\"a", "max_tokens"]),
    ];
    for (name, chunks, expected) in rows {
        assert_eq!(told(&chunks), expected, "{name}");
    }
}

#[test]
fn the_end_has_the_numbers_that_come_after_it() {
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": { "cached_tokens": 64 },
        "completion_tokens_details": { "reasoning_tokens": 4 } } });
    let events = read(&[chunk(&json!({ "content": "a" }), None), chunk(&json!({}), Some("stop")), usage]).unwrap();
    let Some(ModelEvent::End { usage, .. }) = events.last() else { panic!("no end") };
    assert_eq!((usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens), (36, 64, 7));
    assert_eq!(usage.output_tokens_details, Some(OutputTokensDetails { thinking_tokens: 4 }));
    let met = json!({ "choices": [{ "delta": { "content": "a" }, "finish_reason": "stop", "stop_reason": "END" }] });
    let Some(ModelEvent::End { stop, stop_sequence, .. }) = read(&[met]).unwrap().pop() else { panic!("no end") };
    assert_eq!((stop, stop_sequence.as_deref()), (StopReason::StopSequence, Some("END")));
}

#[test]
fn a_stream_without_done_ends_when_it_has_told_why() {
    let mut stream = Stream::default();
    stream.read(&Event { data: chunk(&json!({ "content": "a" }), None).to_string() }).unwrap();
    assert_eq!(stream.at_end(), Err(Fault::Cut));
    stream.read(&Event { data: chunk(&json!({}), Some("stop")).to_string() }).unwrap();
    assert!(matches!(stream.at_end().unwrap()[..], [ModelEvent::End { .. }]));
}

#[test]
fn what_is_wrong_is_a_fault() {
    let answer = |status| Fault::Answer { status, message: "x".into(), retry_after: None };
    for (name, chunk, fault) in [
        ("a status", json!({ "error": { "message": "x", "code": 429 } }), answer(429)),
        ("a status in words", json!({ "error": { "message": "x", "code": "503" } }), answer(503)),
        ("no status", json!({ "error": { "message": "x", "code": "context_length_exceeded" } }), answer(500)),
        (
            "no name",
            chunk(&json!({ "tool_calls": [{ "index": 0, "function": { "arguments": "{}" } }] }), Some("stop")),
            Fault::Malformed("a call has no name"),
        ),
    ] {
        assert_eq!(read(&[chunk]), Err(fault), "{name}");
    }
    let calls: Vec<Value> = (0..=MAX_CALLS).map(|index| call(Some(index as u64), Some("c"), Some("f"), "")).collect();
    assert!(matches!(read(&calls), Err(Fault::Malformed(_))));
    assert!(matches!(Stream::default().read(&Event { data: "<".into() }), Err(Fault::Malformed(_))));
}

fn any_chunk() -> impl Strategy<Value = Value> {
    let index = || prop::option::of(0u64..3);
    let id = || prop::option::of(prop::sample::select(vec!["", "c1", "c2"]));
    let name = || prop::option::of(prop::sample::select(vec!["", "f"]));
    prop_oneof![
        3 => prop::sample::select(vec!["", "a"]).prop_map(text),
        2 => Just(chunk(&json!({ "reasoning": "r" }), None)),
        6 => (index(), id(), name()).prop_map(|(index, id, name)| call(index, id, name, "{}")),
        1 => prop::sample::select(vec!["stop", "length", "tool_calls"]).prop_map(end),
        1 => Just(json!({ "choices": [{ "delta": { "tool_calls": [7, null, { "function": 7 }] } }] })),
        1 => Just(json!({ "choices": 7, "usage": { "prompt_tokens": -1 } })),
    ]
}

proptest! {
    #[test]
    fn whatever_comes_one_block_is_open_at_a_time(chunks in prop::collection::vec(any_chunk(), 0..30)) {
        let mut stream = Stream::default();
        let mut open = false;
        for chunk in chunks {
            let Ok(events) = stream.read(&Event { data: chunk.to_string() }) else { return Ok(()) };
            for event in events {
                match event {
                    ModelEvent::Open(_) => prop_assert!(!std::mem::replace(&mut open, true)),
                    ModelEvent::Delta(_) => prop_assert!(open),
                    ModelEvent::Close => prop_assert!(std::mem::replace(&mut open, false)),
                    ModelEvent::Start { .. } => prop_assert!(!open),
                    ModelEvent::End { .. } | ModelEvent::Fail(_) => prop_assert!(false, "before the end"),
                }
            }
        }
        match stream.at_end() {
            Ok(_) => prop_assert!(!open),
            Err(fault) => prop_assert_eq!(fault, Fault::Cut),
        }
    }
}
