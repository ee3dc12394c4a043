//! What a real server may do otherwise than the one in this process. `e2e/with-object-store` starts one.

use std::time::{Duration, Instant};

use bytes::Bytes;
use file_store::{Body, FileStore, Patience, S3Config, S3Store, StaticCredentials};
use futures_util::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};

use crate::{LIMIT, Store, id, new_file, pieces};

const MIB: usize = 1 << 20;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// The bucket, where the names of all objects begin with a prefix of the test's own.
fn config(test: &str) -> S3Config {
    S3Config {
        bucket: variable("CODEEXEC_TEST_S3_BUCKET"),
        prefix: format!("suite/{test}"),
        region: Some("us-east-1".into()),
        endpoint: Some(variable("CODEEXEC_TEST_S3")),
        path_style: true,
        encryption: None,
        credentials: Some(StaticCredentials {
            access_key_id: variable("AWS_ACCESS_KEY_ID"),
            secret_access_key: variable("AWS_SECRET_ACCESS_KEY"),
        }),
        patience: Patience::default(),
    }
}

pub(crate) async fn store(test: &str) -> S3Store {
    S3Store::new(config(test)).await
}

async fn of(test: &str) -> Store {
    Store::new(std::sync::Arc::new(store(test).await))
}

#[tokio::test]
#[ignore = "needs a real S3 server"]
async fn a_large_file_goes_in_parts_and_comes_back_whole() {
    let store = of("large").await;
    let content: Vec<u8> = (0..13 * MIB).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect();
    store.put(1, &content).await;
    assert!(store.read(1).await == content);
    assert_eq!(store.store.usage(&store.workspace).await.unwrap(), content.len() as u64);
}

#[tokio::test]
#[ignore = "needs a real S3 server"]
async fn a_large_file_that_breaks_off_leaves_nothing() {
    let store = of("broken").await;
    let half = pieces(vec![Ok(vec![1; 12 * MIB]), Err(std::io::ErrorKind::ConnectionReset.into())]);
    assert!(store.store.put(&store.workspace, id(1), new_file("a"), half, LIMIT).await.is_err());
    assert_eq!(store.store.usage(&store.workspace).await.unwrap(), 0);
    // The upload was ended, or is still being: then the sweep ends it.
    let swept = store.store.sweep(Timestamp::now() + SignedDuration::from_hours(25)).await.unwrap();
    assert!(swept.parts <= 1 && swept.orphans == 0, "{swept:?}");
}

#[tokio::test]
#[ignore = "needs a real S3 server"]
async fn a_sweep_ends_uploads_that_nobody_will_finish() {
    let store = of("unfinished").await;
    let body: Body = Box::pin(stream::iter([Ok(Bytes::from(vec![1; 6 * MIB]))]).chain(stream::pending()));
    let put = async {
        let put = store.store.put(&store.workspace, id(1), new_file("a"), body, LIMIT).await;
        assert!(put.is_err(), "the sweep came between");
        std::future::pending::<()>().await;
    };
    let swept = async {
        let deadline = Instant::now() + Duration::from_mins(1);
        while store.store.sweep(Timestamp::now() + SignedDuration::from_hours(25)).await.unwrap().parts == 0 {
            assert!(Instant::now() < deadline, "no upload was found");
        }
        assert_eq!(store.store.sweep(Timestamp::now() + SignedDuration::from_hours(25)).await.unwrap().parts, 0);
    };
    tokio::select! {
        () = put => {}
        () = swept => {}
    }
}

#[tokio::test]
#[ignore = "needs a real S3 server"]
async fn a_sweep_removes_content_that_has_no_entry_after_a_day() {
    let store = of("orphans").await;
    store.put(1, b"kept").await;
    let staged = store.store.stage(&store.workspace, id(2), pieces(vec![Ok(vec![1; 9])]), LIMIT).await.unwrap();
    // As if the server had been killed here.
    std::mem::forget(staged);
    assert_eq!(store.store.usage(&store.workspace).await.unwrap(), 13);
    for (hours, orphans) in [(23, 0), (25, 1), (25, 0)] {
        let swept = store.store.sweep(Timestamp::now() + SignedDuration::from_hours(hours)).await.unwrap();
        assert_eq!(swept.orphans, orphans, "after {hours} hours");
    }
    assert_eq!(store.read(1).await, b"kept");
    assert_eq!(store.store.usage(&store.workspace).await.unwrap(), 4);
}

#[tokio::test]
#[ignore = "needs a real S3 server"]
async fn a_check_says_what_is_wrong() {
    let wrong = StaticCredentials { access_key_id: variable("AWS_ACCESS_KEY_ID"), secret_access_key: "wrong".into() };
    let unknown = StaticCredentials { access_key_id: "nobody".into(), secret_access_key: "wrong".into() };
    for (config, words) in [
        (S3Config { credentials: Some(wrong), ..config("check") }, "credentials are wrong"),
        (S3Config { credentials: Some(unknown), ..config("check") }, "credentials are wrong"),
        (S3Config { bucket: "missing".into(), ..config("check") }, "bucket does not exist"),
    ] {
        let error = S3Store::new(config).await.check().await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
