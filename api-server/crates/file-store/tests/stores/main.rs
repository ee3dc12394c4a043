//! What every store does: a folder, a bucket in this process, and one of a real server (`e2e/with-object-store`).
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bucket;
mod folder;
mod many;
mod real;
mod s3;
mod server;

use std::{io, sync::Arc};

use bytes::Bytes;
use file_store::{
    Body, FileId, FileMeta, FileName, FileStore, FileSummary, FolderStore, ListRequest, NewFile, Origin, StoreError,
    Workspace,
};
use futures_util::{TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use server::S3Server;
use sha2::{Digest, Sha256};

const NOW: i64 = 1_796_000_000;
const LIMIT: u64 = 1 << 30;

/// One test over each store.
macro_rules! of_all_stores {
    ($($name:ident)*) => {
        mod in_folder {
            $(#[tokio::test] async fn $name() {
                let folder = tempfile::tempdir().unwrap();
                super::$name(Store::new(Arc::new(super::FolderStore::new(folder.path()).await.unwrap()))).await;
            })*
            use super::{Arc, Store};
        }
        mod in_bucket {
            $(#[tokio::test] async fn $name() {
                let server = super::S3Server::start().await;
                super::$name(Store::new(Arc::new(server.store().await))).await;
            })*
            use super::{Arc, Store};
        }
        mod in_real_bucket {
            $(#[tokio::test] #[ignore = "needs a real S3 server"] async fn $name() {
                super::$name(Store::new(Arc::new(super::real::store(stringify!($name)).await))).await;
            })*
            use super::{Arc, Store};
        }
    };
}

of_all_stores! {
    all_byte_values_come_back_with_their_hash
    an_empty_file_is_a_file
    metadata_comes_back_as_it_was_given
    names_that_differ_only_in_encoding_are_different_files
    a_range_reads_these_bytes_and_no_others
    a_body_that_fails_stores_nothing
    staged_content_is_invisible
    an_id_is_given_once
    what_is_too_large_is_refused
    usage_is_what_the_contents_of_one_workspace_take
    usage_is_known_by_whose_the_files_are
    another_workspaces_file_answers_like_one_that_never_existed
    pages_walk_the_list_in_both_directions
    a_list_shows_what_metadata_says
    a_deleted_file_is_gone
    an_expired_file_is_known_but_not_readable
    a_sweep_removes_files_thirty_days_after_their_end
    a_store_that_works_says_so
}

struct Store {
    store: Arc<dyn FileStore>,
    workspace: Workspace,
}

impl Store {
    fn new(store: Arc<dyn FileStore>) -> Self {
        Self { store, workspace: Workspace::named("acme") }
    }

    async fn put_as(&self, number: u8, file: NewFile, content: &[u8]) -> FileMeta {
        let body = pieces(content.chunks(100_000).map(|piece| Ok(piece.to_vec())).collect());
        self.store.put(&self.workspace, id(number), file, body, LIMIT).await.unwrap()
    }

    async fn put(&self, number: u8, content: &[u8]) -> FileMeta {
        self.put_as(number, new_file("a.bin"), content).await
    }

    async fn read(&self, number: u8) -> Vec<u8> {
        let file = self.store.open(&self.workspace, id(number), now()).await.unwrap();
        let content = collect(file.body).await.unwrap();
        assert_eq!(content.len() as u64, file.meta.size_bytes);
        content
    }

    async fn stat(&self, number: u8) -> Result<FileMeta, StoreError> {
        self.store.stat(&self.workspace, id(number)).await
    }

    async fn page(&self, after: Option<u8>, before: Option<u8>, limit: usize) -> (Vec<FileId>, bool) {
        let request = ListRequest { after: after.map(id), before: before.map(id), limit };
        let page = self.store.list(&self.workspace, &request).await.unwrap();
        (page.files.iter().map(|file| file.id).collect(), page.has_more)
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

fn id(number: u8) -> FileId {
    FileId::new(u64::try_from(NOW).unwrap() * 1000 + u64::from(number), [number; 10])
}

fn new_file(name: &str) -> NewFile {
    NewFile {
        filename: FileName::component(name).unwrap(),
        mime_type: "application/octet-stream".into(),
        created_at: now(),
        expires_at: None,
        downloadable: false,
        origin: Origin::Upload,
    }
}

fn expiring(hours: i64) -> NewFile {
    NewFile { expires_at: Some(now() + SignedDuration::from_hours(hours)), ..new_file("short-lived.csv") }
}

fn pieces(pieces: Vec<io::Result<Vec<u8>>>) -> Body<'static> {
    Box::pin(stream::iter(pieces).map_ok(Bytes::from))
}

async fn collect(body: Body<'_>) -> io::Result<Vec<u8>> {
    body.try_fold(Vec::new(), |mut all, piece| async move {
        all.extend_from_slice(&piece);
        Ok(all)
    })
    .await
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

fn sha256(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

async fn all_byte_values_come_back_with_their_hash(store: Store) {
    let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let meta = store.put(1, &content).await;
    assert_eq!((meta.size_bytes, &meta.sha256), (300_000, &sha256(&content)));
    assert!(store.read(1).await == content);
}

async fn an_empty_file_is_a_file(store: Store) {
    for (number, body) in [(1, pieces(vec![])), (2, pieces(vec![Ok(vec![])]))] {
        let meta = store.store.put(&store.workspace, id(number), new_file("e"), body, 0).await.unwrap();
        assert_eq!((meta.size_bytes, &meta.sha256), (0, &sha256(b"")));
        assert_eq!(store.read(number).await, b"");
    }
}

async fn metadata_comes_back_as_it_was_given(store: Store) {
    let file = NewFile {
        filename: FileName::component("報告 🤣.csv").unwrap(),
        mime_type: "text/csv".into(),
        created_at: "2026-11-30T09:00:00.123456789Z".parse().unwrap(),
        expires_at: Some(now() + SignedDuration::from_hours(2)),
        downloadable: true,
        origin: Origin::Output { container: "container_x".into(), call: "srvtoolu_y".into() },
    };
    let put = store.put_as(1, file.clone(), b"x,y\n1,2\n").await;
    assert_eq!(put, store.stat(1).await.unwrap());
    let NewFile { filename, mime_type, created_at, expires_at, downloadable, origin } = file;
    let expected = FileMeta {
        id: id(1),
        filename,
        mime_type,
        size_bytes: 8,
        sha256: sha256(b"x,y\n1,2\n"),
        created_at,
        expires_at,
        downloadable,
        origin,
        owner: None,
    };
    assert_eq!(put, expected);
}

async fn names_that_differ_only_in_encoding_are_different_files(store: Store) {
    for (number, name) in [(1, "report%20name.txt"), (2, "report name.txt")] {
        store.put_as(number, new_file(name), name.as_bytes()).await;
    }
    assert_eq!(store.read(1).await, b"report%20name.txt");
    assert_eq!(store.read(2).await, b"report name.txt");
}

async fn a_range_reads_these_bytes_and_no_others(store: Store) {
    let content: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    let meta = store.put(1, &content).await;
    for (start, end) in [(0, 200_000), (0, 1), (199_999, 200_000), (70_000, 150_001), (5, 5), (200_000, 200_000)] {
        let body = store.store.read(&store.workspace, &meta, start..end).await.unwrap();
        let bounds = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
        assert!(collect(body).await.unwrap() == content[bounds], "{start}..{end}");
    }
}

async fn a_body_that_fails_stores_nothing(store: Store) {
    let body = pieces(vec![Ok(vec![1; 400_000]), Err(io::ErrorKind::ConnectionReset.into()), Ok(vec![2; 10])]);
    let error = store.store.put(&store.workspace, id(1), new_file("cut"), body, LIMIT).await.unwrap_err();
    assert!(matches!(error, StoreError::Body(source) if source.kind() == io::ErrorKind::ConnectionReset));
    assert!(matches!(store.stat(1).await, Err(StoreError::NotFound)));
    assert_eq!(store.store.usage(&store.workspace).await.unwrap(), 0);
}

async fn staged_content_is_invisible(store: Store) {
    let staged = store.store.stage(&store.workspace, id(1), pieces(vec![Ok(vec![9; 5])]), LIMIT).await.unwrap();
    assert_eq!((staged.size_bytes(), staged.sha256()), (5, &*sha256(&[9; 5])));
    assert!(matches!(store.stat(1).await, Err(StoreError::NotFound)));
    assert_eq!(store.page(None, None, 9).await, (vec![], false));
    staged.commit(new_file("a")).await.unwrap();
    assert_eq!(store.page(None, None, 9).await, (vec![id(1)], false));
}

async fn an_id_is_given_once(store: Store) {
    store.put(1, b"first").await;
    let body = pieces(vec![Ok(b"second".to_vec())]);
    let error = store.store.put(&store.workspace, id(1), new_file("b"), body, LIMIT).await.unwrap_err();
    assert!(matches!(error, StoreError::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists));
    assert_eq!(store.read(1).await, b"first");
}

async fn what_is_too_large_is_refused(store: Store) {
    let body = || pieces(vec![Ok(vec![0; 6000]), Ok(vec![0; 4001])]);
    let error = store.store.put(&store.workspace, id(1), new_file("big"), body(), 10_000).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { limit: 10_000 }));
    assert!(matches!(store.stat(1).await, Err(StoreError::NotFound)));
    store.store.put(&store.workspace, id(2), new_file("exact"), body(), 10_001).await.unwrap();
}

async fn usage_is_what_the_contents_of_one_workspace_take(store: Store) {
    assert_eq!(store.store.usage(&store.workspace).await.unwrap(), 0);
    store.put(1, &[1; 1000]).await;
    store.put(2, &[]).await;
    store.put(3, &[1; 23]).await;
    assert_eq!(store.store.usage(&store.workspace).await.unwrap(), 1023);
    assert_eq!(store.store.usage(&Workspace::named("other")).await.unwrap(), 0);
}

async fn usage_is_known_by_whose_the_files_are(store: Store) {
    let [ann, bob] = ["ann", "bob"].map(|user| store.workspace.clone().used_by(user));
    store.put(1, &[1; 1000]).await;
    let long = "報".repeat(85);
    for (number, user, name, size) in [(2, &ann, "a", 5), (3, &ann, &*long, 7), (4, &bob, "a", 11)] {
        let body = pieces(vec![Ok(vec![1; size])]);
        store.store.put(user, id(number), new_file(name), body, LIMIT).await.unwrap();
    }
    let sizes = store.store.usage_by_owner(&store.workspace).await.unwrap();
    let expected = [(&ann, 12), (&bob, 11)].map(|(user, size)| (user.user().unwrap().clone(), size));
    assert_eq!(sizes, expected.into());
    assert_eq!(store.stat(3).await.unwrap().owner.as_ref(), ann.user());
    store.store.delete(&bob, id(3)).await.unwrap();
    assert_eq!(store.store.usage_by_owner(&ann).await.unwrap()[ann.user().unwrap()], 5);
    assert!(store.store.usage_by_owner(&Workspace::named("other")).await.unwrap().is_empty());
}

async fn another_workspaces_file_answers_like_one_that_never_existed(store: Store) {
    let meta = store.put(1, b"secret").await;
    let foreign = Workspace::named("other");
    for stranger in [id(1), id(2)] {
        assert!(matches!(store.store.stat(&foreign, stranger).await, Err(StoreError::NotFound)));
        assert!(matches!(store.store.open(&foreign, stranger, now()).await, Err(StoreError::NotFound)));
        assert!(matches!(store.store.delete(&foreign, stranger).await, Err(StoreError::NotFound)));
    }
    assert!(matches!(store.store.read(&foreign, &meta, 0..6).await, Err(StoreError::NotFound)));
    let page = store.store.list(&foreign, &ListRequest { after: None, before: None, limit: 9 }).await.unwrap();
    assert!(page.files.is_empty() && !page.has_more);
    assert_eq!(store.read(1).await, b"secret");
}

async fn pages_walk_the_list_in_both_directions(store: Store) {
    for number in 1..=5 {
        store.put(number, &[number]).await;
    }
    for (after, before, limit, expected, has_more) in [
        (None, None, 2, vec![5, 4], true),
        (Some(4), None, 2, vec![3, 2], true),
        (Some(2), None, 2, vec![1], false),
        (Some(1), None, 2, vec![], false),
        (None, None, 5, vec![5, 4, 3, 2, 1], false),
        (None, Some(2), 2, vec![4, 3], true),
        (None, Some(4), 2, vec![5], false),
        (None, Some(5), 2, vec![], false),
        (Some(5), Some(1), 9, vec![4, 3, 2], false),
    ] {
        let expected: Vec<_> = expected.into_iter().map(id).collect();
        assert_eq!(store.page(after, before, limit).await, (expected, has_more), "{after:?} {before:?} {limit}");
    }
    store.store.delete(&store.workspace, id(4)).await.unwrap();
    assert_eq!(store.page(Some(4), None, 1).await, (vec![id(3)], true), "a cursor outlives its file");
}

async fn a_list_shows_what_metadata_says(store: Store) {
    let long = "報".repeat(85);
    for (number, name) in [(1, "short"), (2, long.as_str()), (3, "a b/c".split('/').next().unwrap())] {
        let file = NewFile { downloadable: number == 2, ..expiring(i64::from(number)) };
        store.put_as(number, NewFile { filename: FileName::component(name).unwrap(), ..file }, &[number]).await;
    }
    let listed =
        store.store.list(&store.workspace, &ListRequest { after: None, before: None, limit: 9 }).await.unwrap();
    let mut expected = Vec::new();
    for number in [3, 2, 1] {
        expected.push(FileSummary::from(store.stat(number).await.unwrap()));
    }
    assert_eq!(listed.files, expected);
}

async fn a_deleted_file_is_gone(store: Store) {
    store.put_as(1, expiring(3), &vec![7; 200_000]).await;
    store.put(2, b"kept").await;
    store.store.delete(&store.workspace, id(1)).await.unwrap();
    assert!(matches!(store.stat(1).await, Err(StoreError::NotFound)));
    assert!(matches!(store.store.open(&store.workspace, id(1), now()).await, Err(StoreError::NotFound)));
    assert!(matches!(store.store.delete(&store.workspace, id(1)).await, Err(StoreError::NotFound)));
    assert_eq!(store.page(None, None, 9).await, (vec![id(2)], false));
    assert_eq!(store.store.usage(&store.workspace).await.unwrap(), 4);
}

async fn an_expired_file_is_known_but_not_readable(store: Store) {
    let end = store.put_as(1, expiring(1), &[1]).await.expires_at.unwrap();
    let just_before = end - SignedDuration::from_millis(1);
    assert!(store.store.open(&store.workspace, id(1), just_before).await.is_ok());
    assert!(matches!(store.store.open(&store.workspace, id(1), end).await, Err(StoreError::Expired)));
    assert_eq!(store.stat(1).await.unwrap().expires_at, Some(end));
}

async fn a_sweep_removes_files_thirty_days_after_their_end(store: Store) {
    for (number, hours) in [(1, 1), (2, 100)] {
        store.put_as(number, expiring(hours), &[number]).await;
    }
    let day_30 = now() + SignedDuration::from_hours(30 * 24);
    assert_eq!(store.store.sweep(day_30).await.unwrap().expired, 0);
    assert!(store.stat(1).await.is_ok());
    assert_eq!(store.store.sweep(day_30 + SignedDuration::from_hours(3)).await.unwrap().expired, 1);
    assert!(matches!(store.stat(1).await, Err(StoreError::NotFound)));
    assert_eq!(store.read_until(2, day_30).await, None, "past its end, and still known");
    assert_eq!(store.store.sweep(day_30 + SignedDuration::from_hours(3)).await.unwrap().expired, 0);
}

impl Store {
    /// The content at a time; nothing when the file has expired.
    async fn read_until(&self, number: u8, time: Timestamp) -> Option<Vec<u8>> {
        match self.store.open(&self.workspace, id(number), time).await {
            Ok(file) => Some(collect(file.body).await.unwrap()),
            Err(StoreError::Expired) => None,
            Err(error) => unreachable!("{error}"),
        }
    }
}

async fn a_store_that_works_says_so(store: Store) {
    store.store.check().await.unwrap();
}
