//! Kills the largest call just before the container's memory or its processes are used up: then one call ends with a reason, where
//! the kernel might take any process, or all of them, or no call could start another.

use crate::{
    limits::{Cgroup, reserve},
    process::{
        table::{Shims, Want},
        tree::{self, Process},
    },
};
use std::{sync::Arc, time::Duration};

/// Time between two looks, while something runs. At rest nobody looks.
const ROUND: Duration = Duration::from_millis(100);
/// A call that holds less than this part of the limit is not what uses it up: files in memory can do that too.
const LEAST_PART: u64 = 8;
/// The part of the processes that is left free.
const FREE_PART: u64 = 16;

/// Watches for ever.
pub(crate) async fn watch(cgroup: Cgroup, shims: Arc<Shims>) {
    let (memory, processes) = (cgroup.memory_limit(), cgroup.process_limit());
    if memory.is_none() && processes.is_none() {
        return;
    }
    loop {
        shims.until_busy().await;
        while shims.are_busy() {
            if let Some(limit) = memory
                && cgroup.memory_use().is_some_and(|used| used > limit - reserve(limit) / 2)
            {
                kill_largest(&shims, Want::Memory, limit / LEAST_PART);
            }
            if let Some(limit) = processes
                && cgroup.process_count().is_some_and(|count| count > limit - limit / FREE_PART)
            {
                kill_largest(&shims, Want::Processes, limit / LEAST_PART);
            }
            tokio::time::sleep(ROUND).await;
        }
    }
}

/// Kills the call that uses most of what is wanting, if that is at least `least`. Whether there was one.
pub(crate) fn kill_largest(shims: &Shims, want: Want, least: u64) -> bool {
    let all = tree::snapshot();
    let weight = match want {
        Want::Memory => memory_of,
        Want::Processes => |_: &Process| 1,
    };
    largest(&all, &shims.roots(), least, weight).is_some_and(|root| shims.kill_for(want, root, &all))
}

/// Bytes of memory that a process holds.
fn memory_of(process: &Process) -> u64 {
    process.resident_pages.saturating_mul(rustix::param::page_size() as u64)
}

/// The root whose tree weighs most, if that is at least `least`.
fn largest(all: &[Process], roots: &[i32], least: u64, weight: impl Fn(&Process) -> u64) -> Option<i32> {
    let weighed = roots.iter().map(|root| {
        let weight: u64 = tree::descendants(all, *root).iter().map(&weight).sum();
        (weight, *root)
    });
    weighed.filter(|(weight, _)| *weight >= least).max().map(|(_, root)| root)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, resident_pages: u64) -> Process {
        Process { pid, parent, zombie: false, resident_pages }
    }

    #[test]
    fn the_heaviest_tree_is_found_not_the_heaviest_process() {
        let all = [process(2, 1, 0), process(20, 2, 60), process(3, 1, 0), process(30, 3, 40), process(31, 30, 30)];
        let weight = |process: &Process| process.resident_pages;
        assert_eq!(largest(&all, &[2, 3], 1, weight), Some(3));
        assert_eq!(largest(&all, &[2, 3], 71, weight), None);
        assert_eq!(largest(&all, &[], 0, weight), None);
        assert_eq!(largest(&all, &[2, 3], 1, |_| 1), Some(3));
    }
}
