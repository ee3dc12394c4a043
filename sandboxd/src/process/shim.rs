//! The shim: one small process per run, between `sandboxd` and the shell.
//!
//! It is the subreaper of everything that the command starts, so that no double fork leaves the run's tree, and it stays
//! until the last of them has ended. It tells how the shell ended as soon as it has, on a pipe that the shell cannot reach.

use crate::sys::{self, FIRST_FREE_FD, Spawn};
use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{
        DumpableBehavior, Pid, Resource, Rlimit, WaitOptions, WaitStatus, getpid, set_child_subreaper,
        set_dumpable_behavior, setrlimit, wait,
    },
};
use std::{
    ffi::{CString, OsString},
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd, RawFd},
        unix::ffi::OsStringExt as _,
    },
    process::ExitCode,
};

/// Subcommand of the shim. Its arguments: working directory, path of the shell, the shell's own arguments.
pub(crate) const SUBCOMMAND: &str = "shim";
/// Where the shim finds the pipe for its report.
pub(crate) const REPORT_FD: RawFd = 3;
/// Where the shell finds a command that is too long for an argument.
pub(crate) const SCRIPT_FD: RawFd = 9;
/// Bytes of a report: short enough to be written and read at once.
pub(crate) const REPORT_LEN: usize = 8;

/// What a shim says, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The shell exited with this code.
    Exited(i32),
    /// The shell was ended by this signal.
    Signalled(i32),
    /// The shell could not be started: an error number.
    NotStarted(i32),
}

impl Report {
    pub(crate) fn encode(self) -> [u8; REPORT_LEN] {
        let (kind, value): (i32, i32) = match self {
            Self::Exited(code) => (0, code),
            Self::Signalled(signal) => (1, signal),
            Self::NotStarted(error) => (2, error),
        };
        let mut out = [0; REPORT_LEN];
        let (first, second) = out.split_at_mut(4);
        first.copy_from_slice(&kind.to_ne_bytes());
        second.copy_from_slice(&value.to_ne_bytes());
        out
    }

    pub(crate) fn decode(bytes: [u8; REPORT_LEN]) -> Option<Self> {
        let [a, b, c, d, value @ ..] = bytes;
        let value = i32::from_ne_bytes(value);
        match i32::from_ne_bytes([a, b, c, d]) {
            0 => Some(Self::Exited(value)),
            1 => Some(Self::Signalled(value)),
            2 => Some(Self::NotStarted(value)),
            _ => None,
        }
    }

    fn of(status: WaitStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signalled(signal),
            (None, None) => Self::Exited(0),
        }
    }
}

/// Runs the shim; returns when nothing beneath it is left.
pub(crate) fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    sys::block_all_signals();
    let Ok(report) = sys::inherited(REPORT_FD) else { return ExitCode::FAILURE };
    let mut report = File::from(report);
    let shell = match start_shell(args) {
        Ok(shell) => shell,
        Err(e) => return tell(&mut report, Report::NotStarted(e.raw_os_error().unwrap_or(libc::EINVAL))),
    };
    let mut report = Some(report);
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == shell => {
                if let Some(mut report) = report.take() {
                    tell(&mut report, Report::of(status));
                }
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No child is left.
            Err(_) => return ExitCode::SUCCESS,
        }
    }
}

fn tell(report: &mut File, what: Report) -> ExitCode {
    match report.write_all(&what.encode()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn start_shell(args: impl Iterator<Item = OsString>) -> io::Result<Pid> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_child_subreaper(Some(getpid()))?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let args: Vec<CString> = args.map(|arg| CString::new(arg.into_vec())).collect::<Result<_, _>>()?;
    let [directory, program, args @ ..] = args.as_slice() else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    rustix::process::chdir(directory.as_c_str())?;
    let env: Vec<CString> = std::env::vars_os()
        .map(|(name, value)| CString::new([name.into_vec(), value.into_vec()].join(&b'=')))
        .collect::<Result<_, _>>()?;
    let shell = sys::spawn(&Spawn { program, args, env: &env, descriptors: &[], own_session: true })?;
    // The shim itself stays as it is: it is small, and the run's result is lost with it. Written from here, since a process
    // that is not dumpable may not write its own. Children that the shell starts inherit it; a shell that is gone needs none.
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", shell.as_raw_nonzero()), "1000");
    release_streams()?;
    Ok(shell)
}

/// Lets go of the shell's stdout, stderr and script, so that readers see their end when the run's processes are gone.
fn release_streams() -> io::Result<()> {
    let null: OwnedFd = fcntl_dupfd_cloexec(io::stdin().as_fd(), FIRST_FREE_FD)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    if let Ok(script) = sys::inherited(SCRIPT_FD) {
        drop(script);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_pipe() {
        for report in [Report::Exited(7), Report::Signalled(9), Report::NotStarted(2), Report::Exited(-1)] {
            assert_eq!(Report::decode(report.encode()), Some(report));
        }
        assert_eq!(Report::decode([9; REPORT_LEN]), None);
    }
}
