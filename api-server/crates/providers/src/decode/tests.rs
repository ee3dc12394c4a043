//! Answers as upstreams send them, cut wherever bytes can be cut.

use engine::{BlockDelta, OpenBlock};
use proptest::prelude::*;

use super::fuzzing::{check_order, read};
use super::*;
use crate::{anthropic, openai};

type Read = fn(&[&[u8]]) -> (Vec<ModelEvent>, Option<Fault>);

fn messages(pieces: &[&[u8]]) -> (Vec<ModelEvent>, Option<Fault>) {
    read(anthropic::Stream::default(), pieces.iter().copied())
}

fn chat(pieces: &[&[u8]]) -> (Vec<ModelEvent>, Option<Fault>) {
    read(openai::Stream::default(), pieces.iter().copied())
}

macro_rules! recorded {
    ($read:expr, $name:literal, $said:expr) => {
        ($name, $read as Read, include_bytes!(concat!("recorded/", $name, ".sse")).as_slice(), $said.as_slice())
    };
}

/// Name, dialect, bytes, and what they say: blocks, then why and with which numbers of tokens (in, from the cache, out) it ended.
fn recorded() -> Vec<(&'static str, Read, &'static [u8], &'static [&'static str])> {
    vec![
        recorded!(
            messages,
            "anthropic_calls",
            [
                "thinking Zwei Befehle genügen.|EqQBCg==",
                "text Größe → 😀",
                r#"bash_code_execution#toolu_01 {"command": "ls -l \u00e9"}"#,
                r#"get_weather#toolu_02 {"city":"Bogotá"}"#,
                "tool_use 472 128 89",
            ]
        ),
        recorded!(messages, "anthropic_overloaded", ["text Well", "answer 529 Overloaded"]),
        recorded!(
            messages,
            "anthropic_cited",
            ["text [grün]It is green.", r#"raw {"type":"redacted_thinking","data":"EmwKAhgB"}"#, "end_turn 472 128 9"]
        ),
        recorded!(
            chat,
            "chat_interleaved",
            [
                r#"bash_code_execution#call_a {"command":"echo ü"}"#,
                r#"get_weather#call_b {"city":"Oslo"}"#,
                "get_time#call_c ",
                "tool_use 146 64 61",
            ]
        ),
        recorded!(chat, "chat_reasoning", ["thinking Hm, größer.", "text Ja 🙂.", "end_turn 20 0 31"]),
        recorded!(
            chat,
            "chat_cut_arguments",
            ["text I look.", r#"bash_code_execution#call_a {"command": "echo \"half"#, "max_tokens 9 0 16"]
        ),
        recorded!(
            chat,
            "llama_cpp_cut_call",
            [r#"bash_code_execution#call__0_bash { "command": "bash -c 'echo $this"#, "tool_use 0 0 0"]
        ),
        recorded!(chat, "llama_cpp_words", ["text Say hello in English", "end_turn 0 0 0"]),
        recorded!(chat, "chat_failed", ["text Well", "answer 503 Upstream is busy"]),
    ]
}

fn told((events, fault): &(Vec<ModelEvent>, Option<Fault>)) -> Vec<String> {
    check_order(events);
    let mut said: Vec<String> = Vec::new();
    for event in events {
        let more = match event {
            ModelEvent::Start { .. } | ModelEvent::Close => continue,
            ModelEvent::Open(block) => {
                said.push(match block {
                    OpenBlock::Text => "text ".into(),
                    OpenBlock::Thinking => "thinking ".into(),
                    OpenBlock::Tool { id, name } => format!("{name}#{} ", id.as_deref().unwrap_or_default()),
                    OpenBlock::Raw(block) => format!("raw {block}"),
                });
                continue;
            }
            ModelEvent::Delta(BlockDelta::Text(more) | BlockDelta::Thinking(more) | BlockDelta::Json(more)) => {
                more.clone()
            }
            ModelEvent::Delta(BlockDelta::Signature(more)) => format!("|{more}"),
            ModelEvent::Delta(BlockDelta::Citation(citation)) => {
                format!("[{}]", citation["cited_text"].as_str().unwrap())
            }
            ModelEvent::Delta(BlockDelta::Raw(delta)) => delta.to_string(),
            ModelEvent::End { stop, usage, .. } => {
                let numbers = [usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens];
                said.push(format!("{} {} {} {}", stop.name(), numbers[0], numbers[1], numbers[2]));
                continue;
            }
            ModelEvent::Fail(failure) => panic!("{failure:?}"),
        };
        said.last_mut().unwrap().push_str(&more);
    }
    if let Some(Fault::Answer { status, message, .. }) = fault {
        said.push(format!("answer {status} {message}"));
    } else {
        assert_eq!(fault, &None);
    }
    said
}

#[test]
fn recorded_answers_say_the_same_wherever_their_bytes_are_cut() {
    for (name, read, bytes, said) in recorded() {
        let whole = read(&[bytes]);
        assert_eq!(told(&whole), said, "{name}");
        for cut in 0..=bytes.len() {
            assert_eq!(read(&[&bytes[..cut], &bytes[cut..]]), whole, "{name}, cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(&single), whole, "{name}, byte by byte");
    }
}

#[test]
fn an_answer_that_breaks_off_anywhere_says_a_beginning_of_itself() {
    for (name, read, bytes, _) in recorded() {
        let whole = read(&[bytes]);
        for end in 0..bytes.len() {
            let (events, fault) = read(&[&bytes[..end]]);
            check_order(&events);
            match (events.last(), &fault) {
                // The numbers may come after the reason of the end.
                (Some(ModelEvent::End { .. }), None) => {
                    assert_eq!(events[..events.len() - 1], whole.0[..events.len() - 1], "{name}, up to {end}");
                }
                (_, Some(Fault::Cut | Fault::Answer { .. })) => {
                    assert!(whole.0.starts_with(&events), "{name}, up to {end}: {events:?}");
                }
                other => panic!("{name}, up to {end}: {other:?}"),
            }
        }
    }
}

#[test]
fn what_follows_the_end_is_not_read() {
    for (name, read, bytes, _) in recorded() {
        let whole = read(&[bytes]);
        if whole.1.is_none() {
            assert_eq!(read(&[bytes, b"data: nonsense\n\ndata: [DONE]\n\n"]), whole, "{name}");
            assert_eq!(read(&[&[bytes, b"data: nonsense\n\n"].concat()]), whole, "{name}, in one piece");
        }
    }
}

/// Lines of all recorded answers, and others that belong to none.
fn any_line() -> impl Strategy<Value = Vec<u8>> {
    let lines: Vec<Vec<u8>> = recorded()
        .iter()
        .flat_map(|(_, _, bytes, _)| bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec))
        .collect();
    prop_oneof![
        20 => prop::sample::select(lines),
        1 => prop::collection::vec(any::<u8>(), 0..12),
        1 => Just(b"\n\n".to_vec()),
    ]
}

proptest! {
    #[test]
    fn whatever_comes_its_cuts_do_not_matter_and_its_blocks_come_one_by_one(
        lines in prop::collection::vec(any_line(), 0..40),
        sizes in prop::collection::vec(1usize..200, 1..8),
    ) {
        let bytes = lines.concat();
        let (mut pieces, mut rest) = (Vec::new(), bytes.as_slice());
        for size in sizes.iter().cycle() {
            let (piece, more) = rest.split_at((*size).min(rest.len()));
            pieces.push(piece);
            rest = more;
            if rest.is_empty() { break; }
        }
        for read in [messages as Read, chat as Read] {
            let whole = read(&[&bytes]);
            check_order(&whole.0);
            prop_assert_eq!(read(&pieces), whole);
        }
    }
}
