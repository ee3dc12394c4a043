//! The seccomp filter of a local sandbox: what no program in it needs, and what kernels were broken by.

use rustix::fs::{MemfdFlags, memfd_create};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Seek, Write},
    os::fd::OwnedFd,
};

/// Refused with EPERM. User namespaces are switched off by bubblewrap itself.
const DENIED: [libc::c_long; 21] = [
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_umount2,
    libc::SYS_userfaultfd,
];

/// Kinds of sockets that ordinary programs use; all others are refused, vsock (a way to the host of a virtual machine) first.
const SOCKETS: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// On `x86_64` every call has a second number, for the x32 ABI.
#[cfg(target_arch = "x86_64")]
const ALIASES: &[i64] = &[0, 0x4000_0000];
#[cfg(not(target_arch = "x86_64"))]
const ALIASES: &[i64] = &[0];

fn rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let unusual_socket = SOCKETS
        .iter()
        .map(|family| {
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, u64::from(family.unsigned_abs()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let unusual_socket = SeccompRule::new(unusual_socket)?;
    let mut rules = BTreeMap::new();
    for alias in ALIASES {
        for call in DENIED {
            rules.insert(call | alias, Vec::new());
        }
        for call in [libc::SYS_socket, libc::SYS_socketpair] {
            rules.insert(call | alias, vec![unusual_socket.clone()]);
        }
    }
    Ok(rules)
}

/// The filter as the kernel reads it. Calls of another architecture kill the process.
pub(super) fn program() -> io::Result<Vec<u8>> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let filter = SeccompFilter::new(
        rules().map_err(io::Error::other)?,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        arch,
    )
    .map_err(io::Error::other)?;
    let program = BpfProgram::try_from(filter).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(program.len() * 8);
    for step in program {
        bytes.extend_from_slice(&step.code.to_ne_bytes());
        bytes.extend_from_slice(&[step.jt, step.jf]);
        bytes.extend_from_slice(&step.k.to_ne_bytes());
    }
    Ok(bytes)
}

/// A file of memory that holds the program. Stays open over an exec: bubblewrap reads it by its number.
pub(super) fn inheritable(program: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("seccomp", MemfdFlags::empty())?);
    file.write_all(program)?;
    file.rewind()?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_whole_instructions_and_within_the_kernels_limit() {
        let program = program().unwrap();
        assert_eq!(program.len() % 8, 0);
        assert!((100..4096 * 8).contains(&program.len()), "{}", program.len());
    }

    #[test]
    fn every_denied_call_is_denied_under_all_its_numbers() {
        let rules = rules().unwrap();
        for call in DENIED {
            for alias in ALIASES {
                assert_eq!(rules.get(&(call | alias)), Some(&Vec::new()));
            }
        }
    }
}
