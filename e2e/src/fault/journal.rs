//! What has passed through: every write in order, and how many reads.

use serde::Serialize;

/// One write that a client sent.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Number among the counted writes, from 1; none for what does not count, such as Events and Leases.
    pub n: Option<u64>,
    /// When it came, in milliseconds of the Unix epoch.
    pub at_ms: u64,
    /// HTTP method.
    pub verb: String,
    /// Path and query.
    pub path: String,
    /// User agent of the client.
    pub agent: String,
    /// What the API server answered; none while it has not, or was never asked.
    pub status: Option<u16>,
    /// What was done to it.
    pub fault: Option<String>,
}

/// All of it, since the last [`Journal::clear`].
#[derive(Debug, Default, Serialize)]
pub struct Journal {
    writes: Vec<Entry>,
    reads: u64,
    open_watches: u64,
    /// Entries of an older epoch are gone, and their answers with them.
    #[serde(skip)]
    epoch: u64,
}

/// Where an entry is, to add its answer.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    epoch: u64,
    index: usize,
}

impl Journal {
    /// Adds a write that has just come.
    pub fn begin(&mut self, entry: Entry) -> Place {
        self.writes.push(entry);
        Place { epoch: self.epoch, index: self.writes.len() - 1 }
    }

    /// Adds what the API server answered to it.
    pub fn answered(&mut self, place: Place, status: u16) {
        if place.epoch == self.epoch
            && let Some(entry) = self.writes.get_mut(place.index)
        {
            entry.status = Some(status);
        }
    }

    /// Counts a request that changes nothing.
    pub fn read(&mut self) {
        self.reads += 1;
    }

    /// A watch was opened.
    pub fn watch_opened(&mut self) {
        self.open_watches += 1;
    }

    /// A watch has ended.
    pub fn watch_closed(&mut self) {
        self.open_watches = self.open_watches.saturating_sub(1);
    }

    /// Forgets everything but the watches that are open.
    pub fn clear(&mut self) {
        self.writes.clear();
        self.reads = 0;
        self.epoch += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write() -> Entry {
        Entry {
            n: Some(1),
            at_ms: 0,
            verb: "POST".into(),
            path: "/x".into(),
            agent: String::new(),
            status: None,
            fault: None,
        }
    }

    #[test]
    fn an_answer_that_comes_after_the_journal_was_cleared_changes_no_other_entry() {
        let mut journal = Journal::default();
        let old = journal.begin(write());
        journal.clear();
        let new = journal.begin(write());
        journal.answered(old, 500);
        assert_eq!(journal.writes[0].status, None);
        journal.answered(new, 201);
        assert_eq!(journal.writes[0].status, Some(201));
    }

    #[test]
    fn clearing_keeps_the_number_of_open_watches() {
        let mut journal = Journal::default();
        journal.watch_opened();
        journal.read();
        journal.clear();
        assert_eq!((journal.reads, journal.open_watches), (0, 1));
        journal.watch_closed();
        assert_eq!(journal.open_watches, 0);
    }
}
