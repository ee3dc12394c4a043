//! What only a bucket does.

use std::time::{Duration, Instant};

use bytes::Bytes;
use file_store::{Body, Encryption, FileStore, Patience, S3Config, S3Store, StaticCredentials, StoreError};
use futures_util::{StreamExt, stream};
use http::Method;
use jiff::SignedDuration;

use crate::{LIMIT, Store, collect, id, new_file, pieces, server::S3Server};

const MIB: usize = 1 << 20;

fn of(store: S3Store) -> Store {
    Store::new(std::sync::Arc::new(store))
}

/// Waits until only so many objects are left: what is removed behind a caller's back takes a moment.
async fn until_left(server: &S3Server, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.bucket.left().len() != count {
        assert!(Instant::now() < deadline, "{:?}", server.bucket.left());
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_large_file_goes_in_parts_and_comes_back_whole() {
    let server = S3Server::start().await;
    let store = of(server.store().await);
    let content: Vec<u8> = (0..13 * MIB).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect();
    store.put(1, &content).await;
    assert!(store.read(1).await == content);
    let parts = server.asked().iter().filter(|asked| asked.target.contains("partNumber")).count();
    assert_eq!(parts, 3, "5, 5 and 3 MiB");
    assert_eq!(
        server.bucket.left().iter().filter(|name| name.contains("/c/")).count(),
        1,
        "{:?}",
        server.bucket.left()
    );
}

#[tokio::test]
async fn a_file_of_exactly_a_part_is_one_request_and_one_byte_more_are_parts() {
    let server = S3Server::start().await;
    let store = of(server.store().await);
    for (number, size, in_parts) in [(1, 5 * MIB, false), (2, 5 * MIB + 1, true), (3, 10 * MIB, true)] {
        store.put(number, &vec![1; size]).await;
        let asked = server.asked();
        assert_eq!(asked.iter().any(|asked| asked.target.contains("uploadId")), in_parts, "{size}");
        assert_eq!(store.read(number).await.len(), size);
    }
}

#[tokio::test]
async fn what_was_begun_is_ended_when_it_fails_or_is_dropped() {
    let server = S3Server::start().await;
    let store = of(server.store().await);
    let half = || pieces(vec![Ok(vec![1; 12 * MIB]), Err(std::io::ErrorKind::ConnectionReset.into())]);
    let cut = store.store.put(&store.workspace, id(1), new_file("a"), half(), LIMIT).await;
    assert!(matches!(cut, Err(StoreError::Body(_))));
    until_left(&server, 0).await;
    let staged = store.store.stage(&store.workspace, id(2), pieces(vec![Ok(vec![1; 7 * MIB])]), LIMIT).await.unwrap();
    assert!(!server.bucket.left().is_empty());
    drop(staged);
    until_left(&server, 0).await;
    let over: Body = Box::pin(stream::repeat_with(|| Ok(Bytes::from_static(&[0; 10_000]))));
    let over = store.store.put(&store.workspace, id(3), new_file("a"), over, 8_000_000).await;
    assert!(matches!(over, Err(StoreError::TooLarge { .. })));
    until_left(&server, 0).await;
    // A part that is refused for good.
    server.asked();
    let body = Box::pin(stream::iter((0..12).map(|n| {
        if n == 11 {
            server.fail(&[(403, "AccessDenied")]);
        }
        Ok(Bytes::from(vec![1; MIB]))
    })));
    let refused = store.store.put(&store.workspace, id(4), new_file("a"), body, LIMIT).await;
    assert!(matches!(refused, Err(StoreError::Io { .. })), "{:?}", refused.err());
    until_left(&server, 0).await;
}

#[tokio::test]
async fn an_index_that_cannot_be_written_takes_its_content_with_it() {
    let server = S3Server::start().await;
    let store = of(server.store().await);
    let staged = store.store.stage(&store.workspace, id(1), pieces(vec![Ok(vec![1; 5])]), LIMIT).await.unwrap();
    server.fail(&[(403, "AccessDenied")]);
    assert!(staged.commit(new_file("a")).await.is_err());
    until_left(&server, 0).await;
    assert!(matches!(store.stat(1).await, Err(StoreError::NotFound)));
}

#[tokio::test]
async fn an_overloaded_store_is_asked_again_and_then_named() {
    let server = S3Server::start().await;
    let store = of(server.store().await);
    server.fail(&[(503, "SlowDown"), (500, "InternalError")]);
    store.put(1, b"in spite of it").await;
    assert_eq!(store.read(1).await, b"in spite of it");
    server.fail(&[(503, "SlowDown"); 3]);
    let error = store.stat(1).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert_eq!(store.read(1).await, b"in spite of it");
}

#[tokio::test]
async fn a_check_says_what_is_wrong() {
    let server = S3Server::start().await;
    let wrong = StaticCredentials { access_key_id: "AK".into(), secret_access_key: "wrong".into() };
    let nowhere = "http://127.0.0.1:9".to_owned();
    for (config, words) in [
        (S3Config { credentials: Some(wrong), ..server.config() }, "credentials are wrong"),
        (S3Config { bucket: "missing".into(), ..server.config() }, "bucket does not exist"),
        (S3Config { endpoint: Some(nowhere), ..server.config() }, "unavailable"),
    ] {
        let error = S3Store::new(config).await.check().await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test]
async fn a_part_that_fails_once_is_sent_again() {
    let server = S3Server::start().await;
    let store = of(server.store().await);
    let content: Vec<u8> = (0..12 * MIB).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect();
    // The last piece comes when the beginning of the upload and its first part have been taken.
    let body = Box::pin(stream::iter(content.chunks(MIB).map(Bytes::copy_from_slice).enumerate()).map(|(n, piece)| {
        if n == 11 {
            server.fail(&[(503, "SlowDown"), (500, "InternalError")]);
        }
        Ok(piece)
    }));
    store.store.put(&store.workspace, id(1), new_file("a"), body, LIMIT).await.unwrap();
    assert!(store.read(1).await == content);
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_asked_again_and_then_named() {
    let server = S3Server::start().await;
    let quick = Duration::from_millis(500);
    let patience = Patience { connect: quick, attempt: quick, silence: quick };
    let store = of(S3Store::new(S3Config { patience, ..server.config() }).await);
    let staged = store.store.stage(&store.workspace, id(1), pieces(vec![Ok(vec![1; 5])]), LIMIT).await.unwrap();
    server.fall_silent();
    server.asked();
    let error = store.stat(1).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert_eq!(server.asked().len(), 3);
    let error = staged.commit(new_file("a")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
}

#[tokio::test]
async fn content_is_written_once_and_encrypted_as_asked() {
    let server = S3Server::start().await;
    let encryption = Some(Encryption::Kms(Some("key-1".into())));
    let store = of(S3Store::new(S3Config { encryption, ..server.config() }).await);
    store.put(1, b"small").await;
    store.put(2, &vec![1; 6 * MIB]).await;
    let asked = server.asked();
    let made = asked.iter().filter(|asked| {
        asked.method == Method::PUT && !asked.target.contains("partNumber") || asked.target.contains("uploads")
    });
    let mut count = 0;
    for asked in made {
        count += 1;
        assert_eq!(asked.headers["x-amz-server-side-encryption"], "aws:kms", "{}", asked.target);
        assert_eq!(asked.headers["x-amz-server-side-encryption-aws-kms-key-id"], "key-1");
    }
    assert_eq!(count, 4, "two contents and their index objects");
    let once = |asked: &&crate::server::Asked| asked.headers.get("if-none-match").is_some_and(|value| value == "*");
    assert_eq!(asked.iter().filter(once).count(), 2, "both contents");
    assert!(asked.iter().all(|asked| asked.target.starts_with("/files/some/prefix/v1/")), "{asked:?}");
}

#[tokio::test]
async fn a_sweep_removes_orphans_of_a_day_and_nothing_else() {
    let server = S3Server::start().await;
    let store = of(server.store().await);
    store.put(1, b"kept").await;
    store.put(2, b"orphan").await;
    let index = server.bucket.left().into_iter().find(|name| name.contains(&format!("/i/{}", id(2)))).unwrap();
    server.bucket.remove(&index);
    let foreign = "some/prefix/v1/README";
    server.bucket.insert(foreign, b"not ours");
    // The server dates what it holds by its own clock.
    let made = jiff::Timestamp::now();
    assert_eq!(store.store.sweep(made + SignedDuration::from_hours(23)).await.unwrap().orphans, 0);
    assert_eq!(store.store.sweep(made + SignedDuration::from_hours(25)).await.unwrap().orphans, 1);
    assert_eq!(store.read(1).await, b"kept");
    assert!(server.bucket.left().contains(&foreign.to_owned()));
    assert!(server.bucket.left().iter().all(|name| !name.contains(&id(2).to_string())));
}

#[tokio::test]
async fn a_sweep_ends_uploads_that_nobody_will_finish() {
    let server = S3Server::start().await;
    let store = of(server.store().await);
    let body: Body = Box::pin(stream::iter([Ok(Bytes::from(vec![1; 6 * MIB]))]).chain(stream::pending()));
    let put = store.store.put(&store.workspace, id(1), new_file("a"), body, LIMIT);
    let begun = async {
        while server.bucket.left().is_empty() {
            tokio::task::yield_now().await;
        }
        let made = jiff::Timestamp::now();
        assert_eq!(store.store.sweep(made + SignedDuration::from_hours(23)).await.unwrap().parts, 0);
        assert_eq!(store.store.sweep(made + SignedDuration::from_hours(25)).await.unwrap().parts, 1);
        assert_eq!(server.bucket.left(), Vec::<String>::new());
    };
    tokio::select! {
        _ = put => unreachable!("the body never ends"),
        () = begun => {}
    }
}

#[tokio::test]
async fn an_object_that_was_cut_is_never_a_short_success() {
    let server = S3Server::start().await;
    let store = of(server.store().await);
    let meta = store.put(1, &vec![5; 100_000]).await;
    let content = server.bucket.left().into_iter().find(|name| name.contains("/c/")).unwrap();
    server.bucket.insert(&content, &[5; 10_000]);
    let body = store.store.read(&store.workspace, &meta, 0..100_000).await.unwrap();
    assert!(collect(body).await.is_err());
}
