//! Calls of the client's tools.

use super::{SOON, answer, calling, cell, cell_with, run, state, until_waiting};
use crate::common::{self, Client, Sandbox, eventually, is_running, make_claim};
use hyper::{HeaderMap, Method, StatusCode};
use sandboxd_protocol::{Exit, Limits, RunKind, RunRequest, Tool};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[tokio::test]
async fn gathered_calls_come_at_once_and_their_results_go_on() {
    let sandbox = Sandbox::main().await;
    let code = "import asyncio\nr = await asyncio.gather(*[get_stock({'place': p}) for p in 'abc'])\nr";
    let following = calling(&sandbox, "c1", &cell_with(code, &["get_stock"]), 3).await;
    let calls: Vec<_> =
        following.seen.calls.iter().map(|c| (c.call_id, c.name.clone(), c.input["place"].clone())).collect();
    let expected = ["a", "b", "c"].iter().zip(0..).map(|(p, n)| (n, "get_stock".to_owned(), json!(p)));
    assert_eq!(calls, expected.collect::<Vec<_>>());
    until_waiting(&sandbox.client).await;
    let waiting = state(&sandbox.client).await.cell.unwrap();
    assert_eq!((waiting.run.as_str(), waiting.calls.len()), ("c1", 3));

    assert_eq!(answer(&sandbox.client, "c1", &[(1, "one")]).await, StatusCode::NO_CONTENT);
    assert_eq!(
        answer(&sandbox.client, "c1", &[(0, "zero"), (1, "one"), (2, "Error: €")]).await,
        StatusCode::NO_CONTENT
    );
    let outcome = following.end().await;
    assert_eq!((outcome.text().as_str(), outcome.code()), ("['zero', 'one', 'Error: €']\n", 0));
    // Also after the end.
    assert_eq!(answer(&sandbox.client, "c1", &[(0, "zero")]).await, StatusCode::NO_CONTENT);
    assert_eq!(answer(&sandbox.client, "c1", &[(0, "other")]).await, StatusCode::CONFLICT);
    assert_eq!(answer(&sandbox.client, "c1", &[(3, "x")]).await, StatusCode::NOT_FOUND);
    assert_eq!(answer(&sandbox.client, "c9", &[(0, "x")]).await, StatusCode::NOT_FOUND);
    assert_eq!(state(&sandbox.client).await.cell, None);
}

#[tokio::test]
async fn calls_one_after_another_come_in_rounds_and_a_joiner_gets_the_later_ones() {
    let sandbox = Sandbox::listening("main", &[]).await;
    let code = "for n in range(3):\n    print(await t(n=n), flush=True)";
    let mut following = calling(&sandbox, "c1", &cell_with(code, &["t"]), 1).await;
    assert_eq!(answer(&sandbox.client, "c1", &[(0, "r0")]).await, StatusCode::NO_CONTENT);
    following.until(|seen| seen.calls.len() == 2).await;
    drop(following);
    let joined = sandbox.client.follow(Method::GET, "/runs/c1?out=3&err=0&calls=1", Vec::new()).await;
    let mut joined = joined.unwrap();
    joined.until(|seen| !seen.calls.is_empty()).await;
    assert_eq!(joined.seen.calls.iter().map(|call| call.input["n"].clone()).collect::<Vec<_>>(), [json!(1)]);
    answer(&sandbox.client, "c1", &[(1, "r1")]).await;
    joined.until(|seen| seen.calls.len() == 2).await;
    answer(&sandbox.client, "c1", &[(2, "r2")]).await;
    assert_eq!(joined.end().await.text(), "r1\nr2\n");
}

#[tokio::test]
async fn tools_can_be_called_from_loops_of_the_codes_own() {
    let sandbox = Sandbox::main().await;
    let code = "import asyncio\nasync def main():\n    return await asyncio.gather(t({'n': 1}), t({'n': 2}))\nasyncio.run(main())";
    let following = calling(&sandbox, "c1", &cell_with(code, &["t"]), 2).await;
    answer(&sandbox.client, "c1", &[(0, "a"), (1, "b")]).await;
    assert_eq!(following.end().await.text(), "['a', 'b']\n");
    let code = "import threading\nfound = []\nth = threading.Thread(target=lambda: found.append(asyncio.run(main())))\nth.start()\nth.join()\nfound";
    let following = calling(&sandbox, "c2", &cell_with(code, &["t"]), 2).await;
    answer(&sandbox.client, "c2", &[(0, "a"), (1, "b")]).await;
    assert_eq!(following.end().await.text(), "[['a', 'b']]\n");
}

#[tokio::test]
async fn the_argument_of_a_call_is_checked_before_it_is_sent() {
    let sandbox = Sandbox::main().await;
    let schema =
        json!({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"], "additionalProperties": false});
    let request = |code: &str| RunRequest {
        run: RunKind::Cell {
            code: code.into(),
            tools: vec![Tool { name: "t".into(), parameters: Some(schema.clone()) }],
        },
        ..cell("")
    };
    for (n, (code, says)) in [
        ("await t({})", "TypeError: t() needs 'a'\n"),
        ("await t({'a': 1, 'c': 2})", "TypeError: t() does not know 'c'; it knows 'a', 'b'\n"),
        ("await t(1)", "TypeError: t() takes one dict, or keyword arguments\n"),
        ("await t(a=float('nan'))", "cannot be sent as JSON: Out of range float values are not JSON compliant"),
        ("await t(a={1, 2})", "TypeError: the argument of t cannot be sent as JSON: "),
        ("await t(a='\\ud800')", "TypeError: the argument of t cannot be sent as JSON: "),
        ("await t(a=10**400)", "TypeError: the argument of t cannot be sent as JSON: a number is too large\n"),
        ("x = []\nfor n in range(100): x = [x]\nawait t(a=x)", "it is nested deeper than 64\n"),
        ("await t(a='x' * 70000)", "RuntimeError: tool calls at a time may have "),
        (
            "import asyncio\nawait asyncio.gather(*[t(a=n) for n in range(129)])",
            "RuntimeError: 128 tool calls wait for results",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let outcome = sandbox.client.run(&format!("c{n}"), &request(code)).await;
        assert!(outcome.error_text().contains(says), "{code}: {}", outcome.error_text());
        assert_eq!(outcome.code(), 1, "{code}");
        assert!(!outcome.error_text().contains("sandboxd"), "{}", outcome.error_text());
    }
}

#[tokio::test]
async fn tools_are_named_as_python_can_and_go_with_their_cell() {
    let sandbox = Sandbox::main().await;
    let request =
        cell_with("import asyncio\nawait asyncio.gather(get_it(), _2nd(), class_())", &["get-it", "2nd", "class"]);
    let following = calling(&sandbox, "c1", &request, 3).await;
    let names: Vec<_> = following.seen.calls.iter().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["get-it", "2nd", "class"]);
    answer(&sandbox.client, "c1", &[(0, ""), (1, ""), (2, "")]).await;
    assert_eq!(following.end().await.code(), 0);
    let kept = sandbox.client.run("c2", &cell_with("kept = get_it\n'_2nd' in globals()", &["get-it"])).await;
    assert_eq!(kept.text(), "False\n");
    let gone = run(&sandbox, "c3", "'get_it' in globals()").await;
    assert_eq!(gone.text(), "False\n");
    let refused = run(&sandbox, "c4", "await kept()").await;
    assert!(refused.error_text().ends_with("RuntimeError: the tool 'get-it' is not offered now\n"));
}

#[tokio::test]
async fn the_clock_stands_still_while_a_cell_waits() {
    let sandbox = Sandbox::main().await;
    let code = "r = await t()\nwhile True: pass";
    let request = RunRequest { limits: Limits { timeout_ms: 3000, output_bytes: 100 }, ..cell_with(code, &["t"]) };
    let mut following = calling(&sandbox, "c1", &request, 1).await;
    let waited = tokio::time::timeout(Duration::from_millis(3500), following.until(|seen| seen.exit.is_some())).await;
    assert!(waited.is_err(), "{:?}", following.seen);
    let start = Instant::now();
    answer(&sandbox.client, "c1", &[(0, "r")]).await;
    let exit = following.end().await.exit.unwrap();
    assert!(exit.timed_out && start.elapsed() < SOON, "{exit:?} {:?}", start.elapsed());
    assert_eq!(run(&sandbox, "c2", "r").await.text(), "'r'\n");
}

#[tokio::test]
async fn a_call_without_a_result_ends_in_an_exception() {
    let sandbox = Sandbox::start("main", &["--call-timeout-ms", "300"], make_claim()).await;
    let outcome = sandbox.client.run("c1", &cell_with("await get_stock({})", &["get_stock"])).await;
    let text = "TimeoutError: Calling tool ['get_stock'] timed out (no response after 0.3s).\n";
    assert!(
        outcome.error_text().ends_with(text) && !outcome.error_text().contains("sandboxd"),
        "{}",
        outcome.error_text()
    );
    assert_eq!((outcome.code(), outcome.calls.len()), (1, 1));
    assert_eq!(answer(&sandbox.client, "c1", &[(0, "late")]).await, StatusCode::NO_CONTENT);
    assert_eq!(run(&sandbox, "c2", "'fine'").await.text(), "'fine'\n");
}

#[tokio::test]
async fn a_newer_cell_ends_one_that_waits_for_results() {
    let sandbox = Sandbox::main().await;
    let code = "x = 5\ntry:\n    await t()\nfinally:\n    y = 6";
    let following = calling(&sandbox, "c1", &cell_with(code, &["t"]), 1).await;
    until_waiting(&sandbox.client).await;
    let next = run(&sandbox, "c2", "x, y").await;
    assert_eq!((next.text().as_str(), next.exit), ("(5, 6)\n", Some(Exit::default())));
    let exit = following.end().await.exit.unwrap();
    assert_eq!(exit, Exit { code: 130, superseded: true, ..Exit::default() });
    // Results that come now are late, and meet nobody.
    assert_eq!(answer(&sandbox.client, "c1", &[(0, "r")]).await, StatusCode::NO_CONTENT);
    let again = calling(&sandbox, "c3", &cell_with("await t()", &["t"]), 1).await;
    assert_eq!(answer(&sandbox.client, "c3", &[(0, "mine")]).await, StatusCode::NO_CONTENT);
    assert_eq!(again.end().await.text(), "'mine'\n");
}

#[tokio::test]
async fn a_cell_that_waits_is_not_abandoned_until_it_goes_on() {
    let sandbox = Sandbox::listening("main", &["--abandoned-after-ms", "300"]).await;
    let first = Client::connect(&sandbox.socket()).await;
    let request = cell_with("x = await t()\nopen('on', 'w').close()\nimport time\ntime.sleep(30)", &["t"]);
    let mut following = first.start("c1", &request).await.unwrap();
    following.until(|seen| !seen.calls.is_empty()).await;
    until_waiting(&sandbox.client).await;
    drop(following);
    first.cut().await;
    let on = sandbox.path("workspace/on");
    assert!(!eventually(Duration::from_millis(900), || on.exists()).await);
    assert!(state(&sandbox.client).await.cell.is_some());
    assert_eq!(answer(&sandbox.client, "c1", &[(0, "r")]).await, StatusCode::NO_CONTENT);
    assert!(eventually(SOON, || on.exists()).await);
    let end = Instant::now() + SOON;
    while state(&sandbox.client).await.running > 0 {
        assert!(Instant::now() < end);
    }
    let joined = sandbox.client.join("c1", 0, 0).await.unwrap().end().await;
    assert_eq!(joined.exit, Some(Exit { code: 130, abandoned: true, ..Exit::default() }));
    assert_eq!(run(&sandbox, "c2", "x").await.text(), "'r'\n");
}

#[tokio::test]
async fn sigterm_ends_a_cell_that_waits_and_its_interpreter() {
    let mut sandbox = Sandbox::main().await;
    let request = cell_with("import subprocess\nsubprocess.Popen(['sleep', '3113'])\nawait t()", &["t"]);
    let following = calling(&sandbox, "c1", &request, 1).await;
    assert!(eventually(SOON, || is_running("3113")).await);
    let start = Instant::now();
    sandbox.process.terminate();
    assert_eq!(following.end().await.exit.unwrap().signal, Some(9));
    assert!(sandbox.process.ended_within(SOON).await);
    assert!(start.elapsed() < Duration::from_secs(3) && !is_running("3113"));
}

#[tokio::test]
async fn large_results_and_code_arrive_whole() {
    let sandbox = Sandbox::main().await;
    let code = format!("text = '{}'\nr = await t()\nlen(r), len(text)", "c".repeat(3_000_000));
    let following = calling(&sandbox, "c1", &cell_with(&code, &["t"]), 1).await;
    let content = "é".repeat(2_000_000);
    assert_eq!(answer(&sandbox.client, "c1", &[(0, &content)]).await, StatusCode::NO_CONTENT);
    assert_eq!(following.end().await.text(), "(2000000, 3000000)\n");
    let nothing: Value = json!({"results": []});
    let body = common::full(nothing.to_string());
    let nothing = sandbox.client.call(Method::POST, "/runs/c1/calls", HeaderMap::new(), body);
    assert_eq!(common::whole(nothing).await.0, StatusCode::NO_CONTENT);
}
