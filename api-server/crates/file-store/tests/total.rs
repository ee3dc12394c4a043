//! The total of a workspace, over the folder store.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use file_store::{
    Body, FileId, FileMeta, FileName, FileStore, FolderStore, Limited, NewFile, Origin, StoreError, Totals, Whose,
    Workspace,
};
use futures_util::stream;
use jiff::Timestamp;

const TOTAL: u64 = 10;
const OWN: u64 = 6;
const TOTALS: Totals = Totals { workspace: TOTAL, user: Some(OWN) };

struct Fixture {
    folder: tempfile::TempDir,
    store: Limited,
}

impl Fixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = FolderStore::new(folder.path()).await.unwrap();
        Self { store: Limited::new(Arc::new(store), TOTALS), folder }
    }

    async fn put(&self, workspace: &str, number: u8, size: usize, limit: u64) -> Result<FileMeta, StoreError> {
        self.store.put(&Workspace::named(workspace), id(number), new_file(), content(size), limit).await
    }

    fn contents(&self) -> usize {
        count(self.folder.path())
    }
}

fn count(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
}

fn id(number: u8) -> FileId {
    FileId::new(u64::from(number), [number; 10])
}

fn content(size: usize) -> Body<'static> {
    Box::pin(stream::iter([Ok(Bytes::from(vec![1; size]))]))
}

fn new_file() -> NewFile {
    NewFile {
        filename: FileName::component("a.bin").unwrap(),
        mime_type: "application/octet-stream".into(),
        created_at: Timestamp::UNIX_EPOCH,
        expires_at: None,
        downloadable: false,
        origin: Origin::Upload,
    }
}

#[tokio::test]
async fn a_workspace_holds_its_total_and_no_more() {
    let fixture = Fixture::new().await;
    fixture.put("acme", 1, 6, 100).await.unwrap();
    let refused = fixture.put("acme", 2, 5, 100).await.unwrap_err();
    assert!(matches!(refused, StoreError::OverTotal { whose: Whose::Workspace, limit: TOTAL }), "{refused}");
    assert_eq!(fixture.contents(), 2, "content and entry of the first");
    fixture.put("other", 3, 10, 100).await.unwrap();
    fixture.put("acme", 4, 4, 100).await.unwrap();
    assert!(matches!(fixture.put("acme", 5, 0, 100).await, Err(StoreError::OverTotal { .. })));
    fixture.store.delete(&Workspace::named("acme"), id(1)).await.unwrap();
    fixture.put("acme", 6, 6, 100).await.unwrap();
}

#[tokio::test]
async fn a_file_over_its_own_limit_is_too_large_whatever_room_there_is() {
    let fixture = Fixture::new().await;
    assert!(matches!(fixture.put("acme", 1, 4, 3).await, Err(StoreError::TooLarge { limit: 3 })));
}

#[tokio::test]
async fn simultaneous_files_do_not_pass_together_what_each_alone_may() {
    let fixture = Fixture::new().await;
    let workspace = Workspace::named("acme");
    let one = fixture.store.stage(&workspace, id(1), content(6), 100).await.unwrap();
    let two = fixture.store.stage(&workspace, id(2), content(6), 100).await.unwrap();
    one.commit(new_file()).await.unwrap();
    assert!(matches!(two.commit(new_file()).await, Err(StoreError::OverTotal { .. })));
    assert_eq!(fixture.contents(), 2);
}

#[tokio::test]
async fn what_was_there_before_counts() {
    let fixture = Fixture::new().await;
    fixture.put("acme", 1, 6, 100).await.unwrap();
    let later = Limited::new(Arc::new(FolderStore::new(fixture.folder.path()).await.unwrap()), TOTALS);
    let put = later.put(&Workspace::named("acme"), id(2), new_file(), content(5), 100).await;
    assert!(matches!(put, Err(StoreError::OverTotal { .. })));
}

#[tokio::test]
async fn a_user_holds_no_more_than_a_users_total() {
    let fixture = Fixture::new().await;
    let [ann, bob] = ["ann", "bob"].map(|user| Workspace::named("acme").used_by(user));
    let put = async |user: &Workspace, number, size| {
        fixture.store.put(user, id(number), new_file(), content(size), 100).await.map(drop)
    };
    put(&ann, 1, 4).await.unwrap();
    let refused = put(&ann, 2, 3).await.unwrap_err();
    assert!(matches!(refused, StoreError::OverTotal { whose: Whose::User, limit: OWN }), "{refused}");
    put(&ann, 3, 2).await.unwrap();
    assert!(matches!(put(&ann, 4, 1).await, Err(StoreError::OverTotal { whose: Whose::User, .. })));
    // Less is left of the workspace's total than of the other's own.
    let refused = put(&bob, 5, 5).await.unwrap_err();
    assert!(matches!(refused, StoreError::OverTotal { whose: Whose::Workspace, limit: TOTAL }), "{refused}");
    put(&bob, 6, 4).await.unwrap();
    // Whoever deletes it: the room is the owner's.
    fixture.store.delete(&bob, id(1)).await.unwrap();
    put(&ann, 7, 4).await.unwrap();
    assert_eq!(fixture.contents(), 6, "content and entry of three files");
}
