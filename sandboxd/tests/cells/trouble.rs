//! Time-outs, kills, and code that means harm.

use super::{SOON, cell, run, timed};
use crate::common::{self, Sandbox, eventually, is_running};
use hyper::{Method, StatusCode};
use sandboxd_protocol::Exit;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_time_out_keeps_the_variables() {
    let sandbox = Sandbox::main().await;
    run(&sandbox, "c", "import asyncio").await;
    for (n, code) in ["while True: pass", "import time\ntime.sleep(99)", "import asyncio\nawait asyncio.sleep(99)"]
        .into_iter()
        .enumerate()
    {
        let outcome =
            sandbox.client.run(&format!("c{n}"), &timed(&format!("x = {n}\nprint('on')\n{code}"), 1000)).await;
        let exit = Exit { code: 124, timed_out: true, ..Exit::default() };
        assert_eq!((outcome.text().as_str(), outcome.exit.clone()), ("on\n", Some(exit)), "{}", outcome.error_text());
        assert!(outcome.error_text().ends_with("KeyboardInterrupt\n"), "{}", outcome.error_text());
        assert_eq!(run(&sandbox, &format!("d{n}"), "x").await.text(), format!("{n}\n"));
    }
}

#[tokio::test]
async fn a_child_that_does_not_end_is_interrupted_too() {
    let sandbox = Sandbox::main().await;
    run(&sandbox, "c0", "import os").await;
    let outcome = sandbox.client.run("c1", &timed("x = 1\nos.system('sleep 3101')", 1000)).await;
    let exit = outcome.exit.unwrap();
    assert_eq!((exit.timed_out, exit.interpreter_lost), (true, false));
    assert!(!is_running("3101"));
    assert_eq!(run(&sandbox, "c2", "x").await.text(), "1\n");
}

#[tokio::test]
async fn code_that_does_not_heed_its_interrupt_is_killed() {
    let sandbox = Sandbox::main().await;
    run(&sandbox, "c0", "import subprocess\np = subprocess.Popen(['sleep', '3102'], start_new_session=True)").await;
    let code = "import time\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass";
    let start = Instant::now();
    let exit = sandbox.client.run("c1", &timed(code, 1500)).await.exit.unwrap();
    assert!(start.elapsed() < SOON);
    assert_eq!((exit.code, exit.signal, exit.timed_out, exit.interpreter_lost), (124, Some(9), true, true));
    assert!(!is_running("3102"));
    let next = run(&sandbox, "c2", "'p' in globals()").await;
    assert_eq!(
        (next.text().as_str(), next.exit),
        ("False\n", Some(Exit { fresh_interpreter: true, ..Exit::default() }))
    );
    assert!(!run(&sandbox, "c3", "1").await.exit.unwrap().fresh_interpreter);
}

#[tokio::test]
async fn an_interpreter_that_ends_is_reported_and_the_next_cell_gets_a_fresh_one() {
    let sandbox = Sandbox::main().await;
    let code = "print('out', flush=True)\nimport os\nos._exit(3)";
    let exited = run(&sandbox, "c1", code).await;
    let expected = Exit { code: 3, interpreter_lost: true, ..Exit::default() };
    assert_eq!((exited.text().as_str(), exited.exit), ("out\n", Some(expected)));
    let killed = run(&sandbox, "c2", "import os\nos.kill(os.getpid(), 9)").await.exit.unwrap();
    assert_eq!(
        (killed.code, killed.signal, killed.interpreter_lost, killed.fresh_interpreter),
        (137, Some(9), true, true)
    );
    let orphaned =
        run(&sandbox, "c3", "import os\nos.kill(os.getppid(), 9)\nimport time\ntime.sleep(9)").await.exit.unwrap();
    assert_eq!((orphaned.code, orphaned.interpreter_lost), (137, true));
    // Also when that happens between two cells.
    let code = "import os, subprocess, threading\nsubprocess.Popen(['sleep', '3103'])\nthreading.Timer(0.2, os._exit, (1,)).start()";
    run(&sandbox, "c4", code).await;
    assert!(eventually(SOON, || is_running("3103")).await);
    assert!(eventually(SOON, || !is_running("3103")).await);
    let next = run(&sandbox, "c5", "'fine'").await;
    assert_eq!(
        (next.text().as_str(), next.exit),
        ("'fine'\n", Some(Exit { fresh_interpreter: true, ..Exit::default() }))
    );
}

#[tokio::test]
async fn huge_output_is_cut_and_the_cell_goes_on() {
    let sandbox = Sandbox::main().await;
    let outcome = run(&sandbox, "c1", "for n in range(200000): print('0123456789')\nx = 1").await;
    let exit = outcome.exit.clone().unwrap();
    assert_eq!((outcome.stdout.len(), exit.code, exit.stdout_truncated), (1 << 20, 0, true));
    assert_eq!(run(&sandbox, "c2", "x").await.text(), "1\n");
}

#[tokio::test]
async fn forged_control_messages_end_the_interpreter_and_nothing_else() {
    let sandbox = Sandbox::main().await;
    for (n, forged) in [
        "b'garbage\\n'",
        "b'{\"end\":{\"cell\":99,\"code\":0}}\\n'",
        "b'{\"ready\":{\"pid\":1}}\\n'",
        "b'{\"calls\":{\"cell\":1,\"calls\":[{\"name\":\"t\",\"input\":{}}],\"closed\":[],\"idle\":true,\"seen\":0}}\\n'",
        "b'x' * 1000000",
    ]
    .into_iter()
    .enumerate()
    {
        let code = format!("import os, time\nos.write(11, {forged})\ntime.sleep(20)");
        let outcome = run(&sandbox, &format!("c{n}"), &code).await;
        let exit = outcome.exit.clone().unwrap();
        assert_eq!((exit.code, exit.interpreter_lost), (137, true), "{forged}");
        let told = outcome.error_text();
        assert!(told.starts_with("sandboxd: the Python interpreter was ended: ") && told.ends_with('\n'), "{told}");
        assert_eq!(run(&sandbox, &format!("d{n}"), "'fine'").await.text(), "'fine'\n");
    }
    // A forged end is the end: what the code does afterwards reaches nobody.
    let code = "import os, threading\ndef on():\n    while True: print('later', flush=True)\nthreading.Thread(target=on, daemon=True).start()\nos.write(11, b'{\"end\":{\"cell\":%d,\"code\":5}}\\n' % 2)\nwhile True: pass";
    assert_eq!(run(&sandbox, "e1", code).await.code(), 5);
    let next = sandbox.client.run("e2", &timed("1", 300)).await.exit.unwrap();
    assert!(next.timed_out && next.interpreter_lost, "{next:?}");
    assert_eq!(run(&sandbox, "e3", "'fine'").await.text(), "'fine'\n");
}

#[tokio::test]
async fn an_interpreter_that_speaks_between_two_cells_is_ended() {
    let sandbox = Sandbox::main().await;
    let code = "import os, subprocess, threading\np = subprocess.Popen(['sleep', '3104'])\nthreading.Timer(0.2, os.write, (11, b'{\"end\":{\"cell\":2,\"code\":0}}\\n')).start()";
    assert_eq!(run(&sandbox, "c1", code).await.code(), 0);
    assert!(eventually(SOON, || is_running("3104")).await);
    assert!(eventually(SOON, || !is_running("3104")).await);
    let next = run(&sandbox, "c2", "'p' in globals()").await;
    assert_eq!((next.text().as_str(), next.exit.unwrap().fresh_interpreter), ("False\n", true));
}

#[tokio::test]
async fn a_flood_of_control_messages_keeps_no_command_from_running() {
    let sandbox = Sandbox::main().await;
    let code = "import os\nprint('on', flush=True)\nline = b'{\"calls\":{\"cell\":1,\"calls\":[],\"closed\":[],\"idle\":true,\"seen\":0}}\\n' * 50\nwhile True: os.write(11, line)";
    let mut flood = sandbox.client.start("c1", &timed(code, 10_000)).await.unwrap();
    flood.until(|seen| !seen.stdout.is_empty()).await;
    let start = Instant::now();
    for n in 0..5 {
        assert_eq!(sandbox.run(&format!("r{n}"), "echo fine").await.text(), "fine\n");
    }
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    let exit = flood.end().await.exit.unwrap();
    assert!(exit.timed_out, "{exit:?}");
}

#[tokio::test]
async fn a_stopped_interpreter_or_shim_keeps_no_cell() {
    let sandbox = Sandbox::main().await;
    for (n, code) in ["os.kill(os.getpid(), 19)", "os.kill(os.getppid(), 19)\nos._exit(0)"].into_iter().enumerate() {
        let outcome = sandbox.client.run(&format!("c{n}"), &timed(&format!("import os\n{code}"), 1000)).await;
        assert!(outcome.exit.unwrap().interpreter_lost, "{code}");
        assert_eq!(run(&sandbox, &format!("d{n}"), "'fine'").await.text(), "'fine'\n");
    }
}

#[tokio::test]
async fn a_closed_control_pipe_ends_the_interpreter() {
    let sandbox = Sandbox::main().await;
    let outcome = run(&sandbox, "c1", "import os, time\nos.close(11)\ntime.sleep(20)").await;
    assert!(outcome.exit.unwrap().interpreter_lost);
    assert_eq!(run(&sandbox, "c2", "'fine'").await.text(), "'fine'\n");
}

#[tokio::test]
async fn a_fork_in_a_cell_ends_with_the_code() {
    let sandbox = Sandbox::main().await;
    let code = "import os\nprint('before', end=' ')\npid = os.fork()\nprint('child' if pid == 0 else 'parent')\nif pid: os.waitpid(pid, 0)";
    let outcome = run(&sandbox, "c1", code).await;
    let mut lines: Vec<_> = outcome.text().split_whitespace().map(str::to_owned).collect();
    lines.sort_unstable();
    assert_eq!((lines.join(" ").as_str(), outcome.code()), ("before child parent", 0));
    let pool = "import multiprocessing\ndef twice(n): return 2 * n\nwith multiprocessing.get_context('fork').Pool(2) as pool:\n    print(pool.map(twice, [1, 2, 3]))";
    let outcome = run(&sandbox, "c2", pool).await;
    assert_eq!((outcome.text().as_str(), outcome.error_text().as_str()), ("[2, 4, 6]\n", ""));
    assert_eq!(run(&sandbox, "c3", "pid > 0").await.text(), "True\n");
}

#[tokio::test]
async fn what_threads_print_after_the_end_reaches_nobody_and_blocks_nobody() {
    let sandbox = Sandbox::main().await;
    let code = "import threading, time\ndone = threading.Event()\ndef on():\n    for n in range(20000): print('0123456789')\n    done.set()\nthreading.Thread(target=on).start()\nimport sys\nsys.stdout.write('first\\n')\nNone";
    let first = run(&sandbox, "c1", code).await;
    assert!(first.text().contains("first\n"));
    let waited = "import time\nfor _ in range(1000):\n    if done.is_set(): break\n    time.sleep(0.01)\nopen('done', 'w').close()";
    run(&sandbox, "c2", waited).await;
    assert!(sandbox.path("workspace/done").exists());
    assert_eq!(run(&sandbox, "c3", "print(done.is_set())").await.text(), "True\n");
}

#[tokio::test]
async fn a_cancelled_cell_keeps_its_interpreter() {
    let sandbox = Sandbox::main().await;
    let mut following = sandbox.client.start("c1", &cell("x = 3\nprint('on')\nwhile True: pass")).await.unwrap();
    following.until(|seen| !seen.stdout.is_empty()).await;
    assert_eq!(sandbox.client.simple(Method::DELETE, "/runs/c1").await.0, StatusCode::NO_CONTENT);
    let exit = following.end().await.exit.unwrap();
    assert_eq!(exit, Exit { code: 130, cancelled: true, ..Exit::default() });
    assert_eq!(run(&sandbox, "c2", "x").await.text(), "3\n");
}

#[tokio::test]
async fn a_reset_ends_the_interpreter_every_run_and_what_runs_left_behind() {
    let sandbox = Sandbox::main().await;
    run(&sandbox, "c1", "import subprocess\nx = 1\np = subprocess.Popen(['sleep', '3110'])").await;
    sandbox.run("r1", "setsid sleep 3111 & true").await;
    let mut command = sandbox.client.start("r2", &common::bash("echo on; exec sleep 3112")).await.unwrap();
    command.until(|seen| !seen.stdout.is_empty()).await;
    let mut running = sandbox.client.start("c2", &cell("print('on')\nwhile True: pass")).await.unwrap();
    running.until(|seen| !seen.stdout.is_empty()).await;
    assert!(eventually(SOON, || is_running("3110") && is_running("3111")).await);
    assert_eq!(sandbox.client.simple(Method::POST, "/reset").await.0, StatusCode::NO_CONTENT);
    for word in ["3110", "3111", "3112"] {
        assert!(!is_running(word), "{word} is still running");
    }
    let (command, cell_exit) = (command.end().await.exit.unwrap(), running.end().await.exit.unwrap());
    assert!(command.cancelled && cell_exit.cancelled && cell_exit.interpreter_lost);
    let next = run(&sandbox, "c3", "'x' in globals()").await;
    assert_eq!((next.text().as_str(), next.exit.unwrap().fresh_interpreter), ("False\n", true));
    // Nothing to end is no mistake, and an interpreter at rest is ended too.
    assert_eq!(sandbox.client.simple(Method::POST, "/reset").await.0, StatusCode::NO_CONTENT);
    assert_eq!(sandbox.client.simple(Method::POST, "/reset").await.0, StatusCode::NO_CONTENT);
    assert!(run(&sandbox, "c4", "1").await.exit.unwrap().fresh_interpreter);
}
