//! The server: one HTTP/2 connection per byte stream, over an inherited socket or what an `attach` hands over on a pathname socket.

use crate::{
    attach::{self, Stdio},
    cli::{Half, Serve, Transport},
    edit::Mounts,
    files::FilesHalf,
    http::{self, Answer, Body},
    limits::{self, Cgroup, watchdog},
    main_half, names,
    process::{
        reaper,
        table::{Client, Shims},
        tree,
    },
    runs::{
        command,
        drive::{Runs, Settings},
        output::OutputParent,
    },
    sys,
};
use hyper::{Method, Request, Response, body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::process::{DumpableBehavior, getpid, set_child_subreaper, set_dumpable_behavior};
use sandboxd_protocol::{BootId, Hello, PROTO, http2 as settings_of_both_ends, layout};
use std::{
    convert::Infallible,
    ffi::CString,
    io,
    os::unix::{ffi::OsStringExt as _, fs::PermissionsExt as _, net::UnixStream as StdUnixStream},
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, watch},
    time::Instant,
};

/// Connections at a time over a pathname socket.
const MAX_CONNECTIONS: usize = 8;
/// Time after which a connection on which nothing arrives is dropped: both ends ping, so that silence means a lost peer.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);
/// Time for the answers that are under way at SIGTERM.
const FLUSH_LIMIT: Duration = Duration::from_millis(300);
/// Time for a peer to hand over its descriptors.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a failed accept: the usual reason is that no descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a half does with requests.
#[derive(Clone)]
enum Service {
    Main(Arc<Runs>),
    Files(Arc<FilesHalf>),
}

impl Service {
    async fn answer(self, request: Request<Incoming>) -> Answer {
        match self {
            Self::Main(runs) => main_half::answer(runs, request).await,
            Self::Files(files) => files.answer(request).await,
        }
    }

    fn requests(&self) -> settings_of_both_ends::Requests {
        match self {
            Self::Main(_) => settings_of_both_ends::MAIN,
            Self::Files(_) => settings_of_both_ends::FILES,
        }
    }

    /// Whoever is connected may soon have work for a shim.
    fn client(&self) -> Option<Client> {
        match self {
            Self::Main(runs) => Some(Client::new(Arc::clone(&runs.shims))),
            Self::Files(_) => None,
        }
    }

    async fn drain(&self) {
        match self {
            Self::Main(runs) => runs.drain().await,
            Self::Files(files) => files.drain(),
        }
    }
}

#[derive(Clone)]
struct Server {
    service: Service,
    hello: Arc<str>,
    stopping: watch::Receiver<bool>,
}

/// Serves until SIGTERM, or until the inherited connection ends.
pub(crate) fn run(options: &Serve) -> io::Result<()> {
    sys::keep_no_large_allocations();
    let program = CString::new(std::env::current_exe()?.into_os_string().into_vec())?;
    sys::close_inherited_for_children()?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_child_subreaper(Some(getpid()))?;
    sys::block_awaited_signals();
    let cgroup = Cgroup::at(&options.cgroup);
    if options.half == Half::Main {
        limits::bound_allocations(&cgroup)?;
    }
    let shims = Arc::new(Shims::new(program)?);
    let stopping = reaper::start(Arc::clone(&shims))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(crate::files::THREADS)
        .thread_keep_alive(Duration::MAX)
        .build()?;
    let result = runtime.block_on(async {
        let service = match options.half {
            Half::Main => {
                tokio::spawn(watchdog::watch(cgroup.clone(), Arc::clone(&shims)));
                let mounts = Mounts::new(options.claim.as_deref());
                Service::Main(Arc::new(Runs::new(settings(options, cgroup)?, mounts, Arc::clone(&shims))?))
            }
            Half::Files => Service::Files(Arc::new(FilesHalf::open(options.claim()).await?)),
        };
        let hello = Hello { proto: PROTO, boot: BootId(names::random_name()?) };
        let server = Server { service: service.clone(), hello: format!("{hello}\n").into(), stopping };
        match &options.transport {
            Transport::Inherited(number) => serve_inherited(server, *number).await?,
            Transport::Socket(path) => serve_socket(server, path).await?,
        }
        service.drain().await;
        io::Result::Ok(())
    });
    shims.kill_everything();
    // A file operation that hangs must not keep the process.
    runtime.shutdown_background();
    result
}

fn settings(options: &Serve, cgroup: Cgroup) -> io::Result<Settings> {
    let folder = |name: &str, mounted: &str| match &options.claim {
        Some(claim) => claim.join(name),
        None => PathBuf::from(mounted),
    };
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    Ok(Settings {
        workspace: CString::new(folder("workspace", layout::WORKSPACE).into_os_string().into_vec())?,
        input: text(folder("uploads", layout::UPLOADS)),
        environment: command::inherited(std::env::vars_os(), cgroup.processors()),
        cgroup,
        output: OutputParent::new(folder("output", layout::OUTPUT)),
        results: folder("tmp", layout::TMP),
        abandoned_after: options.abandoned_after,
        call_timeout: options.call_timeout,
    })
}

async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error means that the reaper is gone, which only happens at the end of the process.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

async fn serve_inherited(server: Server, number: i32) -> io::Result<()> {
    let socket = StdUnixStream::from(sys::inherited(number)?);
    socket.set_nonblocking(true)?;
    serve_connection(server, UnixStream::from_std(socket)?).await;
    Ok(())
}

async fn serve_socket(server: Server, path: &Path) -> io::Result<()> {
    // Left over by an earlier start in the same container.
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    let open = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut stopping = server.stopping.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stopping) => break,
        };
        let Ok((mut link, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Dropped at once, so that nobody in the sandbox can fill the places of those outside.
        if !is_from_outside(&link) {
            continue;
        }
        if let Ok(place) = Arc::clone(&open).try_acquire_owned() {
            let server = server.clone();
            tokio::spawn(async move {
                if let Ok(Ok(stdio)) = tokio::time::timeout(HAND_OVER_LIMIT, attach::stdio_from(&link)).await {
                    serve_attached(server, stdio, &mut link).await;
                }
                drop(place);
            });
        }
    }
    server.service.drain().await;
    // Every place free: every connection has sent what it had.
    let _ = tokio::time::timeout(FLUSH_LIMIT, open.acquire_many(u32::try_from(MAX_CONNECTIONS).unwrap_or(1))).await;
    Ok(())
}

/// Whether the peer was started from outside the container. Only there a process has no parent inside; and only PID 1 can tell.
fn is_from_outside(stream: &UnixStream) -> bool {
    if std::process::id() != 1 {
        return true;
    }
    let Ok(peer) = rustix::net::sockopt::socket_peercred(stream) else { return false };
    tree::process(peer.pid.as_raw_nonzero().get()).is_some_and(|process| process.parent == 0)
}

/// Until either is done with it: while the server has a pipe, nobody at its other end sees that the `attach` was killed.
async fn serve_attached(server: Server, stdio: Stdio, link: &mut UnixStream) {
    tokio::select! {
        () = serve_connection(server, stdio) => {}
        () = attach::ended(link) => {}
    }
}

async fn serve_connection(mut server: Server, mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    if stream.write_all(server.hello.as_bytes()).await.is_err() {
        return;
    }
    let heard = Arc::new(Heard::new());
    let _client = server.service.client();
    let io = TokioIo::new(Watched { stream, heard: Arc::clone(&heard) });
    let service = server.service.clone();
    let requests = service.requests();
    let handler = service_fn(move |request| respond(service.clone(), request));
    let mut connection = std::pin::pin!(builder(requests).serve_connection(io, handler));
    // `serve_connection` may never return while the peer takes no bytes, so silence and the end of the process end it too.
    let silence = heard.silence();
    tokio::select! {
        _ended = connection.as_mut() => return,
        () = silence => return,
        () = stopped(&mut server.stopping) => {}
    }
    server.service.drain().await;
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(FLUSH_LIMIT, connection).await;
}

async fn respond(service: Service, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let is_head = request.method() == Method::HEAD;
    Ok(service.answer(request).await.unwrap_or_else(|why| {
        // A client takes a body after HEAD for a broken stream.
        if is_head { http::empty(why.code.status()) } else { http::refused(&why) }
    }))
}

fn builder(requests: settings_of_both_ends::Requests) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(requests.window)
        .initial_connection_window_size(settings_of_both_ends::CONNECTION_WINDOW)
        .adaptive_window(false)
        .max_frame_size(settings_of_both_ends::FRAME)
        .max_concurrent_streams(requests.at_once)
        .max_header_list_size(settings_of_both_ends::MAX_HEADER_LIST)
        .max_send_buf_size(requests.window as usize)
        .keep_alive_interval(settings_of_both_ends::PING_INTERVAL)
        .keep_alive_timeout(settings_of_both_ends::PING_TIMEOUT);
    builder
}

/// When bytes last arrived.
struct Heard {
    start: Instant,
    last_ms: AtomicU64,
}

impl Heard {
    fn new() -> Self {
        Self { start: Instant::now(), last_ms: AtomicU64::new(0) }
    }

    fn touch(&self) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(ms, Ordering::Relaxed);
    }

    /// Returns when nothing has arrived for [`SILENCE_LIMIT`].
    async fn silence(&self) {
        loop {
            let end = self.start + Duration::from_millis(self.last_ms.load(Ordering::Relaxed)) + SILENCE_LIMIT;
            if Instant::now() >= end {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

/// The stream, noting when it is heard.
struct Watched<S> {
    stream: S,
    heard: Arc<Heard>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(cx, buf);
        if poll.is_ready() {
            self.heard.touch();
        }
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
