//! MD5 entity tags of files in containers, remembered as long as the container's own tag for the file stays the same.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Tags that are remembered, each of a few hundred bytes.
const MOST: usize = 10_000;

/// Name of the container, and its own entity tag for the file: that changes whenever the content may have.
type Key = (String, String);

/// The tags of a server.
#[derive(Default)]
pub struct Tags(Mutex<Known>);

#[derive(Default)]
struct Known {
    md5: HashMap<Key, String>,
    oldest_first: VecDeque<Key>,
}

impl Tags {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The MD5, in lower-case hex, of what the container tags so.
    pub fn get(&self, container: &str, etag: &str) -> Option<String> {
        self.known().md5.get(&(container.to_owned(), etag.to_owned())).cloned()
    }

    /// Remembers it.
    pub fn put(&self, container: &str, etag: &str, md5: &str) {
        let mut known = self.known();
        let key = (container.to_owned(), etag.to_owned());
        if known.md5.insert(key.clone(), md5.to_owned()).is_none() {
            known.oldest_first.push_back(key);
        }
        while known.oldest_first.len() > MOST {
            if let Some(oldest) = known.oldest_first.pop_front() {
                known.md5.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten_first() {
        let tags = Tags::default();
        for n in 0..=MOST {
            tags.put("box", &n.to_string(), "md5");
            tags.put("box", &n.to_string(), "md5");
        }
        assert_eq!(tags.get("box", "0"), None);
        assert_eq!(tags.get("box", "1").as_deref(), Some("md5"));
        assert_eq!(tags.get("other", "1"), None);
        assert_eq!(tags.known().md5.len(), MOST);
    }
}
