//! Stands between the operator under test and the API server: plain HTTP on loopback with the rights of a kubeconfig, so only for
//! clusters of tests. Prints its address. Beside what it forwards it answers:
//!
//! - `PUT /_faults`: what is to go wrong from now on
//! - `GET /_log`, `DELETE /_log`: the writes that came; forgets them and counts from 1
//! - `POST /_cut`: ends the watches that are open

#[path = "../fault/mod.rs"]
mod fault;

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser;
use fault::proxy::Proxy;
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use std::{io::Write as _, net::SocketAddr, path::PathBuf, sync::Arc};
use tokio::net::TcpListener;

/// Forwards to the API server, and spoils what it is told to.
#[derive(Parser)]
struct Args {
    /// The cluster and the rights
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Where to listen; loopback only, since nobody is asked who they are
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(
        args.listen.ip().is_loopback(),
        "--listen must be an address of loopback: whoever reaches it has all rights"
    );
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow!("a TLS provider is already installed"))?;
    let file = Kubeconfig::read_from(&args.kubeconfig).context("cannot read the kubeconfig")?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .context("the kubeconfig cannot be used")?;
    // What fails is to fail for the client under test, not to be tried again here.
    config.default_retry = false;
    let client = kube::Client::try_from(config).context("the cluster's settings cannot be used")?;
    let listener = TcpListener::bind(args.listen).await.context("cannot listen")?;
    writeln!(std::io::stdout(), "http://{}", listener.local_addr()?)?;
    Arc::new(Proxy::new(client)).serve(listener).await
}
