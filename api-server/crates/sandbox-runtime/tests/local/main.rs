//! The local runtime with the real `sandboxd`.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code outside of test functions")]

mod cells;
mod isolation;
mod lifecycle;
mod support;

use futures_util::{StreamExt, stream};
use sandbox_runtime::{FileError, FileRange, RunError, TreeQuery, WriteIf};
use std::io;
use support::{Host, bash, read, text};

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_and_its_files_come_and_go() {
    let host = Host::start().await;
    let sandbox = host.sandbox("box").await;

    let outcome = sandbox.run("r1", &bash("echo out; echo err >&2; pwd; exit 3")).await.unwrap();
    assert_eq!(text(&outcome.stdout), "out\n/home/agent/workspace\n");
    assert_eq!((text(&outcome.stderr).as_str(), outcome.exit.code), ("err\n", 3));

    let body = stream::iter([Ok("up".into()), Ok("loaded".into())]);
    let stat = sandbox.write_file("/mnt/user-data/uploads/in put.txt", body).await.unwrap();
    assert_eq!(stat.size, 8);
    let outcome =
        sandbox.run("r2", &bash("cat \"$INPUT_DIR/in put.txt\"; printf made > \"$OUTPUT_DIR/out.bin\"")).await;
    let outcome = outcome.unwrap();
    assert_eq!((text(&outcome.stdout).as_str(), outcome.exit.outputs), ("uploaded", 1));

    let path = "/mnt/user-data/uploads/dated";
    let dated = sandbox.write_file_of(path, 1_796_000_000_123, stream::iter([Ok("x".into())])).await.unwrap();
    assert_eq!((dated.size, dated.modified_ms), (1, 1_796_000_000_123));
    assert_eq!(sandbox.stat_file(path).await.unwrap(), dated);

    let sealed = sandbox.seal("r2").await.unwrap();
    assert_eq!(sealed.iter().map(|file| (file.name.as_str(), file.size)).collect::<Vec<_>>(), [("out.bin", 4)]);
    assert_eq!(read(&sandbox, &sealed[0].path).await, b"made");
    sandbox.discard_sealed("r2").await.unwrap();
    assert!(matches!(sandbox.read_file(&sealed[0].path).await, Err(FileError::NotFound)));

    sandbox.run("r3", &bash("printf work > note.txt")).await.unwrap();
    assert_eq!(read(&sandbox, "/home/agent/workspace/note.txt").await, b"work");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_any_size_arrive_byte_for_byte_and_failed_bodies_not_at_all() {
    let host = Host::start().await;
    let sandbox = host.sandbox("big").await;
    let piece: Vec<u8> = (0..1_048_573_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let pieces: Vec<_> = (0..20).map(|_| Ok(piece.clone().into())).collect();
    sandbox.write_file("/home/agent/workspace/big", stream::iter(pieces)).await.unwrap();
    let file = sandbox.read_file("/home/agent/workspace/big").await.unwrap();
    assert_eq!(file.size, piece.len() as u64 * 20);
    let mut at = 0;
    let mut body = file.body;
    while let Some(data) = body.next().await {
        for byte in data.unwrap() {
            assert_eq!(byte, piece[at % piece.len()]);
            at += 1;
        }
    }
    assert_eq!(at, piece.len() * 20);

    let failing = stream::iter([Ok("half".into()), Err(io::Error::other("gone"))]);
    assert!(matches!(sandbox.write_file("/home/agent/workspace/half", failing).await, Err(FileError::Source(_))));
    assert!(matches!(sandbox.read_file("/home/agent/workspace/half").await, Err(FileError::NotFound)));
    assert!(sandbox.read_file("/home/agent/workspace/../../../etc/passwd").await.is_err());
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_first_uses_at_once_start_one_sandbox() {
    let host = Host::start().await;
    let uses: Vec<_> = (0..20)
        .map(|n| {
            let (sandboxes, spec) = (host.sandboxes.clone(), support::spec("shared", None));
            tokio::spawn(async move {
                let sandbox = sandboxes.acquire(&spec, support::DEADLINE).await.unwrap();
                sandbox.run(&format!("r{n}"), &bash(&format!("echo {n} | tee -a n"))).await.unwrap()
            })
        })
        .collect();
    for (n, task) in uses.into_iter().enumerate() {
        assert_eq!(text(&task.await.unwrap().stdout), format!("{n}\n"));
    }
    assert_eq!(host.processes().len(), 2, "one bwrap for each half");
    let lines = host.sandbox("shared").await.run("count", &bash("sort -n n | tr '\\n' ' '")).await.unwrap();
    assert_eq!(text(&lines.stdout).split_whitespace().count(), 20);
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_run_is_killed_and_the_sandbox_goes_on() {
    let host = Host::start().await;
    let sandbox = host.sandbox("box").await;
    let slow = bash("touch started; sleep 1000");
    let mut running = Box::pin(sandbox.run("slow", &slow));
    host.wait_until_started(&mut running).await;
    drop(running);
    let gone =
        bash("for i in $(seq 200); do pgrep -x sleep >/dev/null || { echo gone; exit; }; read -t 0.05 <> <(:); done");
    let outcome = sandbox.run("look", &gone).await.unwrap();
    assert_eq!(text(&outcome.stdout), "gone\n");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_sandbox_means_unknown_for_what_ran_and_a_new_start_for_the_next() {
    let host = Host::start().await;
    let sandbox = host.sandbox("box").await;
    let slow = bash("touch started; sleep 1000");
    let mut running = Box::pin(sandbox.run("slow", &slow));
    host.wait_until_started(&mut running).await;
    host.kill("main");
    assert!(matches!(running.await, Err(RunError::Unknown(_))));
    let outcome = sandbox.run("next", &bash("ls")).await.unwrap();
    assert_eq!(text(&outcome.stdout), "started\n");

    // The other half keeps nothing in memory: a new one takes its place, and `main` goes on.
    read(&sandbox, "/home/agent/workspace/started").await;
    let before = sandbox.run("pid", &bash("sleep 1000 & echo $!")).await.unwrap();
    host.kill("files");
    support::until(|| host.processes().iter().all(|process| process.half != "files")).await;
    read(&sandbox, "/home/agent/workspace/started").await;
    let still = sandbox.run("still", &bash(&format!("kill -0 {}", text(&before.stdout).trim()))).await.unwrap();
    assert_eq!(still.exit.code, 0);
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_listed_looked_at_read_in_part_and_removed() {
    let host = Host::start().await;
    let sandbox = host.sandbox("box").await;
    for name in ["a.csv", "data/b.csv", "data/c.csv"] {
        let path = format!("/mnt/user-data/uploads/{name}");
        sandbox.write_file(&path, stream::iter([Ok("0123456789".into())])).await.unwrap();
    }
    let query = TreeQuery { root: "/mnt/user-data/uploads", prefix: "", after: "", limit: 2 };
    let first = sandbox.list_files(&query).await.unwrap();
    assert_eq!(first.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["a.csv", "data/b.csv"]);
    let after = first.next.unwrap();
    let second = sandbox.list_files(&TreeQuery { after: &after, ..query }).await.unwrap();
    assert_eq!((second.files[0].path.as_str(), second.next), ("data/c.csv", None));

    let stat = sandbox.stat_file("/mnt/user-data/uploads/a.csv").await.unwrap();
    assert_eq!(stat, first.files[0].stat);
    let range = FileRange { first: 2, last: Some(4), etag: stat.etag };
    let part = sandbox.read_range("/mnt/user-data/uploads/a.csv", &range).await.unwrap();
    assert_eq!((part.size, support::collect(part).await.as_slice()), (3, b"234".as_slice()));
    sandbox.write_file("/mnt/user-data/uploads/a.csv", stream::iter([Ok("9876543210".into())])).await.unwrap();
    let changed = sandbox.read_range("/mnt/user-data/uploads/a.csv", &range).await;
    assert!(matches!(changed, Err(FileError::Changed)), "{changed:?}");

    let missing = sandbox.stat_file("/mnt/user-data/uploads/missing").await;
    assert!(matches!(missing, Err(FileError::NotFound)), "{missing:?}");
    let late = WriteIf::Unchanged { etag: range.etag.clone() };
    let path = "/mnt/user-data/uploads/a.csv".as_bytes();
    for condition in [&late, &WriteIf::Absent] {
        let refused = sandbox.write_file_if(path, condition, stream::iter([Ok("late".into())])).await;
        assert!(matches!(refused, Err(FileError::Changed)), "{refused:?}");
    }
    let current = WriteIf::Unchanged { etag: sandbox.stat_file(path).await.unwrap().etag };
    assert_eq!(sandbox.write_file_if(path, &current, stream::iter([Ok("new".into())])).await.unwrap().size, 3);

    let deleted = sandbox.delete_files("/mnt/user-data/uploads", "data/").await.unwrap();
    assert_eq!((deleted.count, deleted.more), (2, false));
    sandbox.delete_file("/mnt/user-data/uploads/a.csv").await.unwrap();
    assert!(matches!(sandbox.delete_file("/mnt/user-data/uploads/a.csv").await, Err(FileError::NotFound)));
    assert_eq!(sandbox.list_files(&query).await.unwrap().files, []);
    host.stop().await;
}
