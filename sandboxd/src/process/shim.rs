//! The shim: one small process per run, between `sandboxd` and the shell.
//!
//! It is the subreaper of everything that the command starts, so that no double fork leaves the run's tree, and it stays
//! until the last of them has ended. It tells how the shell ended as soon as it has, on a pipe that the shell cannot reach.
//!
//! It is started before there is anything to do, since that takes as long as starting a shell; its work comes over a socket.

use crate::{
    descriptors,
    runs::pipes::memory_file,
    sys::{self, FIRST_FREE_FD, Spawn},
};
use rustix::{
    io::{Errno, fcntl_dupfd_cloexec},
    process::{
        DumpableBehavior, Pid, WaitOptions, WaitStatus, getpid, set_child_subreaper, set_dumpable_behavior, wait,
    },
};
use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
    process::ExitCode,
};

/// Subcommand of the shim.
pub(crate) const SUBCOMMAND: &str = "shim";
/// Where the shim finds the socket over which its work comes.
pub(crate) const WORK_FD: RawFd = 3;
/// Where the shell finds a command that is too long for an argument.
pub(crate) const SCRIPT_FD: RawFd = 9;
/// Where an interpreter finds its control pipe: messages to it, and from it.
pub(crate) const CONTROL_FDS: [RawFd; 2] = [10, 11];
/// Bytes of a report: short enough to be written and read at once.
pub(crate) const REPORT_LEN: usize = 8;

/// What a shim is to do.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    /// Working directory.
    pub(crate) directory: &'a CStr,
    /// Path of the shell.
    pub(crate) program: &'a CStr,
    /// Its arguments, its name first.
    pub(crate) args: &'a [CString],
    /// Its whole environment.
    pub(crate) env: &'a [CString],
    /// Where the report goes.
    pub(crate) report: BorrowedFd<'a>,
    /// The shell's descriptors, by the numbers that it finds them under.
    pub(crate) descriptors: &'a [(BorrowedFd<'a>, RawFd)],
}

impl Work<'_> {
    /// Hands it over to a shim that waits for it.
    pub(crate) fn hand_over(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let text = memory_file(&self.text())?;
        let all: Vec<BorrowedFd<'_>> =
            [text.as_fd(), self.report].into_iter().chain(self.descriptors.iter().map(|(fd, _)| *fd)).collect();
        Ok(descriptors::send(socket, &all)?)
    }

    /// Everything but the descriptors, each part ended by NUL.
    fn text(&self) -> Vec<u8> {
        let numbers: Vec<String> = self.descriptors.iter().map(|(_, number)| number.to_string()).collect();
        let heads = [numbers.join(","), self.args.len().to_string()];
        let heads = heads.iter().map(String::as_bytes);
        let strings = [self.directory, self.program].map(CStr::to_bytes).into_iter();
        let lists = self.args.iter().chain(self.env).map(CString::as_bytes);
        let mut text = Vec::new();
        for part in heads.chain(strings).chain(lists) {
            text.extend_from_slice(part);
            text.push(0);
        }
        text
    }
}

/// A piece of work as it arrives.
struct Received {
    report: File,
    directory: CString,
    program: CString,
    args: Vec<CString>,
    env: Vec<CString>,
    descriptors: Vec<(OwnedFd, RawFd)>,
}

impl Received {
    /// Waits for it; `None` when there will be none.
    fn wait(socket: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let Some(descriptors) = descriptors::receive(socket)? else { return Ok(None) };
        let mut descriptors = descriptors.into_iter();
        let (Some(text), Some(report)) = (descriptors.next(), descriptors.next()) else {
            return Err(Errno::INVAL.into());
        };
        let mut bytes = Vec::new();
        File::from(text).read_to_end(&mut bytes)?;
        Self::read(&bytes, File::from(report), descriptors).map(Some)
    }

    fn read(text: &[u8], report: File, descriptors: impl Iterator<Item = OwnedFd>) -> io::Result<Self> {
        let malformed = || io::Error::from(Errno::INVAL);
        let mut parts = text.split_inclusive(|byte| *byte == 0).map(CStr::from_bytes_with_nul);
        let mut next = || parts.next()?.ok().map(CStr::to_owned);
        let mut head = || next()?.into_string().ok();
        let (numbers, args) = head().zip(head()).ok_or_else(malformed)?;
        let args: usize = args.parse().map_err(|_| malformed())?;
        let numbers = numbers.split(',').map(str::parse).collect::<Result<Vec<RawFd>, _>>().map_err(|_| malformed())?;
        let (directory, program) = next().zip(next()).ok_or_else(malformed)?;
        let mut lists: Vec<CString> = std::iter::from_fn(next).collect();
        let env = if args <= lists.len() { lists.split_off(args) } else { return Err(malformed()) };
        // Numbers on which no placement in the shell falls.
        let moved = descriptors.map(|fd| fcntl_dupfd_cloexec(fd, FIRST_FREE_FD)).collect::<Result<Vec<_>, _>>()?;
        let descriptors = moved.into_iter().zip(numbers).collect();
        Ok(Self { report, directory, program, args: lists, env, descriptors })
    }

    /// Starts the shell. What it got is closed here, so that readers see its end when the run's processes are gone.
    fn start(self) -> (File, io::Result<Pid>) {
        let Self { report, directory, program, args, env, descriptors } = self;
        let placed: Vec<_> = descriptors.iter().map(|(fd, number)| (fd.as_raw_fd(), *number)).collect();
        let what = Spawn { program: &program, args: &args, env: &env, descriptors: &placed, own_session: true };
        let shell =
            rustix::process::chdir(directory.as_c_str()).map_err(io::Error::from).and_then(|()| sys::spawn(&what));
        if let Ok(shell) = &shell {
            // The shim itself stays as it is: it is small, and the run's result is lost with it. Written from here, since a process
            // that is not dumpable may not write its own. Children that the shell starts inherit it; a shell that is gone needs none.
            let _ = std::fs::write(format!("/proc/{}/oom_score_adj", shell.as_raw_nonzero()), "1000");
        }
        (report, shell)
    }
}

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
pub(crate) fn run() -> ExitCode {
    sys::block_all_signals();
    let Ok(Some(work)) = wait_for_work() else { return ExitCode::FAILURE };
    let (mut report, shell) = work.start();
    let shell = match shell {
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
            Ok(_) | Err(Errno::INTR) => {}
            // No child is left.
            Err(_) => return ExitCode::SUCCESS,
        }
    }
}

fn wait_for_work() -> io::Result<Option<Received>> {
    let socket = sys::inherited(WORK_FD)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_child_subreaper(Some(getpid()))?;
    Received::wait(socket.as_fd())
}

fn tell(report: &mut File, what: Report) -> ExitCode {
    match report.write_all(&what.encode()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
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

    #[test]
    fn work_arrives_as_it_was_handed_over() {
        let strings = |list: &[&str]| list.iter().map(|text| CString::new(*text).unwrap()).collect::<Vec<_>>();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (args, env) = (strings(&["bash", "-c", "", "a\nb"]), strings(&["A=1", "B="]));
        let (input, report) = (File::open("/dev/null").unwrap(), tempfile::tempfile().unwrap());
        let work = Work {
            directory: c"/w",
            program: c"/bin/bash",
            args: &args,
            env: &env,
            report: report.as_fd(),
            descriptors: &[(input.as_fd(), 0), (input.as_fd(), SCRIPT_FD)],
        };
        work.hand_over(ours.as_fd()).unwrap();
        let received = Received::wait(theirs.as_fd()).unwrap().unwrap();
        assert_eq!((received.directory.as_c_str(), received.program.as_c_str()), (c"/w", c"/bin/bash"));
        assert_eq!((received.args, received.env), (args, env));
        let numbers: Vec<_> =
            received.descriptors.iter().map(|(fd, number)| (fd.as_raw_fd() >= FIRST_FREE_FD, *number)).collect();
        assert_eq!(numbers, [(true, 0), (true, SCRIPT_FD)]);
        drop(ours);
        assert!(Received::wait(theirs.as_fd()).unwrap().is_none());
    }
}
