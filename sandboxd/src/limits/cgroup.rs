//! The container's control group, as the container sees it. Both versions; whatever is missing or unreadable is as if there were no limit.

use std::path::{Path, PathBuf};

/// Where it is mounted.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// Version 1 writes "no limit" as a huge number.
const UNLIMITED: u64 = 1 << 60;

/// A control group.
#[derive(Clone, Debug)]
pub(crate) struct Cgroup {
    root: PathBuf,
    is_v1: bool,
}

impl Cgroup {
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), is_v1: root.join("memory").is_dir() }
    }

    fn read(&self, v2: &str, v1: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(if self.is_v1 { v1 } else { v2 })).ok()
    }

    fn number(&self, v2: &str, v1: &str) -> Option<u64> {
        self.read(v2, v1)?.trim().parse().ok()
    }

    /// The memory limit, in bytes.
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        self.number("memory.max", "memory/memory.limit_in_bytes").filter(|limit| *limit < UNLIMITED)
    }

    /// Memory in use, in bytes, without what the kernel can take back at once.
    pub(crate) fn memory_use(&self) -> Option<u64> {
        let used = self.number("memory.current", "memory/memory.usage_in_bytes")?;
        let stat = self.read("memory.stat", "memory/memory.stat").unwrap_or_default();
        let inactive = if self.is_v1 { "total_inactive_file" } else { "inactive_file" };
        Some(used.saturating_sub(value_of(&stat, inactive).unwrap_or(0)))
    }

    /// How often the kernel killed here for want of memory.
    pub(crate) fn memory_kills(&self) -> u64 {
        let events = self.read("memory.events", "memory/memory.oom_control").unwrap_or_default();
        value_of(&events, "oom_kill").unwrap_or(0)
    }

    /// How many processes and threads there may be.
    pub(crate) fn process_limit(&self) -> Option<u64> {
        self.number("pids.max", "pids/pids.max")
    }

    /// How many processes and threads there are.
    pub(crate) fn process_count(&self) -> Option<u64> {
        self.number("pids.current", "pids/pids.current")
    }

    /// Whole processors that may be used at a time, at least one; `None` without a limit.
    pub(crate) fn processors(&self) -> Option<u64> {
        let (quota, period) = if self.is_v1 {
            let file = |name| self.number("", name);
            (file("cpu/cpu.cfs_quota_us")?, file("cpu/cpu.cfs_period_us")?)
        } else {
            let text = self.read("cpu.max", "")?;
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        };
        (period > 0).then(|| quota.div_ceil(period).max(1))
    }
}

/// The number behind a word that begins a line.
fn value_of(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn group(files: &[(&str, &str)]) -> (tempfile::TempDir, Cgroup) {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let cgroup = Cgroup::at(dir.path());
        (dir, cgroup)
    }

    #[test]
    fn version_2_is_read() {
        let (_dir, cgroup) = group(&[
            ("memory.max", "536870912\n"),
            ("memory.current", "1000\n"),
            ("memory.stat", "anon 5\nactive_file 7\ninactive_file 300\n"),
            ("memory.events", "low 0\noom 4\noom_kill 2\noom_group_kill 1\n"),
            ("cpu.max", "150000 100000\n"),
            ("pids.max", "1024\n"),
            ("pids.current", "7\n"),
        ]);
        assert_eq!((cgroup.process_limit(), cgroup.process_count()), (Some(1024), Some(7)));
        assert_eq!(cgroup.memory_limit(), Some(512 << 20));
        assert_eq!((cgroup.memory_use(), cgroup.memory_kills()), (Some(700), 2));
        assert_eq!(cgroup.processors(), Some(2));
    }

    #[test]
    fn version_1_is_read() {
        let (_dir, cgroup) = group(&[
            ("memory/memory.limit_in_bytes", "536870912\n"),
            ("memory/memory.usage_in_bytes", "1000\n"),
            ("memory/memory.stat", "inactive_file 1\ntotal_inactive_file 300\n"),
            ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            ("cpu/cpu.cfs_quota_us", "50000\n"),
            ("cpu/cpu.cfs_period_us", "100000\n"),
            ("pids/pids.max", "1024\n"),
            ("pids/pids.current", "7\n"),
        ]);
        assert_eq!((cgroup.process_limit(), cgroup.process_count()), (Some(1024), Some(7)));
        assert_eq!(cgroup.memory_limit(), Some(512 << 20));
        assert_eq!((cgroup.memory_use(), cgroup.memory_kills()), (Some(700), 2));
        assert_eq!(cgroup.processors(), Some(1));
    }

    #[test]
    fn no_limit_is_none() {
        let (_dir, v2) = group(&[("memory.max", "max\n"), ("cpu.max", "max 100000\n"), ("pids.max", "max\n")]);
        assert_eq!((v2.memory_limit(), v2.memory_use(), v2.processors()), (None, None, None));
        assert_eq!(v2.process_limit(), None);
        let (_dir, v1) =
            group(&[("memory/memory.limit_in_bytes", "9223372036854771712\n"), ("cpu/cpu.cfs_quota_us", "-1\n")]);
        assert_eq!((v1.memory_limit(), v1.processors()), (None, None));
        assert_eq!(Cgroup::at(Path::new("/nowhere")).memory_limit(), None);
    }
}
