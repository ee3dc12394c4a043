//! Cells that stop for calls and go on, over streams that break.

use super::{Act, Fake, HELLO, OUTPUT, request, sandbox};
use sandbox_runtime::{CallResult, CellStep, Limits, Resume, RunError, RunKind, RunRequest, Tool};
use sandboxd_protocol::ErrorCode;
use std::sync::Arc;

fn cell(tool: &str) -> RunRequest {
    let tools = vec![Tool { name: tool.into(), parameters: None }];
    RunRequest { run: RunKind::Cell { code: "await t()".into(), tools }, ..request(60_000, 1000) }
}

fn results(calls: u32) -> Resume {
    let results = (0..calls).map(|call_id| CallResult { call_id, content: "r".into(), is_error: false }).collect();
    let limits = Limits { timeout_ms: 60_000, output_bytes: 1000 };
    Resume { results, calls, tools: vec!["t".into()], limits }
}

async fn start(fake: &Arc<Fake>) -> Result<CellStep, RunError> {
    sandbox(fake).await.cell("c1", &cell("t")).await
}

async fn resume(fake: &Arc<Fake>) -> Result<CellStep, RunError> {
    sandbox(fake).await.resume("c1", &results(2)).await
}

fn ids(step: Result<CellStep, RunError>) -> Vec<u32> {
    match step {
        Ok(CellStep::Calls(calls)) => calls.iter().map(|call| call.call_id).collect(),
        other => panic!("{other:?}"),
    }
}

fn output(step: Result<CellStep, RunError>) -> Vec<u8> {
    match step {
        Ok(CellStep::Finished(outcome)) => outcome.stdout.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_cell_stops_at_its_calls_is_not_cancelled_and_goes_on_with_results() {
    let fake = Fake::new([Act::Calls, Act::Whole, Act::Calls, Act::Whole, Act::Whole]);
    assert_eq!(ids(start(&fake).await), [0, 1]);
    assert_eq!(ids(resume(&fake).await), [2, 3]);
    assert_eq!(output(sandbox(&fake).await.resume("c1", &results(4)).await), OUTPUT.as_bytes());
    let expected = [
        "PUT /runs/c1",
        "POST /runs/c1/calls",
        "GET /runs/c1?out=0&err=0&calls=2",
        "POST /runs/c1/calls",
        "GET /runs/c1?out=0&err=0&calls=4",
    ];
    assert_eq!(fake.log(), expected);
}

#[tokio::test(start_paused = true)]
async fn what_was_lost_with_a_stream_is_asked_for_or_handed_over_again() {
    let fake = Fake::new([Act::PartThenCut, Act::Calls]);
    assert_eq!(ids(start(&fake).await), [0, 1]);
    // Whether the part arrived before the cut is chance.
    let log = fake.log();
    assert_eq!((log.len(), fake.count("PUT"), log[1].ends_with("&err=0&calls=0")), (2, 1, true), "{log:?}");

    let fake = Fake::new([Act::Cut, Act::Whole, Act::PartThenCut, Act::Whole]);
    assert_eq!(output(resume(&fake).await), OUTPUT.as_bytes());
    assert_eq!((fake.count("POST"), fake.count("GET"), fake.count("PUT")), (2, 2, 0), "{:?}", fake.log());
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_the_sandbox_does_not_know_is_unknown_and_never_sent_again() {
    let fake = Fake::new([Act::Refuse(ErrorCode::NotFound)]);
    assert!(matches!(resume(&fake).await, Err(RunError::Unknown(_))));
    let fake = Fake::new([Act::Whole, Act::Cut, Act::Refuse(ErrorCode::NotFound)]);
    assert!(matches!(resume(&fake).await, Err(RunError::Unknown(_))));
    assert_eq!((fake.count("PUT"), fake.count("GET")), (0, 2));
    for act in [Act::Cut, Act::Whole] {
        let fake = Fake::new([act, Act::Cut]);
        fake.hello.lock().unwrap().extend([HELLO, "sandboxd proto=1 boot=0b\n"]);
        assert!(matches!(resume(&fake).await, Err(RunError::Unknown(_))), "{act:?}");
        assert_eq!(fake.count("POST"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_nobody_offered_end_in_a_replaced_sandbox() {
    let fake = Fake::new([Act::Calls]);
    let step = sandbox(&fake).await.cell("c1", &cell("other")).await;
    assert!(matches!(step, Err(RunError::Unknown(_))), "{step:?}");
    assert_eq!(fake.replaced.lock().unwrap().len(), 1);

    let fake = Fake::new([Act::Calls]);
    let outcome = sandbox(&fake).await.run("r1", &request(60_000, 1000)).await;
    assert!(matches!(outcome, Err(RunError::Unknown(_))), "{outcome:?}");
    assert_eq!(fake.replaced.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_start_cancels_the_cell_and_a_dropped_continuation_does_not() {
    for (acts, cancelled) in [(vec![Act::Hang], true), (vec![Act::Whole, Act::Hang], false)] {
        let fake = Fake::new(acts);
        let sandbox = sandbox(&fake).await;
        let requests = if cancelled { 1 } else { 2 };
        let heard = fake.until(|fake| fake.log().len() == requests);
        let (request, results) = (cell("t"), results(2));
        tokio::select! {
            step = sandbox.cell("c1", &request), if cancelled => panic!("{step:?}"),
            step = sandbox.resume("c1", &results), if !cancelled => panic!("{step:?}"),
            () = heard => {}
        }
        let deleted = fake.until(|fake| fake.count("DELETE") == 1);
        let deleted = tokio::time::timeout(std::time::Duration::from_mins(1), deleted).await;
        assert_eq!(deleted.is_ok(), cancelled, "{:?}", fake.log());
    }
}
