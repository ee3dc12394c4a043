//! Upstreams that fail, clients that go away, servers that stop.

use super::*;

fn failing(status: u16) -> String {
    fenced("turn", &format!("{{\"error\":{{\"status\":{status}}}}}"))
}

fn shut_down() -> ApiError {
    ApiError::new(wire::ErrorType::Overloaded, "The server is shutting down.")
}

#[test]
fn a_failure_before_the_first_event_is_an_http_status_after_two_retries() {
    for (surface, status, samples) in
        [(Surface::Anthropic, 529, 3), (Surface::Anthropic, 401, 1), (Surface::Zylon, 500, 3)]
    {
        let driven = Rig { surface, ..Rig::default() }.drive(&ask(DATED, &failing(status))).unwrap();
        assert_eq!(driven.samples.len(), samples, "{status}");
        assert!(driven.events.is_empty());
        assert_eq!(driven.answer().unwrap_err().status(), status);
        assert!(matches!(driven.end, TurnEnd::Failed { started: false, .. }));
    }
}

#[test]
fn a_failure_in_the_middle_is_an_error_event() {
    let script = "{\"text\":\"Well, this begins\"}\n{\"error\":{\"status\":529}}";
    let driven = Rig::default().drive(&ask(DATED, &fenced("turn", script))).unwrap();
    assert_eq!(driven.samples.len(), 1, "what was said is not said twice");
    let Some(StreamEvent::Error(error)) = driven.events.last() else { panic!("no error event") };
    assert_eq!(error.kind, wire::ErrorType::Overloaded);
    assert_eq!(driven.answer().unwrap_err().status(), 529);
}

#[test]
fn on_the_zylon_surface_the_message_holds_the_error_and_every_call_a_result() {
    let script = "{\"text\":\"Hm\"}\n{\"tool\":\"bash_code_execution\",\"input\":{\"command\":\"ls\"}}\n{\"error\":{\"status\":500}}";
    let driven = Rig::zylon().drive(&ask(V1, &fenced("turn", script))).unwrap();
    let body = driven.body();
    assert_eq!((&body["stop_reason"], &body["interaction_stop_reason"]), (&Value::Null, &json!("error")));
    assert_eq!(body["errors"][0]["type"], "api_error");
    assert_eq!(driven.kinds(), ["text", "server_tool_use", "bash_code_execution_tool_result"]);
    let names: Vec<_> = driven.events.iter().rev().take(3).map(StreamEvent::name).collect();
    assert_eq!(names, ["message_stop", "error", "message_delta"]);
}

#[test]
fn a_later_sampling_is_retried_while_nothing_of_it_was_said() {
    let body = ask(DATED, &format!("{}{}", fenced("bash", "ls"), failing(529)));
    let driven = Rig::default().drive(&body).unwrap();
    assert_eq!(driven.samples.len(), 1 + 3);
    assert!(matches!(driven.events.last(), Some(StreamEvent::Error(_))));
    assert_eq!(driven.runs.len(), 1, "the command does not run again");
}

#[test]
fn the_error_may_come_after_a_number_of_events() {
    let script = "{\"text\":\"Never heard\"}\n{\"error\":{\"status\":503,\"after\":0}}";
    let driven = Rig::default().drive(&ask(DATED, &fenced("turn", script))).unwrap();
    assert!(driven.events.is_empty());
    let script = "{\"text\":\"Heard in part only, for it is long\"}\n{\"error\":{\"status\":503,\"after\":3}}";
    let driven = Rig::zylon().drive(&ask(V1, &fenced("turn", script))).unwrap();
    assert_eq!(driven.content()[0]["text"], "Heard in part only, for ");
}

#[test]
fn a_client_that_is_gone_ends_the_work() {
    let (mut turn, _) = Turn::new(Rig::default().plan(&ask(DATED, "hi")).unwrap());
    assert_eq!(turn.step(Input::ClientGone), [Action::CancelModel, Action::Done(TurnEnd::Cancelled)]);
    assert_eq!(turn.step(Input::ClientGone), []);

    let (mut turn, id) = running(&Rig::default(), DATED);
    assert_eq!(turn.step(Input::ClientGone), [Action::CancelRun(id.clone()), Action::Done(TurnEnd::Cancelled)]);
    assert_eq!(turn.step(Input::Result { id, outcome: ok("late") }), []);
}

/// A turn whose first command runs.
fn running(rig: &Rig<'_>, kind: &str) -> (Turn, String) {
    let (mut turn, actions) = Turn::new(rig.plan(&ask(kind, &fenced("bash", "ls"))).unwrap());
    let Some(Action::Sample(request)) = actions.first() else { panic!("the model is asked first") };
    for step in crate::demo::respond(request) {
        if let crate::demo::Step::Event(event) = step {
            for action in turn.step(Input::Model(event)) {
                if let Action::Run(call) = action {
                    return (turn, call.id);
                }
            }
        }
    }
    panic!("nothing ran");
}

#[test]
fn a_server_that_stops_says_so() {
    let (mut turn, id) = running(&Rig::default(), DATED);
    let actions = turn.step(Input::Cancel(shut_down()));
    assert_eq!(actions[0], Action::CancelRun(id));
    assert_eq!(actions[1], Action::Emit(StreamEvent::Error(Box::new(shut_down()))));
    assert_eq!(actions[2], Action::Done(TurnEnd::Failed { error: shut_down(), started: true }));

    let (mut turn, id) = running(&Rig::zylon(), V1);
    let actions = turn.step(Input::Cancel(shut_down()));
    assert!(matches!(&actions[1], Action::Emit(StreamEvent::BlockStart { block, .. })
        if matches!(block.as_ref(), ContentBlock::BashCodeExecutionToolResult { tool_use_id, .. } if *tool_use_id == id)));
    let Action::Emit(StreamEvent::MessageDelta(delta)) = &actions[3] else { panic!("{actions:?}") };
    assert_eq!(delta.interaction_stop_reason, Some(wire::InteractionStopReason::Cancelled));
    assert_eq!(actions.last(), Some(&Action::Done(TurnEnd::Cancelled)));
}

#[test]
fn results_of_other_calls_are_ignored() {
    let (mut turn, id) = running(&Rig::default(), DATED);
    assert_eq!(turn.step(Input::Result { id: "srvtoolu_other".into(), outcome: ok("x") }), []);
    assert_eq!(turn.step(Input::Model(ModelEvent::Close)), []);
    assert!(!turn.step(Input::Result { id, outcome: ok("x") }).is_empty());
}

#[test]
fn a_refusal_leaves_no_call_without_a_result() {
    let script = "{\"tool\":\"bash_code_execution\",\"input\":{\"command\":\"ls\"}}\n{\"stop\":\"refusal\"}";
    let driven = Rig::default().drive(&ask(DATED, &fenced("turn", script))).unwrap();
    assert_eq!(driven.kinds(), ["server_tool_use", "bash_code_execution_tool_result"]);
    assert!(driven.runs.is_empty());
    assert_eq!(driven.stop(), "refusal");
}

#[test]
fn a_lost_sandbox_is_a_result_and_the_turn_goes_on() {
    let lost = |_: &ServerCall| {
        let explanation = "The sandbox ran out of memory.".into();
        ToolOutcome::Failed(ToolFailure { kind: FailureKind::Unavailable, explanation })
    };
    let body = fenced("bash", "ls");
    let dated = Rig { sandbox: Box::new(lost), ..Rig::default() }.drive(&ask(DATED, &body)).unwrap();
    assert_eq!(
        dated.content()[1]["content"],
        json!({ "type": "bash_code_execution_tool_result_error", "error_code": "unavailable" })
    );
    let v1 = Rig { sandbox: Box::new(lost), ..Rig::zylon() }.drive(&ask(V1, &body)).unwrap();
    assert_eq!(v1.content()[1]["content"]["detail"]["explanation"], "The sandbox ran out of memory.");
    assert_eq!((dated.stop().as_str(), v1.stop().as_str()), ("end_turn", "end_turn"));
}

#[test]
fn a_failure_is_retried_by_the_same_request() {
    let (mut turn, actions) = Turn::new(Rig::default().plan(&ask(DATED, "hi")).unwrap());
    let failure = ModelFailure { error: shut_down(), retryable: true };
    assert_eq!(turn.step(Input::Model(ModelEvent::Open(OpenBlock::Text))).len(), 1, "message_start only");
    assert_eq!(turn.step(Input::Model(ModelEvent::Fail(failure.clone()))), actions);
    turn.step(Input::Model(ModelEvent::Open(OpenBlock::Text)));
    turn.step(Input::Model(ModelEvent::Delta(BlockDelta::Text("x".into()))));
    let actions = turn.step(Input::Model(ModelEvent::Fail(failure)));
    assert!(matches!(actions.last(), Some(Action::Done(TurnEnd::Failed { started: true, .. }))), "{actions:?}");
}
