//! Files, with the real binary over a socket pair.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test ends by a panic")]

mod common;

use common::{Body, Client, SOON, Sandbox, full, whole, with_trailers};
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap, Method, StatusCode,
    header::{HeaderName, IF_MATCH, IF_NONE_MATCH},
};
use rustix::fs::{Mode, OFlags};
use sandboxd_protocol::{ErrorBody, ErrorCode, FileStat, Sealed};
use sha2::{Digest as _, Sha256};
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    process::Command,
};

fn hex(byte: u8) -> String {
    format!("{byte:02x}")
}

fn query(path: impl AsRef<[u8]>) -> String {
    let encoded: String = path.as_ref().iter().flat_map(|b| ["%".to_owned(), hex(*b)]).collect();
    format!("/file?path={encoded}")
}

fn trailers(bytes: &[u8]) -> [(&'static str, String); 2] {
    let digest = Sha256::digest(bytes).iter().map(|b| hex(*b)).collect();
    [("x-size", bytes.len().to_string()), ("x-sha256", digest)]
}

async fn put(client: &Client, path: impl AsRef<[u8]>, bytes: &[u8]) -> Result<FileStat, ErrorBody> {
    put_with(client, path, bytes, &trailers(bytes)).await
}

async fn put_with(
    client: &Client,
    path: impl AsRef<[u8]>,
    bytes: &[u8],
    trailers: &[(&'static str, String)],
) -> Result<FileStat, ErrorBody> {
    put_sent(client, path, with_trailers(bytes, trailers), HeaderMap::new()).await
}

async fn put_if(
    client: &Client,
    path: &str,
    bytes: &[u8],
    (condition, tag): (HeaderName, &str),
) -> Result<FileStat, ErrorCode> {
    let headers = [(condition, tag.parse().unwrap())].into_iter().collect();
    let put = put_sent(client, path, with_trailers(bytes, &trailers(bytes)), headers).await;
    put.map_err(|refused| refused.code)
}

async fn put_sent(
    client: &Client,
    path: impl AsRef<[u8]>,
    body: Body,
    headers: HeaderMap,
) -> Result<FileStat, ErrorBody> {
    let (status, body) = whole(client.call(Method::PUT, &query(path), headers, body)).await;
    if status == StatusCode::OK { Ok(serde_json::from_slice(&body).unwrap()) } else { Err(refusal(status, &body)) }
}

fn refusal(status: StatusCode, body: &[u8]) -> ErrorBody {
    let refused: ErrorBody = serde_json::from_slice(body).unwrap();
    assert_eq!(status.as_u16(), refused.code.status());
    refused
}

async fn get(client: &Client, path: impl AsRef<[u8]>) -> Result<Vec<u8>, ErrorCode> {
    let (status, body) = client.simple(Method::GET, &query(path)).await;
    if status == StatusCode::OK { Ok(body.to_vec()) } else { Err(refusal(status, &body).code) }
}

fn nothing_half_written(sandbox: &Sandbox) -> bool {
    fs::read_dir(sandbox.path("sealed")).unwrap().next().is_none()
}

/// T07.
#[tokio::test]
async fn any_bytes_go_in_and_come_out() {
    let sandbox = Sandbox::files().await;
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    for (path, bytes) in [
        ("/home/agent/workspace/a/b/c.bin", bytes.as_slice()),
        ("/mnt/user-data/uploads/empty", b""),
        ("/mnt/user-data/outputs/報告 🤣.csv", b"x"),
        ("/tmp/q\"uote\nline.txt", b"\0\xff"),
    ] {
        let stat = put(&sandbox.client, path, bytes).await.unwrap();
        assert_eq!(stat.size, bytes.len() as u64, "{path}");
        assert_eq!(get(&sandbox.client, path).await.unwrap(), bytes, "{path}");
    }
    assert!(sandbox.path("workspace/a/b/c.bin").exists() && sandbox.path("uploads/empty").exists());
    let raw_name = b"/tmp/\xff";
    put(&sandbox.client, raw_name, b"raw").await.unwrap();
    assert_eq!(get(&sandbox.client, raw_name).await.unwrap(), b"raw");
    assert!(nothing_half_written(&sandbox));
}

#[tokio::test]
async fn a_range_and_the_head_tell_length_and_tag() {
    let sandbox = Sandbox::files().await;
    let stat = put(&sandbox.client, "/tmp/x", b"0123456789").await.unwrap();
    let head = sandbox.client.call(Method::HEAD, &query("/tmp/x"), HeaderMap::new(), full("")).await;
    assert_eq!(
        (head.headers()["content-length"].as_bytes(), head.headers()["etag"].as_bytes()),
        (b"10".as_slice(), stat.etag.as_bytes())
    );
    let missing = sandbox.client.call(Method::HEAD, &query("/tmp/missing"), HeaderMap::new(), full("")).await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    assert_eq!(missing.into_body().collect().await.unwrap().to_bytes(), "");
    let headers = HeaderMap::from_iter([("range".parse().unwrap(), "bytes=2-4".parse().unwrap())]);
    let part = sandbox.client.call(Method::GET, &query("/tmp/x"), headers, full("")).await;
    assert_eq!(
        (part.status(), part.headers()["content-range"].as_bytes()),
        (StatusCode::PARTIAL_CONTENT, b"bytes 2-4/10".as_slice())
    );
    assert_eq!(part.into_body().collect().await.unwrap().to_bytes(), "234");
    // Same size, same bytes, and still another tag.
    assert_ne!(put(&sandbox.client, "/tmp/x", b"0123456789").await.unwrap().etag, stat.etag);
    let headers = HeaderMap::from_iter([("if-match".parse().unwrap(), stat.etag.parse().unwrap())]);
    let old = sandbox.client.call(Method::GET, &query("/tmp/x"), headers, full("")).await;
    assert_eq!(old.status(), StatusCode::PRECONDITION_FAILED);
}

#[tokio::test]
async fn without_matching_trailers_nothing_is_written() {
    let sandbox = Sandbox::files().await;
    put(&sandbox.client, "/tmp/x", b"old").await.unwrap();
    let [size, digest] = trailers(b"new");
    for wrong in [
        vec![],
        vec![size.clone()],
        vec![digest.clone()],
        vec![("x-size", "4".into()), digest.clone()],
        vec![size.clone(), ("x-sha256", "0".repeat(64))],
    ] {
        let refused = put_with(&sandbox.client, "/tmp/x", b"new", &wrong).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Mismatch, "{wrong:?}");
    }
    assert_eq!(get(&sandbox.client, "/tmp/x").await.unwrap(), b"old");
    assert!(nothing_half_written(&sandbox));
}

#[tokio::test]
async fn a_write_holds_to_its_condition() {
    let sandbox = Sandbox::files().await;
    let client = &sandbox.client;
    let absent = || (IF_NONE_MATCH, "*");
    let first = put_if(client, "/tmp/x", b"first", absent()).await.unwrap();
    assert_eq!(put_if(client, "/tmp/x", b"again", absent()).await, Err(ErrorCode::Mismatch));
    let second = put_if(client, "/tmp/x", b"second", (IF_MATCH, &first.etag)).await.unwrap();
    assert_eq!(put_if(client, "/tmp/x", b"late", (IF_MATCH, &first.etag)).await, Err(ErrorCode::Mismatch));
    assert_eq!(put_if(client, "/tmp/y", b"none", (IF_MATCH, &second.etag)).await, Err(ErrorCode::Mismatch));
    for unclear in [(IF_NONE_MATCH, second.etag.as_str()), (IF_MATCH, "*"), (IF_MATCH, "x")] {
        assert_eq!(put_if(client, "/tmp/x", b"unclear", unclear).await, Err(ErrorCode::BadRequest));
    }
    assert_eq!(get(client, "/tmp/x").await.unwrap(), b"second");
    assert_eq!(get(client, "/tmp/y").await, Err(ErrorCode::NotFound));
    assert!(nothing_half_written(&sandbox));
}

#[tokio::test]
async fn of_simultaneous_writes_to_a_free_name_one_is_made() {
    let sandbox = Sandbox::files().await;
    let writes = (0..6).map(|n| {
        let client = &sandbox.client;
        async move { put_if(client, "/tmp/x", &[n; 1000], (IF_NONE_MATCH, "*")).await.map(|_| n) }
    });
    let written = futures_util::future::join_all(writes).await;
    let made: Vec<_> = written.iter().filter_map(|write| write.as_ref().ok()).collect();
    assert_eq!(made.len(), 1, "{written:?}");
    assert_eq!(get(&sandbox.client, "/tmp/x").await.unwrap(), [*made[0]; 1000]);
}

#[tokio::test]
async fn a_rewritten_file_keeps_its_mode() {
    let sandbox = Sandbox::files().await;
    put(&sandbox.client, "/tmp/run.sh", b"1").await.unwrap();
    fs::set_permissions(sandbox.path("tmp/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    put(&sandbox.client, "/tmp/run.sh", b"2").await.unwrap();
    assert_eq!(fs::metadata(sandbox.path("tmp/run.sh")).unwrap().permissions().mode() & 0o777, 0o755);
}

/// T09, from every verb.
#[tokio::test]
async fn nothing_leaves_the_folders() {
    let sandbox = Sandbox::files().await;
    fs::write(sandbox.path("secret"), "s").unwrap();
    for path in
        ["/tmp/../secret", "/tmp/a/../../secret", "tmp/x", "/tmp/x/", "/mnt/user-data/uploads/../../../etc/passwd"]
    {
        let refused = put(&sandbox.client, path, b"x").await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::BadRequest, "{path}");
        assert_eq!(get(&sandbox.client, path).await, Err(ErrorCode::BadRequest), "{path}");
        let (status, _) = sandbox.client.simple(Method::DELETE, &query(path)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
    }
    for path in ["/etc/passwd", "/secret", "/claim/secret"] {
        assert_eq!(put(&sandbox.client, path, b"x").await.unwrap_err().code, ErrorCode::Forbidden, "{path}");
        assert_eq!(get(&sandbox.client, path).await, Err(ErrorCode::Forbidden), "{path}");
    }
    for path in ["/skills/x", "/files/output/r/x", "/sealed/r/0"] {
        assert_eq!(put(&sandbox.client, path, b"x").await.unwrap_err().code, ErrorCode::Forbidden, "{path}");
    }
    assert_eq!(fs::read(sandbox.path("secret")).unwrap(), b"s");
}

#[tokio::test]
async fn links_are_never_followed() {
    let sandbox = Sandbox::files().await;
    fs::write(sandbox.path("secret"), "s").unwrap();
    fs::write(sandbox.path("tmp/real"), "r").unwrap();
    symlink("../secret", sandbox.path("tmp/up")).unwrap();
    symlink("/etc/passwd", sandbox.path("tmp/absolute")).unwrap();
    symlink("real", sandbox.path("tmp/inside")).unwrap();
    symlink("/", sandbox.path("tmp/root")).unwrap();
    symlink("/proc/self/root", sandbox.path("tmp/magic")).unwrap();
    for path in ["/tmp/up", "/tmp/absolute", "/tmp/inside", "/tmp/root/etc/passwd", "/tmp/magic/etc/passwd"] {
        assert_eq!(get(&sandbox.client, path).await, Err(ErrorCode::Forbidden), "{path}");
        assert!(put(&sandbox.client, path, b"x").await.is_err(), "{path}");
    }
    assert!(put(&sandbox.client, "/tmp/root/tmp/sandboxd-escaped", b"x").await.is_err());
    assert_eq!(fs::read(sandbox.path("secret")).unwrap(), b"s");
    assert_eq!(fs::read(sandbox.path("tmp/real")).unwrap(), b"r");
    // A link is deleted, not what it names.
    assert_eq!(sandbox.client.simple(Method::DELETE, &query("/tmp/inside")).await.0, StatusCode::NO_CONTENT);
    assert!(sandbox.path("tmp/real").exists());
}

#[tokio::test]
async fn a_pipe_a_socket_and_a_folder_never_hang() {
    let sandbox = Sandbox::files().await;
    assert!(Command::new("mkfifo").arg(sandbox.path("tmp/fifo")).status().unwrap().success());
    let _listener = std::os::unix::net::UnixListener::bind(sandbox.path("tmp/socket")).unwrap();
    fs::create_dir(sandbox.path("tmp/folder")).unwrap();
    for (path, code) in [
        ("/tmp/fifo", ErrorCode::Forbidden),
        ("/tmp/socket", ErrorCode::Forbidden),
        ("/tmp/folder", ErrorCode::BadRequest),
        ("/tmp/missing", ErrorCode::NotFound),
    ] {
        let answer = tokio::time::timeout(SOON, get(&sandbox.client, path)).await;
        assert_eq!(answer.expect("an answer in time"), Err(code), "{path}");
    }
    assert_eq!(put(&sandbox.client, "/tmp/fifo", b"x").await.unwrap_err().code, ErrorCode::Forbidden);
    assert_eq!(put(&sandbox.client, "/tmp/folder", b"x").await.unwrap_err().code, ErrorCode::BadRequest);
    assert!(nothing_half_written(&sandbox));
}

#[tokio::test]
async fn a_file_that_shrinks_while_it_is_read_is_an_error_and_one_that_grows_is_cut() {
    let sandbox = Sandbox::files().await;
    let size = 8 << 20;
    for (name, new_size) in [("shrinks", 1_000_000), ("grows", 2 * size)] {
        let file = fs::File::create(sandbox.path("tmp").join(name)).unwrap();
        file.set_len(size).unwrap();
        let response =
            sandbox.client.call(Method::GET, &query(format!("/tmp/{name}")), HeaderMap::new(), full("")).await;
        assert_eq!(response.headers()["content-length"], size.to_string().as_str());
        // The windows are far smaller than the file, so most of it is not read yet.
        file.set_len(new_size).unwrap();
        let body = response.into_body().collect().await;
        if new_size < size {
            assert!(body.is_err());
        } else {
            assert_eq!(body.unwrap().to_bytes().len() as u64, size);
        }
    }
}

#[tokio::test]
async fn a_full_disk_is_told_and_leaves_nothing() {
    let claim = common::make_claim();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(claim.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no right to mount a small file system");
        return;
    }
    for name in ["output", "outputs", "sealed", "skills", "tmp", "uploads", "workspace"] {
        fs::create_dir(claim.path().join(name)).unwrap();
    }
    let path = claim.path().to_owned();
    let sandbox = Sandbox::start("files", &[], claim).await;
    let refused = put(&sandbox.client, "/tmp/x", &vec![1; 3 << 20]).await;
    let (left, small) = (nothing_half_written(&sandbox), put(&sandbox.client, "/tmp/y", b"small").await);
    let exists = sandbox.path("tmp/x").exists();
    let Sandbox { process, claim: _claim, client } = sandbox;
    drop((client, process));
    assert!(Command::new("umount").arg(path).status().unwrap().success());
    assert_eq!(refused.unwrap_err().code, ErrorCode::NoSpace);
    assert!(left && !exists && small.is_ok());
}

#[tokio::test]
async fn sealed_outputs_are_listed_in_order_and_read_by_number() {
    let sandbox = Sandbox::files().await;
    let folder = sandbox.path("output/run-1");
    fs::create_dir_all(folder.join("sub")).unwrap();
    for name in ["b.txt", "a.txt", "Z"] {
        fs::write(folder.join(name), name).unwrap();
    }
    symlink("/etc/passwd", folder.join("link")).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o000)).unwrap();
    let mut lists = Vec::new();
    for _ in 0..2 {
        let (status, body) = sandbox.client.simple(Method::POST, "/seal/run-1").await;
        assert_eq!(status, StatusCode::OK, "{body:?}");
        lists.push(serde_json::from_slice::<Sealed>(&body).unwrap());
    }
    let names: Vec<_> = lists[0].files.iter().map(|file| (file.name.as_str(), file.size)).collect();
    assert_eq!((names.as_slice(), &lists[0]), ([("Z", 1), ("a.txt", 5), ("b.txt", 5)].as_slice(), &lists[1]));
    assert!(!folder.exists());
    assert_eq!(get(&sandbox.client, &lists[0].files[2].path).await.unwrap(), b"b.txt");
    assert_eq!(get(&sandbox.client, "/sealed/run-1/3").await, Err(ErrorCode::NotFound));
    for _ in 0..2 {
        assert_eq!(sandbox.client.simple(Method::DELETE, "/seal/run-1").await.0, StatusCode::NO_CONTENT);
        assert!(nothing_half_written(&sandbox));
    }
    assert_eq!(sandbox.client.simple(Method::POST, "/seal/run-1").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_link_is_never_sealed() {
    let sandbox = Sandbox::files().await;
    fs::create_dir(sandbox.path("elsewhere")).unwrap();
    fs::write(sandbox.path("elsewhere/secret"), "s").unwrap();
    symlink(sandbox.path("elsewhere"), sandbox.path("output/run-1")).unwrap();
    fs::write(sandbox.path("output/run-2"), "a file").unwrap();
    for run in ["run-1", "run-2"] {
        let (status, _) = sandbox.client.simple(Method::POST, &format!("/seal/{run}")).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{run}");
    }
    assert!(nothing_half_written(&sandbox) && sandbox.path("elsewhere/secret").exists());
    assert_eq!(sandbox.client.simple(Method::POST, "/seal/..").await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_deep_and_locked_sealed_tree_is_removed() {
    let sandbox = Sandbox::files().await;
    fs::create_dir(sandbox.path("output/run-1")).unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut at = rustix::fs::open(sandbox.path("output/run-1"), flags, Mode::empty()).unwrap();
    for _ in 0..3000 {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        rustix::fs::mkdirat(&at, "locked", Mode::empty()).unwrap();
        at = rustix::fs::openat(&at, "d", flags, Mode::empty()).unwrap();
    }
    drop(at);
    assert_eq!(sandbox.client.simple(Method::POST, "/seal/run-1").await.0, StatusCode::OK);
    assert_eq!(sandbox.client.simple(Method::DELETE, "/seal/run-1").await.0, StatusCode::NO_CONTENT);
    assert!(nothing_half_written(&sandbox));
}

#[tokio::test]
async fn an_upload_that_is_cut_leaves_nothing() {
    let sandbox = Sandbox::listening("files", &[]).await;
    let other = Client::connect(&sandbox.socket()).await;
    let pieces = futures_util::StreamExt::chain(
        futures_util::stream::iter([Ok(hyper::body::Frame::data(bytes::Bytes::from(vec![1; 400_000])))]),
        futures_util::stream::pending(),
    );
    let body = http_body_util::StreamBody::new(pieces).boxed_unsync();
    let mut send = other.send.clone();
    let request = hyper::Request::put(format!("http://s{}", query("/tmp/x"))).body(body).unwrap();
    let upload = tokio::spawn(async move { send.send_request(request).await.is_err() });
    let begun = common::eventually(SOON, || {
        fs::read_dir(sandbox.path("sealed")).unwrap().flatten().any(|e| e.metadata().unwrap().len() > 0)
    });
    assert!(begun.await);
    other.cut().await;
    assert!(upload.await.unwrap());
    assert!(common::eventually(SOON, || nothing_half_written(&sandbox)).await);
    assert!(!sandbox.path("tmp/x").exists());
}
