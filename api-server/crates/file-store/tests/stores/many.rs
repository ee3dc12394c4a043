//! A page costs the same however many files there are and wherever it lies.

use std::{fs, sync::Arc};

use bytes::Bytes;
use file_store::{FileId, FolderStore, ListRequest};
use rustix::fs::inotify;

use crate::{NOW, Store, server::S3Server};

const FEW: u32 = 100;
const MANY: u32 = 100_000;
const LIMIT: usize = 20;

/// The id of the file that is the number-th newest.
fn nth(number: u32) -> FileId {
    let millis = u64::try_from(NOW).unwrap() * 1000 + u64::from(MANY - number);
    FileId::new(millis, [1; 10])
}

/// A first, a middle and a last page: what they come after, and whether more follow.
fn pages(count: u32) -> [(Option<FileId>, bool); 3] {
    let last = count - u32::try_from(LIMIT).unwrap();
    [(None, true), (Some(nth(count / 2)), true), (Some(nth(last - 1)), false)]
}

async fn read_page(store: &Store, after: Option<FileId>, has_more: bool) {
    let request = ListRequest { after, before: None, limit: LIMIT };
    let page = store.store.list(&store.workspace, &request).await.unwrap();
    assert_eq!((page.files.len(), page.has_more), (LIMIT, has_more), "after {after:?}");
    assert!(page.files.is_sorted_by_key(|file| file.id) && after.is_none_or(|after| after < page.files[0].id));
}

#[tokio::test]
async fn in_a_bucket_it_is_one_request() {
    for count in [FEW, MANY] {
        let server = S3Server::start().await;
        let store = Store::new(Arc::new(server.store().await));
        store.put(1, b"").await;
        let index = server.bucket.left().into_iter().find(|name| name.contains("/i/")).unwrap();
        server.bucket.remove(&index);
        // What a name says of a file does not depend on its id.
        let (folder, name) = index.rsplit_once('/').unwrap();
        let (_, shown) = name.split_once('.').unwrap();
        server.bucket.insert_all((0..count).map(|number| (format!("{folder}/{}.{shown}", nth(number)), Bytes::new())));
        server.asked();
        for (after, has_more) in pages(count) {
            read_page(&store, after, has_more).await;
            assert_eq!(server.asked().len(), 1, "{count} files, after {after:?}");
        }
    }
}

#[tokio::test]
async fn in_a_folder_it_is_one_look_at_the_names_and_one_at_each_file_shown() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(Arc::new(FolderStore::new(folder.path()).await.unwrap()));
    store.put(1, b"").await;
    let workspaces = fs::read_dir(folder.path().join("v1")).unwrap().map(|entry| entry.unwrap().path().join("i"));
    let index = workspaces.into_iter().find(|path| path.is_dir()).unwrap();
    let first = fs::read_dir(&index).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&first).unwrap();
    let (before, after) = text.split_once(&crate::id(1).to_string()).unwrap();
    fs::remove_file(first).unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, &index, inotify::WatchFlags::OPEN).unwrap();
    let opened = || {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 16 * 1024];
        let mut events = inotify::Reader::new(&watch, &mut buffer);
        std::iter::from_fn(|| events.next().ok().map(|_| ())).count()
    };
    let mut made = 0;
    for count in [FEW, MANY] {
        for number in made..count {
            let id = nth(number);
            fs::write(index.join(format!("{id}.~")), format!("{before}{id}{after}")).unwrap();
            // The queue of what was opened has an end.
            if number % 1000 == 0 {
                opened();
            }
        }
        made = count;
        opened();
        for (after, has_more) in pages(count) {
            read_page(&store, after, has_more).await;
            assert_eq!(opened(), 1 + LIMIT, "{count} files, after {after:?}");
        }
    }
}
