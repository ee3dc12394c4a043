//! The pipes between `sandboxd` and what it starts.

use crate::process::shim::{REPORT_LEN, Report};
use rustix::{
    fd::OwnedFd,
    fs::MemfdFlags,
    io::ioctl_fionread,
    pipe::{PipeFlags, pipe_with},
};
use std::{
    convert::Infallible,
    io::{self, Write as _},
};
use tokio::{io::AsyncReadExt as _, net::unix::pipe};

/// Bytes read from a pipe at a time.
const READ: usize = 64 * 1024;

/// A pipe: the end to read from, and the one to write to.
pub(crate) fn new_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// A file of this text that has no name.
pub(crate) fn memory_file(text: &[u8]) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(rustix::fs::memfd_create(c"command", MemfdFlags::CLOEXEC)?);
    file.write_all(text)?;
    io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

/// What the shim tells; `None` when it was killed first.
pub(crate) async fn read_report(report: &mut pipe::Receiver) -> Option<Report> {
    let mut bytes = [0; REPORT_LEN];
    report.read_exact(&mut bytes).await.ok()?;
    Report::decode(bytes)
}

/// Reads for ever; after the end of the stream it waits for ever. Loses nothing when it is dropped while it waits.
pub(crate) async fn pump(receiver: &mut Option<pipe::Receiver>, mut sink: impl FnMut(&[u8])) -> Infallible {
    if let Some(open) = receiver {
        pour(open, &mut sink).await;
    }
    *receiver = None;
    std::future::pending().await
}

/// Reads and drops, until the end of the stream.
pub(crate) async fn discard(receiver: pipe::Receiver) {
    pour(&receiver, &mut |_: &[u8]| ()).await;
}

async fn pour(receiver: &pipe::Receiver, sink: &mut impl FnMut(&[u8])) {
    let mut buffer = vec![0; READ];
    loop {
        if receiver.readable().await.is_err() {
            return;
        }
        match receiver.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => sink(buffer.get(..n).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Takes what is in the pipe now, and no more: a process in the background may write for ever. Returns the pipe unless it is at
/// its end.
pub(crate) fn read_rest(receiver: Option<pipe::Receiver>, mut sink: impl FnMut(&[u8])) -> Option<pipe::Receiver> {
    let receiver = receiver?;
    let mut left = usize::try_from(ioctl_fionread(&receiver).unwrap_or(0)).unwrap_or(0);
    let mut buffer = vec![0; READ.min(left.max(1))];
    loop {
        // One byte past the last tells whether the pipe is at its end; it was written after the run ended, and is dropped.
        let room = buffer.len().min(left.max(1));
        // Not by the receiver: it may believe that nothing is there until the runtime has looked again.
        match rustix::io::read(&receiver, buffer.get_mut(..room).unwrap_or_default()) {
            Ok(0) => return None,
            Ok(_) if left == 0 => return Some(receiver),
            Ok(n) => {
                sink(buffer.get(..n).unwrap_or_default());
                left = left.saturating_sub(n);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Some(receiver),
        }
    }
}
