//! The one interpreter: found, started, and at rest between two cells.

use crate::{
    process::{
        shim::{self, Work},
        table::{Shim, Shims},
    },
    repl::message::{FromInterpreter, Lines},
    runs::{
        pipes::{memory_file, new_pipe, pump, read_report, read_rest},
        table::refusal,
    },
};
use rustix::{
    fd::{AsFd as _, OwnedFd},
    fs::{Access, access},
    process::Pid,
};
use sandboxd_protocol::{ErrorBody, ErrorCode};
use std::{
    ffi::{CStr, CString},
    io,
    sync::Arc,
};
use tokio::{net::unix::pipe, sync::oneshot, task::JoinHandle};

/// The interpreter's half of the cells.
const BOOTSTRAP: &str = concat!(include_str!("calls.py"), include_str!("bootstrap.py"));
/// What the interpreter is started with: reads its half from [`shim::SCRIPT_FD`], in a namespace apart from the cells'.
const LOADER: &CStr = c"\
__import__('sys').version_info >= (3, 8) or __import__('sys').exit('Python 3.8 or newer is needed to run cells')
exec(compile(open(9, 'rb').read(), '<sandboxd>', 'exec'), {'__name__': 'sandboxd'})";
/// Bytes read from the control pipe at a time.
const READ: usize = 4096;
/// Names of an interpreter, the wanted one first.
const NAMES: [&str; 2] = ["python3", "python"];

/// Finds the interpreter on the PATH, by a check whether a path can be executed. Folders that are not absolute are left out:
/// what they name depends on where one stands.
pub(crate) fn find(path: &str, executable: impl Fn(&str) -> bool) -> Result<CString, ErrorBody> {
    let folders: Vec<_> = path.split(':').filter(|folder| folder.starts_with('/')).collect();
    let mut candidates = NAMES.iter().flat_map(|name| folders.iter().map(move |folder| format!("{folder}/{name}")));
    let missing = || refusal(ErrorCode::NotInImage, "The sandbox's image has no Python: neither python3 nor python.");
    candidates.find(|file| executable(file)).and_then(|file| CString::new(file).ok()).ok_or_else(missing)
}

/// Whether a path can be executed.
pub(crate) fn is_executable(path: &str) -> bool {
    access(path, Access::EXEC_OK).is_ok()
}

/// A started interpreter.
#[derive(Debug)]
pub(crate) struct Interpreter {
    pub(crate) shim: Arc<Shim>,
    pub(crate) stdout: Option<pipe::Receiver>,
    pub(crate) stderr: Option<pipe::Receiver>,
    pub(crate) report: pipe::Receiver,
    /// Messages to it.
    pub(crate) to: pipe::Sender,
    /// Messages from it.
    pub(crate) from: pipe::Receiver,
    pub(crate) lines: Lines,
    /// What it says its process is; known once it is ready.
    pub(crate) pid: Option<Pid>,
    /// Cells that it was given.
    pub(crate) cells: u64,
    /// It ended or broke the rules while it was at rest.
    pub(crate) is_lost: bool,
}

impl Interpreter {
    /// Starts one.
    pub(crate) fn start(shims: &Shims, python: &CStr, directory: &CStr, env: &[CString]) -> io::Result<Self> {
        let [stdout, stderr, report, from] = [new_pipe()?, new_pipe()?, new_pipe()?, new_pipe()?];
        let to = new_pipe()?;
        let bootstrap = memory_file(BOOTSTRAP.as_bytes())?;
        let [control_in, control_out] = shim::CONTROL_FDS;
        let descriptors = [
            (shims.null().as_fd(), 0),
            (stdout.1.as_fd(), 1),
            (stderr.1.as_fd(), 2),
            (bootstrap.as_fd(), shim::SCRIPT_FD),
            (to.0.as_fd(), control_in),
            (from.1.as_fd(), control_out),
        ];
        let args = [python, c"-I", c"-c", LOADER].map(CString::from);
        let receiver = |end: OwnedFd| pipe::Receiver::from_owned_fd(end);
        let (stdout, stderr) = (receiver(stdout.0)?, receiver(stderr.0)?);
        let (reported, from_it, to_it) = (receiver(report.0)?, receiver(from.0)?, pipe::Sender::from_owned_fd(to.1)?);
        let shim = shims.start(&Work {
            directory,
            program: python,
            args: &args,
            env,
            report: report.1.as_fd(),
            descriptors: &descriptors,
        })?;
        Ok(Self {
            shim,
            stdout: Some(stdout),
            stderr: Some(stderr),
            report: reported,
            to: to_it,
            from: from_it,
            lines: Lines::default(),
            pid: None,
            cells: 0,
            is_lost: false,
        })
    }

    /// Drops what threads and processes of earlier cells have written until now.
    pub(crate) fn drop_output(&mut self) {
        self.stdout = read_rest(self.stdout.take(), |_| ());
        self.stderr = read_rest(self.stderr.take(), |_| ());
    }
}

/// The next message, or what is wrong with it; `None` when the interpreter has closed its end. Loses nothing when it is dropped
/// while it waits.
pub(crate) async fn next_message(
    from: &pipe::Receiver,
    lines: &mut Lines,
) -> Result<Option<FromInterpreter>, &'static str> {
    let mut buffer = [0; READ];
    loop {
        if let Some(message) = lines.next()? {
            return Ok(Some(message));
        }
        if from.readable().await.is_err() {
            return Ok(None);
        }
        match from.try_read(&mut buffer) {
            Ok(0) => return Ok(None),
            Ok(n) => lines.push(buffer.get(..n).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Ok(None),
        }
    }
}

/// Writes until nothing is left; what was written is taken out. Loses nothing when it is dropped while it waits.
pub(crate) async fn write_out(to: &pipe::Sender, outgoing: &mut Outgoing) -> io::Result<()> {
    while let Some(rest) = outgoing.rest() {
        to.writable().await?;
        match to.try_write(rest) {
            Ok(n) => outgoing.written += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    *outgoing = Outgoing::default();
    Ok(())
}

/// Bytes on their way to the interpreter.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
}

impl Outgoing {
    pub(crate) fn push(&mut self, line: Vec<u8>) {
        if self.bytes.is_empty() {
            self.bytes = line;
        } else {
            self.bytes.extend_from_slice(&line);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest().is_none()
    }

    fn rest(&self) -> Option<&[u8]> {
        self.bytes.get(self.written..).filter(|rest| !rest.is_empty())
    }
}

/// An interpreter between two cells. What it writes is dropped; one that ends or says anything is lost, and killed at once.
#[derive(Debug)]
pub(crate) struct Resting {
    wake: oneshot::Sender<()>,
    task: JoinHandle<Interpreter>,
}

impl Resting {
    pub(crate) fn new(interpreter: Interpreter, shims: Arc<Shims>) -> Self {
        let (wake, woken) = oneshot::channel();
        shims.set_resting(&interpreter.shim, true);
        Self { wake, task: tokio::spawn(rest(interpreter, woken, shims)) }
    }

    /// The interpreter; `None` only at the end of the process.
    pub(crate) async fn wake(self) -> Option<Interpreter> {
        // A task that has ended needs no sign.
        let _ = self.wake.send(());
        self.task.await.ok()
    }
}

async fn rest(mut interpreter: Interpreter, woken: oneshot::Receiver<()>, shims: Arc<Shims>) -> Interpreter {
    let Interpreter { stdout, stderr, report, from, lines, .. } = &mut interpreter;
    let is_lost = tokio::select! {
        biased;
        _unasked = next_message(from, lines) => true,
        _ended = read_report(report) => true,
        // Whoever gives it up wakes it too.
        _ = woken => false,
        never = pump(stdout, |_| ()) => match never {},
        never = pump(stderr, |_| ()) => match never {},
    };
    shims.set_resting(&interpreter.shim, false);
    if is_lost {
        shims.kill(&interpreter.shim).await;
    }
    interpreter.is_lost = is_lost;
    interpreter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python3_is_taken_before_python_and_its_absence_is_named() {
        let find = |path: &str, there: &[&str]| find(path, |file| there.contains(&file));
        let found = find("/a:/b", &["/a/python", "/b/python3"]).unwrap();
        assert_eq!(found.to_str().unwrap(), "/b/python3");
        assert_eq!(find("x:/b", &["x/python3", "/b/python"]).unwrap().to_str().unwrap(), "/b/python");
        let missing = find("/a:/b", &[]).unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotInImage);
        assert!(missing.message.contains("python3"), "{}", missing.message);
    }

    #[test]
    fn what_is_written_is_taken_out() {
        let mut outgoing = Outgoing::default();
        assert!(outgoing.is_empty());
        outgoing.push(b"one".to_vec());
        outgoing.push(b"two".to_vec());
        outgoing.written = 4;
        assert_eq!(outgoing.rest(), Some(&b"wo"[..]));
    }
}
