//! The Messages and Files HTTP server: thin routes over the turn machine, the sandboxes and the file store.

mod attached;
mod auth;
mod body;
mod commands;
pub mod config;
mod containers;
mod content;
mod entropy;
mod failure;
mod files;
mod health;
pub mod logging;
mod messages;
mod metrics;
mod models;
mod openapi;
mod request;
mod router;
mod session;
mod trouble;
mod turns;
mod uploads;

use anyhow::{Context as _, anyhow};
use auth::{Auth, KeyFile, KeyHash};
use axum::serve::ListenerExt as _;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD};
use config::{AuthKind, Config, RuntimeKind};
use file_store::{FileStore, Limited};
use health::Readiness;
use metrics::Metrics;
use providers::Models;
use sandbox_runtime::{
    NoRuntime, Runtime, Sandboxes,
    kubernetes::{KubernetesConfig, KubernetesRuntime},
    local::{LocalConfig, LocalLimits, LocalRuntime},
};
use session::{Tags, threads::Downloads};
use std::{
    future::IntoFuture as _,
    io::Write as _,
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use uploads::Uploads;

/// Time between looks at the files of keys and models: a removed key works at most so long.
const RELOAD: Duration = Duration::from_secs(2);
/// Time between sweeps of the file store.
const SWEEP: Duration = Duration::from_hours(1);
/// Requests under way get this long to end when the server stops.
const GRACE: Duration = Duration::from_secs(10);

/// What all requests share.
struct App {
    auth: Auth,
    sandboxes: Sandboxes,
    files: Arc<dyn FileStore>,
    models: Models,
    uploads: Uploads,
    tags: Tags,
    downloads: Downloads,
    command_timeout: Option<Duration>,
    idle_timeout: Duration,
    /// Whether the tool is offered.
    code_execution: bool,
    /// Whether sandboxes have Python.
    repl: bool,
    max_samplings: u32,
    metrics: Metrics,
    readiness: Readiness,
    stop: CancellationToken,
}

/// A server that answers requests.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    /// The key that was made for it, when none was given; its file is in the data folder.
    pub own_key: Option<String>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Server {
    /// Starts a server. The error is one sentence for the person who started it.
    pub async fn start(config: &Config) -> anyhow::Result<Self> {
        Auth::check_listen(config.auth, config.listen).map_err(|reason| anyhow!(reason))?;
        let listener = listen(config.listen, "--listen (CODEEXEC_LISTEN)").await?;
        let address = listener.local_addr().context("reading the address listened on")?;
        let inside = match config.metrics_listen {
            Some(address) => Some(listen(address, "--metrics-listen (CODEEXEC_METRICS_LISTEN)").await?),
            None => None,
        };
        std::fs::create_dir_all(&config.data_dir)
            .with_context(|| format!("cannot make the data folder {}", config.data_dir.display()))?;
        providers::install_tls();
        let models = models::configured(config)?;
        let (auth, own_key) = authentication(config, address)?;
        let store = config.files.open(&config.data_dir).await.context("opening the file store")?;
        let stop = CancellationToken::new();
        let sandboxes = Sandboxes::new(runtime(config).await?);
        let app = Arc::new(App {
            auth,
            code_execution: config.code_execution,
            repl: config.repl && sandboxes.has_python(),
            metrics: Metrics::new(&sandboxes),
            readiness: Readiness::default(),
            sandboxes,
            files: Arc::new(Limited::new(store, config.files.totals())),
            uploads: Uploads::default(),
            tags: Tags::default(),
            downloads: Downloads { uploaded: config.download_uploaded, generated: config.download_generated },
            models,
            command_timeout: config.command_timeout.map(Duration::from_secs),
            idle_timeout: Duration::from_secs(config.idle_timeout),
            max_samplings: config.max_samplings,
            stop: stop.clone(),
        });
        tracing::info!("listening on http://{address}");
        let mut chores = vec![tokio::spawn(do_chores(Arc::clone(&app)))];
        if let Some(inside) = inside {
            let address = inside.local_addr().context("reading the address of the metrics")?;
            tracing::info!("metrics on http://{address}/metrics");
            chores.push(tokio::spawn(serve_inside(inside, Arc::clone(&app))));
        }
        let serving = tokio::spawn(serve(listener, app, chores));
        Ok(Self { address, own_key, stop, serving })
    }

    /// Ends requests under way, then sandboxes of this machine.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.serving.await {
            tracing::error!(%error, "the server did not end well");
        }
    }
}

async fn listen(address: SocketAddr, setting: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            anyhow!("another program listens on {address}; stop it, or choose another address with {setting}")
        }
        _ => anyhow!("cannot listen on {address}: {error}; choose another address with {setting}"),
    })
}

/// Until requests under way have ended: what is said of a server that is stopping matters too.
async fn serve_inside(listener: TcpListener, app: Arc<App>) {
    if let Err(error) = axum::serve(listener, router::inside(&app)).await {
        tracing::error!(%error, "serving metrics ended");
    }
}

async fn serve(listener: TcpListener, app: Arc<App>, chores: Vec<JoinHandle<()>>) {
    let stop = app.stop.clone();
    // An event that waits for the acknowledgement of the one before would come 40 ms late. A connection without the option works too.
    let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
    let serving = axum::serve(listener, router::router(&app)).with_graceful_shutdown(stop.clone().cancelled_owned());
    tokio::select! {
        ended = serving.into_future() => {
            if let Err(error) = ended {
                tracing::error!(%error, "serving ended");
            }
        }
        () = async { stop.cancelled().await; tokio::time::sleep(GRACE).await } => {
            tracing::warn!("requests under way did not end in time");
        }
    }
    chores.iter().for_each(JoinHandle::abort);
    app.sandboxes.shut_down().await;
}

/// What is to be done now and then.
async fn do_chores(app: Arc<App>) {
    let mut reload = tokio::time::interval(RELOAD);
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            _ = reload.tick() => {
                app.models.reload();
                if let Auth::Keys(file) = &app.auth {
                    file.reload();
                }
            }
            _ = sweep.tick() => {
                if let Err(error) = app.files.sweep(entropy::now()).await {
                    tracing::warn!(%error, "the file store was not swept");
                }
            }
        }
    }
}

fn authentication(config: &Config, address: SocketAddr) -> anyhow::Result<(Auth, Option<String>)> {
    match (config.auth, &config.keys_file) {
        (AuthKind::None, _) => Ok((Auth::Loopback { listen: address }, None)),
        (AuthKind::Keys, Some(path)) => Ok((Auth::Keys(Arc::new(KeyFile::open(path.clone())?)), None)),
        (AuthKind::Keys, None) => {
            let (path, key) = own_key(&config.data_dir)?;
            Ok((Auth::Keys(Arc::new(KeyFile::open(path)?)), Some(key)))
        }
    }
}

/// The key of a data folder, made when there is none; the keys file is written anew from it.
fn own_key(data_dir: &Path) -> anyhow::Result<(PathBuf, String)> {
    let (key_path, keys_path) = (data_dir.join("api-key"), data_dir.join("keys.jsonl"));
    let key = match std::fs::read_to_string(&key_path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key = format!("sk-codeexec-{}", URL_SAFE_NO_PAD.encode(entropy::random::<24>()));
            write_private(&key_path, &key)?;
            key
        }
        read => read.with_context(|| format!("cannot read the API key in {}", key_path.display()))?.trim().to_owned(),
    };
    let line = serde_json::json!({ "sha256": KeyHash::of(&key).to_hex(), "workspace": "default", "user": "local" });
    write_private(&keys_path, &line.to_string())?;
    Ok((keys_path, key))
}

/// Whole or not at all: half a key would lock everybody out.
fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let part = path.with_extension("part");
    let write = || {
        let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        writeln!(file, "{text}")?;
        file.sync_all()?;
        std::fs::rename(&part, path)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&part))).with_context(|| {
        format!("cannot write {}; free some space, or choose another folder with --data-dir", path.display())
    })
}

async fn runtime(config: &Config) -> anyhow::Result<Arc<dyn Runtime>> {
    match config.runtime {
        RuntimeKind::Local => {
            let sandboxd = match &config.sandboxd {
                Some(path) => path.clone(),
                None => beside_this_program("sandboxd")?,
            };
            let local = LocalConfig {
                data_dir: config.data_dir.join("sandboxes"),
                sandboxd,
                bwrap: PathBuf::from("bwrap"),
                image: config.sandbox_rootfs.clone(),
                idle_timeout: Duration::from_secs(config.idle_timeout),
                limits: LocalLimits::default(),
            };
            Ok(Arc::new(LocalRuntime::new(local).await?))
        }
        RuntimeKind::None => Ok(Arc::new(NoRuntime)),
        RuntimeKind::Kubernetes => {
            let kubernetes =
                KubernetesConfig { namespace: config.sandbox_namespace.clone(), template: config.template.clone() };
            Ok(Arc::new(KubernetesRuntime::new(kubernetes).await?))
        }
    }
}

fn beside_this_program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe().context("finding this program")?.with_file_name(name);
    if path.is_file() {
        Ok(path)
    } else {
        Err(anyhow!("{} is missing; name the sandboxd binary with --sandboxd", path.display()))
    }
}
