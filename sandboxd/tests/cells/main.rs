//! Cells, with the real binary and this machine's Python.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test ends by a panic")]

mod calls;
#[path = "../common/mod.rs"]
mod common;
mod trouble;

use common::{Client, Following, Outcome, SOON, Sandbox};
use hyper::{HeaderMap, Method, StatusCode};
use sandboxd_protocol::{CallResult, CallResults, ErrorCode, Exit, Limits, RunKind, RunRequest, State, Tool};
use std::{collections::BTreeMap, time::Instant};

fn cell(code: &str) -> RunRequest {
    cell_with(code, &[])
}

fn cell_with(code: &str, tools: &[&str]) -> RunRequest {
    let tools = tools.iter().map(|name| Tool { name: (*name).into(), parameters: None }).collect();
    RunRequest {
        run: RunKind::Cell { code: code.into(), tools },
        env: BTreeMap::new(),
        limits: Limits { timeout_ms: 30_000, output_bytes: 1 << 20 },
    }
}

fn timed(code: &str, timeout_ms: u64) -> RunRequest {
    RunRequest { limits: Limits { timeout_ms, output_bytes: 1 << 20 }, ..cell(code) }
}

async fn run(sandbox: &Sandbox, id: &str, code: &str) -> Outcome {
    sandbox.client.run(id, &cell(code)).await
}

/// Starts a cell and follows it until it makes this many calls.
async fn calling(sandbox: &Sandbox, id: &str, request: &RunRequest, calls: usize) -> Following {
    let mut following = sandbox.client.start(id, request).await.unwrap();
    following.until(|seen| seen.calls.len() >= calls || seen.exit.is_some()).await;
    assert_eq!(following.seen.calls.len(), calls, "{:?}", following.seen);
    following
}

async fn answer(client: &Client, id: &str, results: &[(u32, &str)]) -> StatusCode {
    let result = |(call_id, content): &(u32, &str)| CallResult {
        call_id: *call_id,
        content: (*content).into(),
        is_error: content.starts_with("Error"),
    };
    let body = serde_json::to_vec(&CallResults { results: results.iter().map(result).collect() }).unwrap();
    let path = format!("/runs/{id}/calls");
    common::whole(client.call(Method::POST, &path, HeaderMap::new(), common::full(body))).await.0
}

async fn state(client: &Client) -> State {
    serde_json::from_slice(&client.simple(Method::GET, "/state").await.1).unwrap()
}

/// Waits until the cell does nothing but wait for results.
async fn until_waiting(client: &Client) {
    let end = Instant::now() + SOON;
    while state(client).await.cell.is_none() {
        assert!(Instant::now() < end, "{:?}", state(client).await);
    }
}

#[tokio::test]
async fn variables_imports_and_the_working_folder_are_kept() {
    let sandbox = Sandbox::main().await;
    let first =
        run(&sandbox, "c1", "import math, os\nx = 20\nos.makedirs('sub')\nos.chdir('sub')\nprint('ready')").await;
    assert_eq!((first.text().as_str(), first.exit), ("ready\n", Some(Exit::default())));
    let second = run(&sandbox, "c2", "print(math.floor(x + 1.5), os.getcwd())").await;
    assert_eq!(second.text(), format!("21 {}\n", sandbox.path("workspace/sub").display()));
    assert_eq!(second.exit, Some(Exit::default()));
}

#[tokio::test]
async fn modules_of_the_workspace_can_be_imported_and_stdin_is_at_its_end() {
    let sandbox = Sandbox::main().await;
    run(&sandbox, "c1", "1").await;
    std::fs::write(sandbox.path("workspace/mine.py"), "VALUE = 5\n").unwrap();
    assert_eq!(run(&sandbox, "c2", "import mine\nmine.VALUE").await.text(), "5\n");
    let input = run(&sandbox, "c3", "input()").await;
    assert!(input.error_text().ends_with("EOFError: EOF when reading a line\n"), "{}", input.error_text());
}

#[tokio::test]
async fn the_last_expression_is_shown_and_none_is_not() {
    let sandbox = Sandbox::main().await;
    assert_eq!(run(&sandbox, "c1", "x = 'a'\nx").await.text(), "'a'\n");
    assert_eq!(run(&sandbox, "c2", "_ + 'b'").await.text(), "'ab'\n");
    assert_eq!(run(&sandbox, "c3", "print('only')").await.text(), "only\n");
    assert_eq!(run(&sandbox, "c4", "1\n2\ny = 3").await.text(), "");
    assert_eq!(run(&sandbox, "c5", "").await.exit, Some(Exit::default()));
}

#[tokio::test]
async fn await_works_at_the_top_and_tasks_live_on_between_cells() {
    let sandbox = Sandbox::main().await;
    let code = "import asyncio\nasync def f(n):\n    await asyncio.sleep(0.01)\n    return n\ntask = asyncio.create_task(f(6))\nawait f(7)";
    assert_eq!(run(&sandbox, "c1", code).await.text(), "7\n");
    assert_eq!(run(&sandbox, "c2", "await task").await.text(), "6\n");
    // Without an await no loop runs, so that the code can run one.
    assert_eq!(run(&sandbox, "c3", "asyncio.run(f(8))").await.text(), "8\n");
    assert_eq!(run(&sandbox, "c4", "await f(9)").await.text(), "9\n");
}

#[tokio::test]
async fn exit_ends_the_cell_and_not_the_interpreter() {
    let sandbox = Sandbox::main().await;
    assert_eq!(
        run(&sandbox, "c1", "x = 1\nimport sys\nsys.exit(7)").await.exit,
        Some(Exit { code: 7, ..Exit::default() })
    );
    let told = run(&sandbox, "c2", "sys.exit('no good')").await;
    assert_eq!((told.error_text().as_str(), told.code()), ("no good\n", 1));
    assert_eq!(run(&sandbox, "c3", "exit()").await.code(), 0);
    let interrupted = run(&sandbox, "c4", "raise KeyboardInterrupt").await;
    assert_eq!(interrupted.code(), 130);
    assert_eq!(run(&sandbox, "c5", "x").await.text(), "1\n");
}

#[tokio::test]
async fn cells_run_one_after_another_and_not_in_the_turns_of_commands() {
    let sandbox = Sandbox::main().await;
    let wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nx = 'first'";
    let first = sandbox.client.start("c1", &cell(wait)).await.unwrap();
    let second = cell("x");
    let second = sandbox.client.run("c2", &second);
    let command = async { sandbox.run("r1", "touch go; echo went").await };
    let (second, command) = tokio::join!(second, command);
    assert_eq!((second.text().as_str(), command.text().as_str()), ("'first'\n", "went\n"));
    assert_eq!(first.end().await.code(), 0);
}

#[tokio::test]
async fn output_is_apart_and_whole_whoever_writes_it() {
    let sandbox = Sandbox::main().await;
    let code = "import ctypes, os, subprocess, sys\nprint('py')\nprint('err', file=sys.stderr)\nos.write(1, b'raw\\n')\nos.system('echo child; echo child-err >&2')\nsubprocess.run(['echo', 'sub'])\nctypes.CDLL(None).printf(b'c')\nsys.stdout.write('end')";
    let outcome = run(&sandbox, "c1", code).await;
    assert!(outcome.text().starts_with("py\nraw\nchild\nsub\n"), "{}", outcome.text());
    // The last expression is shown, and C's buffer comes last.
    assert!(outcome.text().ends_with("end3\nc"), "{}", outcome.text());
    assert_eq!(outcome.error_text(), "err\nchild-err\n");
    let closed = run(&sandbox, "c2", "sys.stdout.close()\nos.close(2)").await;
    assert_eq!(closed.text(), "");
    assert_eq!(run(&sandbox, "c3", "print('again')").await.text(), "again\n");
}

#[tokio::test]
async fn a_traceback_shows_the_users_code_and_nothing_of_ours() {
    let sandbox = Sandbox::main().await;
    let without_marks = |text: String| {
        let is_marks = |line: &&str| !line.trim().is_empty() && line.trim().chars().all(|c| matches!(c, '^' | '~'));
        text.split_inclusive('\n').filter(|line| !is_marks(line)).collect::<String>()
    };
    let plain = run(&sandbox, "c1", "def f():\n    return 1 / 0\nf()").await;
    let expected = "Traceback (most recent call last):\n  File \"<cell 1>\", line 3, in <module>\n    f()\n  File \"<cell 1>\", line 2, in f\n    return 1 / 0\nZeroDivisionError: division by zero\n";
    assert_eq!((without_marks(plain.error_text()).as_str(), plain.code()), (expected, 1));
    let awaited = run(&sandbox, "c2", "async def g(): f()\nawait g()").await;
    let expected = "Traceback (most recent call last):\n  File \"<cell 2>\", line 2, in <module>\n    await g()\n  File \"<cell 2>\", line 1, in g\n    async def g(): f()\n  File \"<cell 1>\", line 2, in f\n    return 1 / 0\nZeroDivisionError: division by zero\n";
    assert_eq!(without_marks(awaited.error_text()), expected);
    let library = run(&sandbox, "c3", "import json\njson.loads('{')").await.error_text();
    assert!(
        library.contains("json/__init__.py") && library.contains("<cell 3>") && !library.contains("sandboxd"),
        "{library}"
    );
    let chained = run(&sandbox, "c4", "try: f()\nexcept ZeroDivisionError: raise ValueError('x')").await.error_text();
    assert!(
        chained.contains("During handling") && !chained.contains("sandboxd") && !chained.contains("<string>"),
        "{chained}"
    );
    let syntax = run(&sandbox, "c5", "x = = 1").await;
    let text = syntax.error_text();
    assert!(
        text.starts_with("  File \"<cell 5>\", line 1\n    x = = 1\n")
            && text.ends_with("SyntaxError: invalid syntax\n"),
        "{text}"
    );
    assert_eq!(syntax.code(), 1);
}

#[tokio::test]
async fn the_environment_is_that_of_commands_and_variables_of_a_call_go_with_it() {
    let sandbox = Sandbox::main().await;
    let code = "import os\nprint(os.environ['HOME'], os.environ['OF_THE_IMAGE'], os.environ.get('TOKEN'), os.environ['OUTPUT_DIR'])\nopen(os.path.join(os.environ['OUTPUT_DIR'], 'f'), 'w').close()";
    let mut request = cell(code);
    request.env.insert("TOKEN".into(), "t 1".into());
    let first = sandbox.client.run("c1", &request).await;
    assert_eq!(first.text(), format!("/home/agent i t 1 {}\n", sandbox.path("output/c1").display()));
    assert_eq!(first.exit.unwrap().outputs, 1);
    let second =
        run(&sandbox, "c2", "os.environ['MINE'] = 'm'\nos.environ.get('TOKEN'), os.environ['OUTPUT_DIR'][-2:]").await;
    assert_eq!((second.text().as_str(), second.exit.unwrap().outputs), ("(None, 'c2')\n", 0));
    let third = run(&sandbox, "c3", "os.environ['MINE'], open('/proc/self/oom_score_adj').read().strip()").await;
    assert_eq!(third.text(), "('m', '1000')\n");
}

#[tokio::test]
async fn the_same_cell_runs_once_and_another_body_is_a_conflict() {
    let sandbox = Sandbox::main().await;
    run(&sandbox, "c0", "n = 0").await;
    let request = cell("n += 1\nn");
    let (first, second) = tokio::join!(sandbox.client.run("c1", &request), sandbox.client.run("c1", &request));
    assert_eq!((first.text(), second.text()), ("1\n".into(), "1\n".into()));
    assert_eq!(sandbox.client.start("c1", &cell("n")).await.err().unwrap().code, ErrorCode::Conflict);
}
