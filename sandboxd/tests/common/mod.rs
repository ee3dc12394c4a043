//! Starts the real binary and speaks to it with hyper's client.
#![allow(dead_code, reason = "each test binary uses its own part")]

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::{Frame as Piece, Incoming},
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::{Pid, Signal, kill_process},
};
use sandboxd_protocol::{ErrorBody, Exit, Frame, FrameDecoder, Hello, Limits, RunKind, RunRequest, ToolCall};
use std::{
    convert::Infallible,
    io::{IoSlice, PipeReader, PipeWriter},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite},
    net::{UnixStream, unix::pipe},
    task::JoinHandle,
};

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_sandboxd");

/// The binary of this build, or the one that `SANDBOXD` names.
fn binary() -> std::ffi::OsString {
    std::env::var_os("SANDBOXD").unwrap_or_else(|| BINARY.into())
}

/// Where programs are found; another Python can be tried by `SANDBOXD_PATH`.
fn path() -> String {
    std::env::var("SANDBOXD_PATH").unwrap_or_else(|_| "/usr/bin:/bin".into())
}

const FOLDERS: [&str; 7] = ["output", "outputs", "sealed", "skills", "tmp", "uploads", "workspace"];

pub(crate) fn make_claim() -> tempfile::TempDir {
    with_folders(tempfile::tempdir().unwrap())
}

/// For very many files: some disks take a millisecond for each.
pub(crate) fn make_claim_in_memory() -> tempfile::TempDir {
    with_folders(tempfile::tempdir_in("/dev/shm").unwrap())
}

fn with_folders(claim: tempfile::TempDir) -> tempfile::TempDir {
    for name in FOLDERS {
        std::fs::create_dir(claim.path().join(name)).unwrap();
    }
    claim
}

/// A process that ends with the test.
pub(crate) struct Ended(pub(crate) Child);

impl Ended {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    pub(crate) fn terminate(&self) {
        kill_process(self.pid(), Signal::TERM).unwrap();
    }

    pub(crate) async fn ended_within(&mut self, limit: Duration) -> bool {
        eventually(limit, || self.0.try_wait().unwrap().is_some()).await
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = kill_process(self.pid(), Signal::TERM);
        let end = Instant::now() + Duration::from_secs(3);
        while self.0.try_wait().unwrap().is_none() && Instant::now() < end {
            std::thread::park_timeout(Duration::from_millis(2));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One sandboxd and one connection to it.
pub(crate) struct Sandbox {
    pub(crate) process: Ended,
    pub(crate) claim: tempfile::TempDir,
    pub(crate) client: Client,
}

impl Sandbox {
    pub(crate) async fn main() -> Self {
        Self::start("main", &[], make_claim()).await
    }

    pub(crate) async fn files() -> Self {
        Self::start("files", &[], make_claim()).await
    }

    /// Over an inherited socket; it is the child's stdin, so that no other child inherits it.
    pub(crate) async fn start(half: &str, more: &[&str], claim: tempfile::TempDir) -> Self {
        let (ours, theirs) = StdStream::pair().unwrap();
        let child = Command::new(binary())
            .args(["serve", "--half", half, "--connection-fd", "0", "--claim"])
            .arg(claim.path())
            .args(more)
            .env_clear()
            .envs([("PATH", path().as_str()), ("OF_THE_IMAGE", "i"), ("KUBERNETES_PORT", "must not reach commands")])
            .stdin(OwnedFd::from(theirs))
            .spawn()
            .unwrap();
        let process = Ended(child);
        ours.set_nonblocking(true).unwrap();
        let client = Client::over(UnixStream::from_std(ours).unwrap()).await;
        Self { process, claim, client }
    }

    /// Over a pathname socket, to which more than one can connect.
    pub(crate) async fn listening(half: &str, more: &[&str]) -> Self {
        let claim = make_claim();
        let socket = claim.path().join("s");
        let child = Command::new(binary())
            .args(["serve", "--half", half, "--socket"])
            .arg(&socket)
            .arg("--claim")
            .arg(claim.path())
            .args(more)
            .env_clear()
            .spawn()
            .unwrap();
        let process = Ended(child);
        assert!(eventually(SOON, || StdStream::connect(&socket).is_ok()).await);
        let client = Client::connect(&socket).await;
        Self { process, claim, client }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("s")
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.claim.path().join(below)
    }

    pub(crate) async fn run(&self, id: &str, command: &str) -> Outcome {
        self.client.run(id, &bash(command)).await
    }
}

pub(crate) fn bash(command: &str) -> RunRequest {
    RunRequest {
        run: RunKind::Bash { command: command.to_owned(), restart: false },
        env: std::collections::BTreeMap::new(),
        limits: Limits { timeout_ms: 30_000, output_bytes: 1 << 20 },
    }
}

pub(crate) fn timed(command: &str, timeout_ms: u64) -> RunRequest {
    RunRequest { limits: Limits { timeout_ms, output_bytes: 1 << 20 }, ..bash(command) }
}

/// What a run's frames said.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) started: bool,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) exit: Option<Exit>,
}

impl Outcome {
    fn take(&mut self, frame: Frame) {
        assert!(self.exit.is_none(), "nothing may follow the exit");
        match frame {
            Frame::Started => self.started = true,
            Frame::Stdout(data) => self.stdout.extend(data),
            Frame::Stderr(data) => self.stderr.extend(data),
            Frame::Calls(list) => self.calls.extend(ToolCall::parse_list(&list).unwrap()),
            Frame::Exit(exit) => self.exit = Some(exit),
        }
    }

    pub(crate) fn code(&self) -> i32 {
        self.exit.as_ref().expect("the run has ended").code
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    pub(crate) fn error_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// A run that is followed.
pub(crate) struct Following {
    body: Incoming,
    decoder: FrameDecoder,
    pub(crate) seen: Outcome,
}

impl Following {
    /// Reads until a condition holds or the answer ends.
    pub(crate) async fn until(&mut self, condition: impl Fn(&Outcome) -> bool) {
        let read = async {
            while !condition(&self.seen) {
                let Some(piece) = self.body.frame().await else { return };
                self.decoder.push(&piece.unwrap().into_data().unwrap_or_default());
                while let Some(frame) = self.decoder.next_frame().unwrap() {
                    self.seen.take(frame);
                }
            }
        };
        tokio::time::timeout(Duration::from_mins(1), read).await.expect("the run goes on in time");
    }

    pub(crate) async fn end(mut self) -> Outcome {
        self.until(|_| false).await;
        self.seen
    }
}

/// One connection.
pub(crate) struct Client {
    pub(crate) send: SendRequest<Body>,
    pub(crate) hello: Hello,
    pub(crate) connection: JoinHandle<hyper::Result<()>>,
    /// A connection with an unfinished body does not close by being dropped: it does when this socket is shut down.
    switch: Option<OwnedFd>,
}

impl Client {
    /// As `sandboxd attach` does.
    pub(crate) async fn connect(socket: &Path) -> Self {
        let link = StdStream::connect(socket).unwrap();
        let ((stdin, ours_in), (ours_out, stdout)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let descriptors = [stdin.as_fd(), stdout.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(&link, &[IoSlice::new(&[0])], &mut control, SendFlags::empty()).unwrap();
        Self { switch: Some(link.into()), ..Self::over_pipes(ours_out, ours_in).await }
    }

    pub(crate) async fn over_pipes(from: PipeReader, to: PipeWriter) -> Self {
        let from = pipe::Receiver::from_owned_fd(from.into()).unwrap();
        Self::new(tokio::io::join(from, pipe::Sender::from_owned_fd(to.into()).unwrap())).await
    }

    pub(crate) async fn over(stream: UnixStream) -> Self {
        let switch = stream.as_fd().try_clone_to_owned().unwrap();
        Self { switch: Some(switch), ..Self::new(stream).await }
    }

    pub(crate) async fn new(mut io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let hello = tokio::time::timeout(Duration::from_secs(10), async {
            let mut line = Vec::new();
            while line.last() != Some(&b'\n') {
                line.push(io.read_u8().await.unwrap());
            }
            Hello::parse(std::str::from_utf8(&line).unwrap().trim_end()).unwrap()
        });
        let hello = hello.await.expect("a hello in time");
        let (send, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(sandboxd_protocol::http2::MAIN.window)
            .initial_connection_window_size(sandboxd_protocol::http2::CONNECTION_WINDOW)
            .handshake(TokioIo::new(io))
            .await
            .unwrap();
        Self { send, hello, connection: tokio::spawn(connection), switch: None }
    }

    /// Cuts the connection.
    pub(crate) async fn cut(self) {
        if let Some(socket) = &self.switch {
            rustix::net::shutdown(socket, rustix::net::Shutdown::Both).unwrap();
        }
        self.connection.abort();
        let _ = self.connection.await;
    }

    pub(crate) async fn call(&self, method: Method, path: &str, headers: HeaderMap, body: Body) -> Response<Incoming> {
        let mut request = Request::builder().method(method).uri(format!("http://sandboxd{path}")).body(body).unwrap();
        request.headers_mut().extend(headers);
        let answer = self.send.clone().send_request(request);
        tokio::time::timeout(Duration::from_mins(1), answer).await.expect("an answer in time").unwrap()
    }

    pub(crate) async fn simple(&self, method: Method, path: &str) -> (StatusCode, Bytes) {
        whole(self.call(method, path, HeaderMap::new(), full(""))).await
    }

    pub(crate) async fn follow(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Following, ErrorBody> {
        let response = self.call(method, path, HeaderMap::new(), full(body)).await;
        if response.status() != StatusCode::OK {
            let status = response.status();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            let error: ErrorBody = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(status.as_u16(), error.code.status());
            return Err(error);
        }
        Ok(Following { body: response.into_body(), decoder: FrameDecoder::default(), seen: Outcome::default() })
    }

    pub(crate) async fn start(&self, id: &str, request: &RunRequest) -> Result<Following, ErrorBody> {
        self.follow(Method::PUT, &format!("/runs/{id}"), serde_json::to_vec(request).unwrap()).await
    }

    pub(crate) async fn join(&self, id: &str, out: usize, err: usize) -> Result<Following, ErrorBody> {
        self.follow(Method::GET, &format!("/runs/{id}?out={out}&err={err}"), Vec::new()).await
    }

    pub(crate) async fn run(&self, id: &str, request: &RunRequest) -> Outcome {
        self.start(id, request).await.unwrap().end().await
    }
}

pub(crate) async fn whole(response: impl Future<Output = Response<Incoming>>) -> (StatusCode, Bytes) {
    let response = response.await;
    (response.status(), response.into_body().collect().await.unwrap().to_bytes())
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// Bytes in pieces, then trailers.
pub(crate) fn with_trailers(bytes: &[u8], trailers: &[(&'static str, String)]) -> Body {
    let mut pieces: Vec<_> = bytes.chunks(10_000).map(|c| Ok(Piece::data(Bytes::copy_from_slice(c)))).collect();
    let trailers: HeaderMap =
        trailers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    pieces.push(Ok(Piece::trailers(trailers)));
    StreamBody::new(futures_util::stream::iter(pieces)).boxed_unsync()
}

/// A guard against hanging, on a machine that does other things too; no promise.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Waits for a condition.
pub(crate) async fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    true
}

/// Whether a process with this word in its command line lives.
pub(crate) fn is_running(word: &str) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.any(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|b| *b == 0).any(|argument| argument == word.as_bytes())
    })
}
