//! The process tree as `/proc` shows it. A snapshot is never atomic, so callers repeat until nothing is found.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::{HashMap, HashSet};

/// One process of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    /// Dead and not yet reaped: nothing is left to kill.
    pub(crate) zombie: bool,
    /// Memory in pages, shared ones included.
    pub(crate) resident_pages: u64,
}

/// Reads one line of `/proc/PID/stat`. The name in it may hold any byte, parentheses and line feeds too.
pub(crate) fn parse_stat(stat: &[u8]) -> Option<Process> {
    let end_of_name = stat.iter().rposition(|b| *b == b')')?;
    let start_of_name = stat.iter().position(|b| *b == b'(')?;
    let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.trim().parse().ok();
    let pid = number(stat.get(..start_of_name)?)?;
    let mut fields = stat.get(end_of_name + 1..)?.split(|b| *b == b' ').filter(|field| !field.is_empty());
    let state = fields.next()?;
    let parent = number(fields.next()?)?;
    // Field 24 of proc(5); the parent is field 4.
    let resident = fields.nth(19).and_then(|field| std::str::from_utf8(field).ok()?.trim().parse().ok());
    Some(Process { pid, parent, zombie: matches!(state, b"Z" | b"X"), resident_pages: resident.unwrap_or(0) })
}

/// The process with this id, if it exists.
pub(crate) fn process(pid: i32) -> Option<Process> {
    parse_stat(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Every process that can be seen.
pub(crate) fn snapshot() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(process).collect()
}

/// Everything beneath `root`, without it.
pub(crate) fn descendants(all: &[Process], root: i32) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let (mut found, mut seen, mut open) = (Vec::new(), HashSet::from([root]), vec![root]);
    while let Some(parent) = open.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            // A reused id in a snapshot that is not atomic could close a ring.
            if seen.insert(child.pid) {
                found.push(**child);
                open.push(child.pid);
            }
        }
    }
    found
}

/// Children of `own` that are not among `spared`, with everything beneath them.
pub(crate) fn orphans(all: &[Process], own: i32, spared: &[i32]) -> Vec<Process> {
    let top = all.iter().filter(|p| p.parent == own && !spared.contains(&p.pid));
    top.flat_map(|p| std::iter::once(*p).chain(descendants(all, p.pid))).collect()
}

/// Sends SIGKILL to all of them that still live; how many those were.
pub(crate) fn kill_all(processes: &[Process]) -> usize {
    let living = processes.iter().filter(|p| !p.zombie).filter_map(|p| Pid::from_raw(p.pid));
    // One that has ended in the meantime needs no signal, and is counted: the caller looks again.
    let signalled = living.inspect(|pid| {
        let _ = kill_process(*pid, Signal::KILL);
    });
    signalled.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32) -> Process {
        Process { pid, parent, zombie: false, resident_pages: 0 }
    }

    #[test]
    fn a_hostile_process_name_does_not_move_the_fields() {
        let stat = b"42 (a) Z 1 (x\n) S 7 42 42 0 -1";
        assert_eq!(parse_stat(stat), Some(process(42, 7)));
        assert!(parse_stat(b"9 (d) Z 1 9").is_some_and(|p| p.zombie));
        assert_eq!(parse_stat(b""), None);
        assert_eq!(parse_stat(b"12 (never ends"), None);
    }

    #[test]
    fn memory_is_the_24th_field() {
        let fields: Vec<_> = (4..=52).map(|n| n.to_string()).collect();
        let stat = format!("42 (a) R {}", fields.join(" "));
        assert_eq!(parse_stat(stat.as_bytes()), Some(Process { resident_pages: 24, ..process(42, 4) }));
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_order() {
        let all = [process(9, 8), process(5, 1), process(8, 5), process(6, 1), process(1, 0)];
        let mut pids: Vec<_> = descendants(&all, 5).iter().map(|p| p.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [8, 9]);
    }

    #[test]
    fn a_ring_ends() {
        assert_eq!(descendants(&[process(2, 3), process(3, 2)], 2).len(), 1);
    }

    #[test]
    fn orphans_are_children_of_ours_that_are_no_shim() {
        let all = [process(1, 0), process(5, 1), process(6, 5), process(7, 1), process(8, 7), process(90, 0)];
        let mut pids: Vec<_> = orphans(&all, 1, &[5]).iter().map(|p| p.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [7, 8]);
    }

    #[test]
    fn this_process_is_in_a_snapshot() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(snapshot().iter().any(|p| p.pid == own && !p.zombie && p.resident_pages > 0));
    }
}
