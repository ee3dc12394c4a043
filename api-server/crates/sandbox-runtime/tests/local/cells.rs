//! Cells of a real interpreter in a real sandbox.

use crate::support::{Host, bash, text};
use sandbox_runtime::{CallResult, CellStep, Limits, Resume, RunError, RunKind, RunOutcome, RunRequest, Sandbox, Tool};
use std::collections::BTreeMap;

const LIMITS: Limits = Limits { timeout_ms: 60_000, output_bytes: 1 << 20 };

fn cell(code: &str) -> RunRequest {
    let tools = vec![Tool { name: "get_stock".into(), parameters: None }];
    RunRequest { run: RunKind::Cell { code: code.into(), tools }, env: BTreeMap::new(), limits: LIMITS }
}

async fn finished(sandbox: &Sandbox, id: &str, code: &str) -> RunOutcome {
    match sandbox.cell(id, &cell(code)).await.unwrap() {
        CellStep::Finished(outcome) => outcome,
        CellStep::Calls(calls) => panic!("{calls:?}"),
    }
}

fn resume(results: &[(u32, &str)], calls: u32) -> Resume {
    let result = |(call_id, content): &(u32, &str)| CallResult {
        call_id: *call_id,
        content: (*content).into(),
        is_error: false,
    };
    Resume { results: results.iter().map(result).collect(), calls, tools: vec!["get_stock".into()], limits: LIMITS }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_calls_the_clients_tools_and_remembers() {
    let host = Host::start().await;
    let sandbox = host.sandbox("box").await;
    assert!(host.sandboxes.has_python(), "it says what it has");
    let installed = host.sandboxes.installed().await;
    assert!(installed.libraries[0].starts_with("Python 3."), "{installed:?}");
    let expected =
        include_str!("../../../../../images/sandbox/contents.txt").lines().filter(|line| !line.starts_with('#'));
    let known = installed.libraries.len() - 1 + installed.absent.len();
    assert_eq!(known, expected.count(), "each is there or not: {installed:?}");
    let code = "import asyncio\nprint('asking')\nrows = await asyncio.gather(*[get_stock({'place': p}) for p in ('east', 'west')])\nlast = await get_stock(place='north')\nrows + [last]";
    let CellStep::Calls(calls) = sandbox.cell("c1", &cell(code)).await.unwrap() else { panic!("it did not call") };
    let places: Vec<_> = calls.iter().map(|call| (call.call_id, call.input["place"].as_str().unwrap())).collect();
    assert_eq!(places, [(0, "east"), (1, "west")]);

    // Commands and files do not wait for a cell that waits.
    assert_eq!(text(&sandbox.run("r1", &bash("echo meanwhile")).await.unwrap().stdout), "meanwhile\n");
    let CellStep::Calls(calls) = sandbox.resume("c1", &resume(&[(0, "7"), (1, "3")], 2)).await.unwrap() else {
        panic!("it did not call again");
    };
    assert_eq!((calls.len(), calls[0].call_id), (1, 2));
    for _ in 0..2 {
        // The second time everything is known already.
        let CellStep::Finished(outcome) = sandbox.resume("c1", &resume(&[(2, "9")], 3)).await.unwrap() else {
            panic!("it did not end");
        };
        assert_eq!((text(&outcome.stdout).as_str(), outcome.exit.code), ("asking\n['7', '3', '9']\n", 0));
    }
    assert_eq!(text(&finished(&sandbox, "c2", "rows").await.stdout), "['7', '3']\n");
    let where_and_who = "import os\nprint(os.getcwd(), os.getuid(), os.path.isdir(os.environ['OUTPUT_DIR']))";
    assert_eq!(text(&finished(&sandbox, "c3", where_and_who).await.stdout), "/home/agent/workspace 1000 True\n");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_whose_sandbox_was_killed_while_it_waited_is_unknown() {
    let host = Host::start().await;
    let sandbox = host.sandbox("box").await;
    let step = sandbox.cell("c1", &cell("x = await get_stock({})")).await.unwrap();
    assert!(matches!(step, CellStep::Calls(_)));
    host.kill("main");
    crate::support::until(|| host.processes().iter().all(|process| process.half != "main")).await;
    let lost = sandbox.resume("c1", &resume(&[(0, "7")], 1)).await;
    assert!(matches!(lost, Err(RunError::Unknown(_))), "{lost:?}");
    // The next start knows nothing of it.
    assert_eq!(text(&finished(&sandbox, "c2", "'x' in globals()").await.stdout), "False\n");
    host.stop().await;
}
