//! Lists of files and removals by prefix, with the real binary, over folders that hostile code has made.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test ends by a panic")]

mod common;

use common::{Client, Sandbox};
use hyper::{HeaderMap, Method, StatusCode};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use sandboxd_protocol::{TreeDeleted, TreePage, percent_decode, percent_encode};
use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::symlink, net::UnixListener},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

async fn page(client: &Client, prefix: &str, after: &str, limit: usize) -> TreePage {
    let target = format!("/tree?root=/tmp&prefix={}&after={after}&limit={limit}", percent_encode(prefix.as_bytes()));
    let (status, body) = client.simple(Method::GET, &target).await;
    assert_eq!(status, StatusCode::OK, "{body:?}");
    serde_json::from_slice(&body).unwrap()
}

async fn all(client: &Client, limit: usize) -> Vec<String> {
    let (mut paths, mut after) = (Vec::new(), String::new());
    loop {
        let page = page(client, "", &after, limit).await;
        paths.extend(page.files.into_iter().map(|file| file.path));
        match page.next {
            Some(next) => after = next,
            None => return paths,
        }
    }
}

async fn delete(client: &Client, root: &str, prefix: &str) -> (StatusCode, Option<TreeDeleted>) {
    let target = format!("/tree?root={root}&prefix={}", percent_encode(prefix.as_bytes()));
    let (status, body) = client.simple(Method::DELETE, &target).await;
    (status, serde_json::from_slice(&body).ok())
}

#[tokio::test]
async fn a_list_tells_what_a_file_is_and_names_of_any_bytes_can_be_asked_for_again() {
    let sandbox = Sandbox::files().await;
    fs::create_dir(sandbox.path("tmp/a b")).unwrap();
    fs::write(sandbox.path("tmp/a b/100%.txt"), "12345").unwrap();
    fs::write(sandbox.path("tmp").join(OsStr::from_bytes(b"\xff")), "x").unwrap();
    let page = page(&sandbox.client, "", "", 10).await;
    let [first, second] = page.files.as_slice() else { panic!("{page:?}") };
    assert_eq!((first.path.as_str(), first.stat.size), ("a%20b/100%25.txt", 5));
    assert_eq!(percent_decode(&second.path).unwrap(), b"\xff");
    assert!(page.next.is_none() && !page.incomplete);
    for file in &page.files {
        let target = format!("/file?path=/tmp/{}", file.path);
        let head = sandbox.client.call(Method::HEAD, &target, HeaderMap::new(), common::full("")).await;
        let header = |name: &str| head.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("etag"), file.stat.etag);
        assert_eq!(header("content-length"), file.stat.size.to_string());
        assert_eq!(header("x-modified-ms"), file.stat.modified_ms.to_string());
    }
}

#[tokio::test]
async fn what_cannot_be_understood_is_refused() {
    let sandbox = Sandbox::files().await;
    for target in [
        "/tree",
        "/tree?root=/tmp&prefix=",
        "/tree?root=/tmp&prefix=&after=&limit=0",
        "/tree?root=/tmp&prefix=&after=&limit=1001",
        "/tree?root=/tmp&prefix=%2&after=&limit=1",
        "/tree?root=/tmp&prefix=%00&after=&limit=1",
    ] {
        assert_eq!(sandbox.client.simple(Method::GET, target).await.0, StatusCode::BAD_REQUEST, "{target}");
    }
    for root in ["/", "/etc", "/tmp/..", "/claim", "/sealed"] {
        let target = format!("/tree?root={root}&prefix=&after=&limit=1");
        assert_eq!(sandbox.client.simple(Method::GET, &target).await.0, StatusCode::FORBIDDEN, "{root}");
        assert_eq!(delete(&sandbox.client, root, "").await.0, StatusCode::FORBIDDEN, "{root}");
    }
    assert_eq!(delete(&sandbox.client, "/skills", "").await.0, StatusCode::FORBIDDEN);
}

/// Attack 15.
#[tokio::test]
async fn pipes_links_and_endless_folders_neither_hang_a_list_nor_show_anything_foreign() {
    let sandbox = Sandbox::start("files", &[], common::make_claim_in_memory()).await;
    let tmp = sandbox.path("tmp");
    fs::write(tmp.join("real"), "r").unwrap();
    fs::File::create(tmp.join("sparse")).unwrap().set_len(1 << 43).unwrap();
    assert!(Command::new("mkfifo").arg(tmp.join("fifo")).status().unwrap().success());
    let _listener = UnixListener::bind(tmp.join("socket")).unwrap();
    for (name, target) in [("etc", "/etc"), ("passwd", "/etc/passwd"), ("loop", "."), ("up", "..")] {
        symlink(target, tmp.join(name)).unwrap();
    }
    let mut at = rustix::fs::open(&tmp, OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..5000 {
        rustix::fs::mkdirat(&at, "deep", Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, "deep", OFlags::PATH, Mode::empty()).unwrap();
    }
    drop(at);
    // Guards against hanging: three times what is promised.
    let list = tokio::time::timeout(Duration::from_secs(6), page(&sandbox.client, "", "", 1000)).await.unwrap();
    let found: Vec<_> = list.files.iter().map(|file| (file.path.as_str(), file.stat.size)).collect();
    assert_eq!((found, list.incomplete), (vec![("real", 1), ("sparse", 1 << 43)], true));
    let deleted = tokio::time::timeout(Duration::from_secs(6), delete(&sandbox.client, "/tmp", "")).await.unwrap();
    assert_eq!(deleted.1, Some(TreeDeleted { count: 2, more: false }));
    assert!(fs::metadata("/etc/passwd").is_ok());
    assert!(Command::new("rm").arg("-r").arg(tmp.join("deep")).status().unwrap().success());
}

#[tokio::test]
async fn a_tree_of_a_hundred_thousand_files_is_listed_in_pages_with_bounded_memory() {
    let sandbox = Sandbox::start("files", &[], common::make_claim_in_memory()).await;
    for folder in 0..50 {
        let folder = sandbox.path("tmp").join(format!("folder-{folder:02}"));
        fs::create_dir(&folder).unwrap();
        for file in 0..2000 {
            fs::File::create(folder.join(format!("file-{file:04}"))).unwrap();
        }
    }
    let before = resident_kib(&sandbox);
    let paths = all(&sandbox.client, 1000).await;
    let grown = resident_kib(&sandbox).saturating_sub(before);
    assert_eq!(paths.len(), 100_000);
    assert!(paths.is_sorted_by(|a, b| a < b));
    // A page of a thousand is a third of a MiB; all names together would be ten times the bound.
    assert!(grown < 3 * 1024, "{grown} KiB more");
    let mut count = 0;
    loop {
        let deleted = delete(&sandbox.client, "/tmp", "folder").await.1.unwrap();
        count += deleted.count;
        if !deleted.more {
            break;
        }
    }
    assert_eq!((count, fs::read_dir(sandbox.path("tmp")).unwrap().count()), (100_000, 0));
}

fn resident_kib(sandbox: &Sandbox) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", sandbox.process.0.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Attack 18.
#[tokio::test]
async fn a_file_that_is_written_again_with_its_old_time_has_another_tag() {
    let sandbox = Sandbox::files().await;
    let path = sandbox.path("tmp/x");
    fs::write(&path, "one").unwrap();
    let before = page(&sandbox.client, "x", "", 1).await.files.remove(0).stat;
    fs::write(&path, "two").unwrap();
    let ms = i64::try_from(before.modified_ms).unwrap();
    let modified = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    let times = Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: modified };
    rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    let after = page(&sandbox.client, "x", "", 1).await.files.remove(0).stat;
    assert_eq!((before.size, before.modified_ms), (after.size, after.modified_ms));
    assert_ne!(before.etag, after.etag);
}

/// Attack 16.
#[tokio::test]
async fn folders_that_turn_into_links_under_reads_and_removals_lead_nowhere() {
    let sandbox = Sandbox::files().await;
    let (tmp, outside) = (sandbox.path("tmp"), sandbox.path("outside"));
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), "outside").unwrap();
    fs::create_dir(tmp.join("real")).unwrap();
    symlink("../outside", tmp.join("link")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapping = {
        let (stop, tmp) = (Arc::clone(&stop), tmp.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for (from, to) in [("real", "at"), ("at", "real"), ("link", "at"), ("at", "link")] {
                    fs::rename(tmp.join(from), tmp.join(to)).unwrap_or_default();
                    // The removals may have taken the folder and its file.
                    fs::create_dir_all(tmp.join("real")).unwrap_or_default();
                    fs::write(tmp.join("real/f"), "inside").unwrap_or_default();
                }
            }
        })
    };
    let mut seen = 0;
    for round in 0..10_000 {
        if round % 10 == 0 {
            delete(&sandbox.client, "/tmp", "at/").await;
            sandbox.client.simple(Method::DELETE, "/file?path=/tmp/at/f").await;
        }
        let (status, body) = sandbox.client.simple(Method::GET, "/file?path=/tmp/at/f").await;
        if status == StatusCode::OK {
            assert!(matches!(&body[..], b"inside" | b""), "{body:?}");
            seen += 1;
        }
    }
    stop.store(true, Ordering::Relaxed);
    swapping.join().unwrap();
    assert!(seen > 0, "the swapping never let a read through");
    assert_eq!(fs::read(outside.join("f")).unwrap(), b"outside");
}
