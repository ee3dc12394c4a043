//! What the folder store leaves on its disk, and what it makes of what it finds there.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use file_store::{Body, FileId, FileMeta, FileStore, FolderStore, ListRequest, StoreError, Workspace};
use futures_util::{StreamExt, stream};
use jiff::SignedDuration;
use sha2::{Digest, Sha256};

use super::{LIMIT, collect, expiring, hex, id, new_file, now, pieces, sha256};

struct Fixture {
    folder: tempfile::TempDir,
    store: FolderStore,
    workspace: Workspace,
}

impl Fixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = FolderStore::new(&folder.path().join("a/store")).await.unwrap();
        Self { folder, store, workspace: Workspace::named("acme") }
    }

    async fn put(&self, id: FileId, content: &[u8]) -> FileMeta {
        let body = pieces(vec![Ok(content.to_vec())]);
        self.store.put(&self.workspace, id, new_file("a.bin"), body, LIMIT).await.unwrap()
    }

    async fn read(&self, id: FileId) -> Vec<u8> {
        let file = self.store.open(&self.workspace, id, now()).await.unwrap();
        let content = collect(file.body).await.unwrap();
        assert_eq!(content.len() as u64, file.meta.size_bytes);
        content
    }

    async fn ids(&self, request: ListRequest) -> (Vec<FileId>, bool) {
        let page = self.store.list(&self.workspace, &request).await.unwrap();
        (page.files.iter().map(|file| file.id).collect(), page.has_more)
    }

    /// Every regular file below the store's folder.
    fn files(&self) -> Vec<PathBuf> {
        let mut folders = vec![self.folder.path().to_owned()];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() { folders.push(entry.path()) } else { files.push(entry.path()) }
            }
        }
        files
    }

    fn file_named(&self, part: &str) -> PathBuf {
        self.files().into_iter().find(|path| path.to_str().unwrap().contains(part)).unwrap()
    }
}

fn age(path: &Path, hours: u64) {
    let time = SystemTime::from(now()) - Duration::from_secs(hours * 3600);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

#[tokio::test]
async fn a_body_that_fails_leaves_nothing() {
    let fixture = Fixture::new().await;
    let body = pieces(vec![Ok(vec![1; 400_000]), Err(io::ErrorKind::ConnectionReset.into()), Ok(vec![2; 10])]);
    let error = fixture.store.put(&fixture.workspace, id(1), new_file("cut"), body, LIMIT).await.unwrap_err();
    assert!(matches!(error, StoreError::Body(source) if source.kind() == io::ErrorKind::ConnectionReset));
    assert_eq!(fixture.files(), Vec::<PathBuf>::new());
    assert!(matches!(fixture.store.stat(&fixture.workspace, id(1)).await, Err(StoreError::NotFound)));
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_nothing() {
    let fixture = Fixture::new().await;
    let body: Body = Box::pin(stream::iter([Ok(Bytes::from(vec![3; 300_000]))]).chain(stream::pending()));
    let put = fixture.store.put(&fixture.workspace, id(1), new_file("gone"), body, LIMIT);
    let arrived = async {
        while !fixture.files().iter().any(|file| file.metadata().unwrap().len() == 300_000) {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = put => unreachable!("the body never ends"),
        () = arrived => {}
    }
    assert_eq!(fixture.files(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn staged_content_is_invisible_and_goes_when_dropped() {
    let fixture = Fixture::new().await;
    let staged = fixture.store.stage(&fixture.workspace, id(1), pieces(vec![Ok(vec![9; 5])]), LIMIT).await.unwrap();
    assert_eq!((staged.size_bytes(), staged.sha256()), (5, &*sha256(&[9; 5])));
    assert!(matches!(fixture.store.stat(&fixture.workspace, id(1)).await, Err(StoreError::NotFound)));
    assert_eq!(fixture.ids(ListRequest { after: None, before: None, limit: 9 }).await, (vec![], false));
    drop(staged);
    assert_eq!(fixture.files(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_commit_that_fails_leaves_nothing() {
    let fixture = Fixture::new().await;
    fixture.put(id(1), b"first").await;
    let index = fixture.file_named("/i/").parent().unwrap().to_owned();
    let staged = fixture.store.stage(&fixture.workspace, id(2), pieces(vec![Ok(vec![1])]), LIMIT).await.unwrap();
    fs::rename(&index, index.with_file_name("elsewhere")).unwrap();
    fs::write(&index, "in the way").unwrap();
    staged.commit(expiring(1)).await.unwrap_err();
    fs::remove_file(&index).unwrap();
    fs::rename(index.with_file_name("elsewhere"), &index).unwrap();
    let left: Vec<_> =
        fixture.files().into_iter().filter(|path| path.to_str().unwrap().contains(&id(2).to_string())).collect();
    assert_eq!(left, Vec::<PathBuf>::new());
    assert_eq!(fixture.read(id(1)).await, b"first");
}

#[tokio::test]
async fn an_id_is_given_once() {
    let fixture = Fixture::new().await;
    fixture.put(id(1), b"first").await;
    let body = pieces(vec![Ok(b"second".to_vec())]);
    let error = fixture.store.put(&fixture.workspace, id(1), new_file("b"), body, LIMIT).await.unwrap_err();
    assert!(matches!(error, StoreError::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists));
    assert_eq!(fixture.read(id(1)).await, b"first");
    assert_eq!(fixture.files().len(), 2);
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_the_rest_is_read() {
    let fixture = Fixture::new().await;
    let read = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&read);
    let body: Body = Box::pin(stream::repeat_with(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(Bytes::from_static(&[0; 1000]))
    }));
    let error = fixture.store.put(&fixture.workspace, id(1), new_file("big"), body, 10_000).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { limit: 10_000 }));
    assert_eq!(read.load(Ordering::Relaxed), 11);
    assert_eq!(fixture.files(), Vec::<PathBuf>::new());

    let exact = pieces(vec![Ok(vec![0; 10_000])]);
    fixture.store.put(&fixture.workspace, id(2), new_file("exact"), exact, 10_000).await.unwrap();
}

/// Counts the pieces that are held in memory.
struct Piece(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn large_content_streams_through_little_memory() {
    const PIECE: usize = 256 * 1024;
    let fixture = Fixture::new().await;
    let held = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (count, peak) = (Arc::clone(&held), Arc::clone(&most));
    let body: Body = Box::pin(stream::iter(0..256_u32).map(move |number| {
        peak.fetch_max(count.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(Bytes::from_owner(Piece(vec![number.to_le_bytes()[0]; PIECE], Arc::clone(&count))))
    }));
    let meta = fixture.store.put(&fixture.workspace, id(1), new_file("64M"), body, LIMIT).await.unwrap();
    assert_eq!(meta.size_bytes, 64 << 20);
    assert!(most.load(Ordering::Relaxed) <= 2, "{most:?} pieces held at once");
    assert_eq!(held.load(Ordering::Relaxed), 0);

    let mut file = fixture.store.open(&fixture.workspace, id(1), now()).await.unwrap();
    let mut hash = Sha256::new();
    while let Some(piece) = file.body.next().await {
        let piece = piece.unwrap();
        assert!(piece.len() <= 64 * 1024);
        hash.update(&piece);
    }
    assert_eq!(hex(&hash.finalize()), meta.sha256);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_puts_and_lists_of_two_processes_see_whole_files_only() {
    let fixture = Fixture::new().await;
    let other = FolderStore::new(&fixture.folder.path().join("a/store")).await.unwrap();
    let writers: Vec<_> = (0..40_u8)
        .map(|number| {
            let store = if number % 2 == 0 { fixture.store.clone() } else { other.clone() };
            let workspace = fixture.workspace.clone();
            tokio::spawn(async move {
                let content = vec![number; 1000 + usize::from(number)];
                let body = pieces(content.chunks(100).map(|piece| Ok(piece.to_vec())).collect());
                store.put(&workspace, id(number), new_file(&format!("{number}")), body, LIMIT).await.unwrap();
            })
        })
        .collect();
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        let page =
            other.list(&fixture.workspace, &ListRequest { after: None, before: None, limit: 100 }).await.unwrap();
        for file in page.files {
            assert_eq!(fixture.read(file.id).await.len() as u64, file.size_bytes);
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let (ids, has_more) = fixture.ids(ListRequest { after: None, before: None, limit: 100 }).await;
    assert_eq!((ids, has_more), ((0..40).rev().map(id).collect(), false));
    for number in 0..40_u8 {
        assert_eq!(fixture.read(id(number)).await, vec![number; 1000 + usize::from(number)]);
    }
    assert_eq!(fixture.files().len(), 80);
}

#[tokio::test]
async fn a_damaged_or_foreign_entry_never_breaks_the_list() {
    let fixture = Fixture::new().await;
    for number in 1..=3 {
        fixture.put(id(number), &[number]).await;
    }
    let index = fixture.file_named("/i/").parent().unwrap().to_owned();
    fs::write(index.join(format!("{}.~", id(2))), "{").unwrap();
    fs::write(index.join("README"), "hello").unwrap();
    fs::write(index.join("file_x.~"), "{}").unwrap();
    let (ids, has_more) = fixture.ids(ListRequest { after: None, before: None, limit: 2 }).await;
    assert_eq!((ids, has_more), (vec![id(3), id(1)], false));
    fixture.store.delete(&fixture.workspace, id(2)).await.unwrap();
}

#[tokio::test]
async fn a_deleted_file_is_gone_for_everybody_but_its_reader() {
    let fixture = Fixture::new().await;
    let body = pieces(vec![Ok(vec![7; 200_000])]);
    fixture.store.put(&fixture.workspace, id(1), expiring(3), body, LIMIT).await.unwrap();
    let reading = fixture.store.open(&fixture.workspace, id(1), now()).await.unwrap();
    fixture.store.delete(&fixture.workspace, id(1)).await.unwrap();
    assert!(matches!(fixture.store.stat(&fixture.workspace, id(1)).await, Err(StoreError::NotFound)));
    assert!(matches!(fixture.store.open(&fixture.workspace, id(1), now()).await, Err(StoreError::NotFound)));
    assert!(matches!(fixture.store.delete(&fixture.workspace, id(1)).await, Err(StoreError::NotFound)));
    assert_eq!(fixture.files(), Vec::<PathBuf>::new());
    assert_eq!(collect(reading.body).await.unwrap(), vec![7; 200_000]);
}

#[tokio::test]
async fn content_that_lost_its_end_is_never_a_short_success() {
    let fixture = Fixture::new().await;
    fixture.put(id(1), &vec![5; 100_000]).await;
    let content = fixture.file_named("/c/");
    for length in [99_999, 0] {
        fs::File::options().write(true).open(&content).unwrap().set_len(length).unwrap();
        let file = fixture.store.open(&fixture.workspace, id(1), now()).await.unwrap();
        assert_eq!(collect(file.body).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
    fs::File::options().write(true).open(&content).unwrap().set_len(100_001).unwrap();
    assert_eq!(fixture.read(id(1)).await.len(), 100_000);
}

#[tokio::test]
async fn a_sweep_removes_leftovers_and_nothing_else() {
    let fixture = Fixture::new().await;
    fixture.put(id(1), b"kept").await;
    fixture.put(id(2), b"orphan").await;
    fs::remove_file(fixture.file_named(&format!("/i/{}", id(2)))).unwrap();
    fixture.put(id(3), b"young orphan").await;
    fs::remove_file(fixture.file_named(&format!("/i/{}", id(3)))).unwrap();
    let parts = fixture.folder.path().join("a/store/v1/part");
    for (name, hours) in [("old", 25), ("young", 23)] {
        fs::write(parts.join(name), "part").unwrap();
        age(&parts.join(name), hours);
    }
    for (number, hours) in [(1, 100), (2, 25), (3, 23)] {
        age(&fixture.file_named(&format!("/c/{}", id(number))), hours);
    }
    let swept = fixture.store.sweep(now()).await.unwrap();
    assert_eq!((swept.parts, swept.orphans, swept.expired), (1, 1, 0));
    let names: HashSet<_> =
        fixture.files().iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    let kept = [id(1).to_string(), format!("{}.~", id(1)), id(3).to_string(), "young".to_owned()];
    assert_eq!(names, kept.into_iter().collect());
    assert_eq!(fixture.read(id(1)).await, b"kept");
}

#[tokio::test]
async fn a_sweep_removes_files_thirty_days_after_their_end() {
    let fixture = Fixture::new().await;
    for (number, hours) in [(1, 1), (2, 100)] {
        let body = pieces(vec![Ok(vec![number])]);
        fixture.store.put(&fixture.workspace, id(number), expiring(hours), body, LIMIT).await.unwrap();
    }
    let day_30 = now() + SignedDuration::from_hours(30 * 24);
    assert_eq!(fixture.store.sweep(day_30).await.unwrap().expired, 0);
    assert!(fixture.store.stat(&fixture.workspace, id(1)).await.is_ok());
    assert_eq!(fixture.store.sweep(day_30 + SignedDuration::from_hours(3)).await.unwrap().expired, 1);
    assert!(matches!(fixture.store.stat(&fixture.workspace, id(1)).await, Err(StoreError::NotFound)));
    assert!(fixture.store.stat(&fixture.workspace, id(2)).await.is_ok());
    assert_eq!(fixture.files().len(), 3, "content, entry and mark of the second");
}

#[tokio::test]
async fn a_store_without_its_folder_says_so() {
    let fixture = Fixture::new().await;
    fixture.store.check().await.unwrap();
    fs::remove_dir_all(fixture.folder.path().join("a")).unwrap();
    assert!(matches!(fixture.store.check().await, Err(StoreError::Io { .. })));
    let blocked = fixture.folder.path().join("file");
    fs::write(&blocked, "").unwrap();
    assert!(matches!(FolderStore::new(&blocked.join("store")).await, Err(StoreError::Io { .. })));
}
