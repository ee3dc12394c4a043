//! Whatever an upstream sends, in whatever order, the stream stays well-formed.

use proptest::prelude::*;

use super::*;
use crate::testing::assert_well_formed;
use crate::{CallInput, CodeCall};
use serde_json::Map;

/// `None`: the sandbox answers, if it was asked.
fn event() -> impl Strategy<Value = Option<ModelEvent>> {
    let open = |block: OpenBlock| Just(Some(ModelEvent::Open(block)));
    let tool = |name: &str| open(OpenBlock::Tool { id: Some("call_0".into()), name: name.into() });
    let delta = |delta: BlockDelta| Just(Some(ModelEvent::Delta(delta)));
    let stops = vec![
        StopReason::EndTurn,
        StopReason::ToolUse,
        StopReason::MaxTokens,
        StopReason::Refusal,
        StopReason::PauseTurn,
    ];
    prop_oneof![
        2 => Just(Some(ModelEvent::Start { usage: Usage { input_tokens: 3, ..Usage::default() } })),
        3 => open(OpenBlock::Text),
        2 => open(OpenBlock::Thinking),
        1 => open(OpenBlock::Raw(json!({ "type": "redacted_thinking", "data": "x" }))),
        1 => open(OpenBlock::Raw(json!({ "type": "server_tool_use" }))),
        3 => tool("bash_code_execution"),
        2 => tool("text_editor_code_execution"),
        2 => tool("code_execution"),
        2 => tool("get_weather"),
        1 => tool("unknown"),
        3 => delta(BlockDelta::Text("a".into())),
        1 => delta(BlockDelta::Text(String::new())),
        2 => delta(BlockDelta::Thinking("t".into())),
        1 => delta(BlockDelta::Signature("s".into())),
        1 => delta(BlockDelta::Citation(json!({}))),
        1 => delta(BlockDelta::Raw(json!({ "type": "new_delta" }))),
        3 => delta(BlockDelta::Json("{\"command\":\"ls\"}".into())),
        1 => delta(BlockDelta::Json("{\"command\":\"view\",\"path\":\"a\"}".into())),
        2 => delta(BlockDelta::Json("{\"code\":\"x\"}".into())),
        1 => delta(BlockDelta::Json("{".into())),
        5 => Just(Some(ModelEvent::Close)),
        2 => prop::sample::select(stops).prop_map(|stop| Some(ModelEvent::End {
            stop,
            stop_sequence: None,
            stop_details: None,
            usage: Usage { output_tokens: 5, ..Usage::default() },
        })),
        1 => any::<bool>().prop_map(|retryable| Some(ModelEvent::Fail(ModelFailure {
            error: ApiError::new(wire::ErrorType::Api, "x"),
            retryable,
        }))),
        4 => Just(None),
    ]
}

/// What the world around a turn has seen of it.
#[derive(Default)]
struct World {
    stream: Vec<StreamEvent>,
    running: Option<ServerCall>,
    samples: u32,
    end: Option<TurnEnd>,
}

impl World {
    fn take(&mut self, actions: Vec<Action>) {
        for action in actions {
            assert!(self.end.is_none(), "nothing follows Done");
            match action {
                Action::Emit(event) => self.stream.push(event),
                Action::Sample(_) => {
                    assert!(self.running.is_none(), "either the model or the sandbox works");
                    self.samples += 1;
                }
                Action::Run(call) => assert!(self.running.replace(call).is_none(), "one command at a time"),
                Action::CancelModel | Action::CancelRun(_) => {}
                Action::Done(how) => self.end = Some(how),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn streams_are_well_formed_and_answers_replay(
        events in prop::collection::vec(event(), 0..60),
        zylon in any::<bool>(),
        cells in any::<bool>(),
        // Whether cells call the client's tools.
        calls in any::<bool>(),
        samplings in 1u32..4,
        gone in any::<bool>(),
    ) {
        let rig = if zylon { Rig::zylon() } else { Rig::default() };
        let rig = Rig { max_samplings: samplings, ..rig };
        let kind = if cells { REPL } else if zylon { V1 } else { DATED };
        let mut body = ask(kind, "hi");
        body["tools"] = json!([code_tool(kind), weather()]);
        if cells {
            body["tools"][1]["allowed_callers"] = json!(["direct", "code_execution_20260521"]);
        }
        let mut world = World::default();
        let (mut turn, actions) = Turn::new(rig.plan(&body).unwrap());
        world.take(actions);
        for event in events {
            let input = match event {
                Some(event) => Input::Model(event),
                None => match world.running.take() {
                    Some(ServerCall { id, input: CallInput::Cell(_), .. }) if calls => {
                        let call = |number| CodeCall { number, name: "get_weather".into(), input: Map::new() };
                        Input::Calls { id, calls: vec![call(0), call(1)] }
                    }
                    Some(call) => Input::Result { id: call.id, outcome: ok("x") },
                    None => continue,
                },
            };
            world.take(turn.step(input));
        }
        let samples = world.samples;
        let shut_down = ApiError::new(wire::ErrorType::Overloaded, "bye");
        world.take(turn.step(if gone { Input::ClientGone } else { Input::Cancel(shut_down) }));
        prop_assert_eq!(world.samples, samples, "no new work for a stopped turn");
        prop_assert!(samples <= samplings + RETRIES);
        let end = world.end.clone().expect("every turn ends");
        assert_well_formed(&world.stream, end == TurnEnd::Finished);
        if end == TurnEnd::Finished {
            let driven = Driven { events: world.stream, end, samples: Vec::new(), runs: Vec::new(), surface: rig.surface };
            let content = driven.content();
            prop_assert!(!content.iter().any(|block| block["type"] == "text" && block["text"] == ""));
            let results: Vec<Value> = content
                .iter()
                .filter(|block| block["type"] == "tool_use")
                .map(|call| json!({ "type": "tool_result", "tool_use_id": call["id"], "content": "r" }))
                .collect();
            let user = if results.is_empty() { json!("next") } else { json!(results) };
            let mut next = reply(&body, &driven, Some(user));
            next["container"] = driven.body()["container"]["id"].clone();
            let replayed = rig.plan(&next);
            prop_assert!(replayed.is_ok(), "{:?} {content:?}", replayed.err());
        }
    }
}
