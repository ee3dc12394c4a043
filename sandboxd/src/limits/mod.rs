//! What the container may use, and what is done before it is used up.

mod cgroup;
pub(crate) mod watchdog;

pub(crate) use cgroup::{Cgroup, ROOT as CGROUP_ROOT};

use rustix::process::{Resource, Rlimit, setrlimit};

/// Smallest room that is left to the kernel and to us, in bytes.
const LEAST_RESERVE: u64 = 8 * 1024 * 1024;

/// What is left free of a memory limit when calls are held to it.
pub(crate) fn reserve(limit: u64) -> u64 {
    (limit / 16).max(LEAST_RESERVE).min(limit / 4)
}

/// Bounds what every process that is started from here on may allocate, a little below the container's limit: one greedy process
/// then sees a failed allocation, where the kernel would kill, on some clusters the whole container.
pub(crate) fn bound_allocations(cgroup: &Cgroup) -> rustix::io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let Some(limit) = cgroup.memory_limit() else { return Ok(()) };
    let allowed = limit - reserve(limit);
    setrlimit(Resource::Data, Rlimit { current: Some(allowed), maximum: Some(allowed) })
}

/// A number of bytes for people.
pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_small_beside_any_limit() {
        const MIB: u64 = 1 << 20;
        for (limit, expected) in
            [(16 * MIB, 4 * MIB), (64 * MIB, 8 * MIB), (512 * MIB, 32 * MIB), (4096 * MIB, 256 * MIB), (0, 0)]
        {
            assert_eq!(reserve(limit), expected, "{limit}");
        }
    }
}
