//! `attach`: what is exec'd into the container. It hands its stdin and stdout to the server, so that nobody stands between the server
//! and the program outside, and lives as long as the server uses them.

use crate::descriptors;
use rustix::{
    event::{PollFd, poll},
    fs::Timespec,
    pipe::fcntl_setpipe_size,
    process::{DumpableBehavior, set_dumpable_behavior},
};
use std::{
    io,
    os::{fd::AsFd as _, unix::net::UnixStream as StdUnixStream},
    path::Path,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt as _, Interest, Join, join},
    net::{UnixStream, unix::pipe},
};

/// Time for the server to come up in a container that has just started.
const SOCKET_DEADLINE: Duration = Duration::from_secs(30);
/// Time between two tries.
const SOCKET_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Bytes that each of our pipes holds, if that is allowed: so fewer turns are taken with the program at its other end.
const PIPE: usize = 512 * 1024;

/// Hands them over, and waits until the server is done with them.
pub(crate) fn run(socket: &Path, server_pid: i32) -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let mut link = connect(socket, Instant::now() + SOCKET_DEADLINE)?;
    let server = rustix::net::sockopt::socket_peercred(&link)?.pid.as_raw_nonzero().get();
    if server != server_pid {
        return Err(io::Error::other(format!("the socket belongs to process {server}, not {server_pid}")));
    }
    let (stdin, stdout) = (io::stdin(), io::stdout());
    let ours = [stdin.as_fd(), stdout.as_fd()];
    for pipe in ours {
        // Where that is not allowed it stays as it is.
        let _ = fcntl_setpipe_size(pipe, PIPE);
    }
    descriptors::send(link.as_fd(), &ours)?;
    // Nothing is ever said: it is closed in the end, or when the server ends.
    io::copy(&mut link, &mut io::sink()).map(|_| ())
}

fn connect(path: &Path, deadline: Instant) -> io::Result<StdUnixStream> {
    loop {
        match StdUnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(e) => match e.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock
                    if Instant::now() < deadline =>
                {
                    let nothing: &mut [PollFd<'_>] = &mut [];
                    poll(nothing, Some(&SOCKET_PAUSE))?;
                }
                _ => return Err(e),
            },
        }
    }
}

/// Stdin and stdout of an `attach`, as the server has them.
pub(crate) type Stdio = Join<pipe::Receiver, pipe::Sender>;

/// Waits until an `attach` has handed them over.
pub(crate) async fn stdio_from(link: &UnixStream) -> io::Result<Stdio> {
    let receive = || Ok(descriptors::receive(link.as_fd())?);
    let descriptors = link.async_io(Interest::READABLE, receive).await?.unwrap_or_default();
    let [stdin, stdout] = <[_; 2]>::try_from(descriptors).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(join(pipe::Receiver::from_owned_fd(stdin)?, pipe::Sender::from_owned_fd(stdout)?))
}

/// Returns when an `attach` has ended: it says nothing after it has handed over what it has.
pub(crate) async fn ended(link: &mut UnixStream) {
    let _ = link.read(&mut [0]).await;
}
