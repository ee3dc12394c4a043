//! Settings: each is a flag, an environment variable with the prefix `CODEEXEC_`, and a chart value.

mod store;

use clap::{ArgAction, Parser, ValueEnum};
use std::{net::SocketAddr, path::PathBuf};
pub use store::{EncryptionKind, StoreKind, StoreSettings};

/// The Messages and Files API with code execution on one's own machines.
#[derive(Parser, Clone, Debug)]
#[command(name = "api-server", version)]
pub struct Config {
    /// Address to listen on.
    #[arg(long, env = "CODEEXEC_LISTEN", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,

    /// Address for `/metrics`, and `/readyz` in detail; only for those who run the server. Without it there is none.
    #[arg(long, env = "CODEEXEC_METRICS_LISTEN")]
    pub metrics_listen: Option<SocketAddr>,

    /// Where commands run: `local` under bubblewrap on this machine, `kubernetes` in Sandbox resources of a cluster, or `none`.
    #[arg(long, env = "CODEEXEC_RUNTIME", value_enum, default_value_t = RuntimeKind::Local)]
    pub runtime: RuntimeKind,

    /// Folder for stored files, local sandboxes and the key that is made when none is given.
    #[arg(long, env = "CODEEXEC_DATA_DIR", default_value = "codeexec-data")]
    pub data_dir: PathBuf,

    /// Who may call: `keys`, or `none` for anybody who can reach a loopback address.
    #[arg(long, env = "CODEEXEC_AUTH", value_enum, default_value_t = AuthKind::Keys)]
    pub auth: AuthKind,

    /// API keys, one JSON object a line: `{"sha256": "<hex>", "workspace": "...", "user": "..."}`. Read again when it
    /// changes. Without it one key is made in the data folder.
    #[arg(long, env = "CODEEXEC_KEYS_FILE")]
    pub keys_file: Option<PathBuf>,

    /// The models, in YAML, as docs/install.md shows. Read again when it changes. Without it there is one model: that of
    /// `--provider`.
    #[arg(long, env = "CODEEXEC_MODELS_FILE")]
    pub models_file: Option<PathBuf>,

    /// Where the one model is asked: `demo` is built in, `anthropic` a server of the Messages API, `openai` one of chat
    /// completions.
    #[arg(long, env = "CODEEXEC_PROVIDER", value_enum, default_value_t = ProviderKind::Demo)]
    pub provider: ProviderKind,

    /// Address of that server, such as `https://api.anthropic.com` or `http://vllm:8000/v1`.
    #[arg(long, env = "CODEEXEC_PROVIDER_URL")]
    pub provider_url: Option<String>,

    /// File that holds the key for that server. Read again when it changes.
    #[arg(long, env = "CODEEXEC_PROVIDER_KEY_FILE")]
    pub provider_key_file: Option<PathBuf>,

    /// Name of the one model, for clients and for the server that is asked; `default` names it too. Default: `demo`.
    #[arg(long, env = "CODEEXEC_MODEL")]
    pub model: Option<String>,

    /// Namespace of the Sandbox resources (runtime `kubernetes`).
    #[arg(long, env = "CODEEXEC_SANDBOX_NAMESPACE", default_value = "codeexec-sandboxes")]
    pub sandbox_namespace: String,

    /// `SandboxTemplate` of new sandboxes (runtime `kubernetes`); without it the namespace's `default`.
    #[arg(long, env = "CODEEXEC_TEMPLATE")]
    pub template: Option<String>,

    /// The `sandboxd` binary (runtime `local`); without it, the one beside this program.
    #[arg(long, env = "CODEEXEC_SANDBOXD")]
    pub sandboxd: Option<PathBuf>,

    /// Root file system of the sandbox image, as `make sandbox-rootfs` unpacks it (runtime `local`); without it, sandboxes have
    /// this machine's own programs.
    #[arg(long, env = "CODEEXEC_SANDBOX_ROOTFS")]
    pub sandbox_rootfs: Option<PathBuf>,

    /// Seconds without use after which a local sandbox is stopped; its files stay.
    #[arg(long, env = "CODEEXEC_IDLE_TIMEOUT", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..))]
    pub idle_timeout: u64,

    /// Longest run of a command in seconds, unless the request asks for less. Default: 300, and 60 for `code_execution_v1`.
    #[arg(long, env = "CODEEXEC_COMMAND_TIMEOUT", value_parser = clap::value_parser!(u64).range(1..=480))]
    pub command_timeout: Option<u64>,

    /// Whether the sandboxes' image has Python; without it no model is offered Python that remembers. The runtime `local` looks
    /// for itself, too.
    #[arg(long, env = "CODEEXEC_REPL", default_value_t = true, action = ArgAction::Set)]
    pub repl: bool,

    /// Whether the code execution tool is offered. Without it, requests that name the tool are answered as if they had not.
    #[arg(long, env = "CODEEXEC_CODE_EXECUTION", default_value_t = true, action = ArgAction::Set)]
    pub code_execution: bool,

    /// Model samplings of one request; then it ends with `pause_turn`.
    #[arg(long, env = "CODEEXEC_MAX_SAMPLINGS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub max_samplings: u32,

    /// Where stored files are kept.
    #[command(flatten)]
    pub files: StoreSettings,

    /// Whether uploaded files of threads can be downloaded.
    #[arg(long, env = "CODEEXEC_DOWNLOAD_UPLOADED", default_value_t = true, action = ArgAction::Set)]
    pub download_uploaded: bool,

    /// Whether generated files of threads can be downloaded.
    #[arg(long, env = "CODEEXEC_DOWNLOAD_GENERATED", default_value_t = true, action = ArgAction::Set)]
    pub download_generated: bool,

    /// How logs are written.
    #[arg(long, env = "CODEEXEC_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Where commands run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RuntimeKind {
    /// Under bubblewrap on this machine.
    Local,
    /// In Sandbox resources of a cluster.
    Kubernetes,
    /// Nowhere: each call of the tool ends with an error that says so.
    None,
}

/// Where the one model is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProviderKind {
    /// Built in.
    Demo,
    /// A server of the Messages API.
    Anthropic,
    /// A server of chat completions.
    #[value(name = "openai")]
    OpenAi,
}

/// Who may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuthKind {
    /// Anybody on a loopback address.
    None,
    /// Holders of a key.
    Keys,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}
