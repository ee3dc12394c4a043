//! `attach`: joins stdin and stdout to the socket, byte for byte. It is what is exec'd into the container.

use rustix::{
    event::{PollFd, poll},
    fs::Timespec,
    pipe::fcntl_setpipe_size,
    process::{DumpableBehavior, set_dumpable_behavior},
};
use std::{
    fs::File,
    io,
    os::{fd::AsFd as _, unix::net::UnixStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Time for the server to come up in a container that has just started.
const SOCKET_DEADLINE: Duration = Duration::from_secs(30);
/// Time between two tries.
const SOCKET_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
const BUFFER: usize = 128 * 1024;
/// Bytes that each of our pipes holds, if that is allowed: so fewer turns are taken with the program at its other end.
const PIPE: usize = 512 * 1024;

/// Joins them until either direction ends.
pub(crate) fn run(socket: &Path, server_pid: i32) -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let socket = connect(socket, Instant::now() + SOCKET_DEADLINE)?;
    let server = rustix::net::sockopt::socket_peercred(&socket)?.pid.as_raw_nonzero().get();
    if server != server_pid {
        return Err(io::Error::other(format!("the socket belongs to process {server}, not {server_pid}")));
    }
    let (stdin, stdout) = (File::from(io::stdin().as_fd().try_clone_to_owned()?), io::stdout());
    let stdout = File::from(stdout.as_fd().try_clone_to_owned()?);
    for pipe in [&stdin, &stdout] {
        // What is no pipe has no size.
        let _ = fcntl_setpipe_size(pipe, PIPE);
    }
    let upwards = socket.try_clone()?;
    thread::Builder::new().spawn(move || {
        let ended = copy(stdin, upwards);
        std::process::exit(i32::from(ended.is_err()));
    })?;
    copy(socket, stdout)
}

fn connect(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path) {
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

/// Not `std::io::copy`: that would be `splice` here, and a splice from a socket into a pipe holds the pipe's lock while it waits
/// for the socket, so that whoever reads the pipe hangs.
fn copy(mut from: impl io::Read, mut to: impl io::Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => to.write_all(buffer.get(..n).unwrap_or_default())?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
