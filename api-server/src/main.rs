//! The API server: starts, says how to call it, and stops on Ctrl-C or SIGTERM.

use api_server::{Server, config::Config, logging};
use clap::Parser;
use std::{io::Write, process::ExitCode};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    match run(Config::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A sentence for the person at the terminal; nobody to tell when it cannot be written.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    logging::init(config.log_format, "info");
    // Before the server starts, so that an early signal is not lost.
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let server = Server::start(&config).await?;
    if let Some(key) = &server.own_key {
        let hint = format!(
            "Listening. Try it from another terminal (Ctrl-C stops the server):\n\n{}\n",
            curl_line(&server, key)
        );
        writeln!(std::io::stdout(), "{hint}")?;
    }
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tracing::info!("stopping");
    server.stop().await;
    Ok(())
}

/// A request that can be pasted: the demo model runs what stands in a fence.
fn curl_line(server: &Server, key: &str) -> String {
    let body = r#"{"model": "default", "max_tokens": 1024, "messages": [{"role": "user", "content": "```bash\nuname -sr; echo $((6 * 7))\n```"}], "tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}"#;
    // Single quotes keep the shell's hands off the body: it holds none itself.
    format!(
        "curl -sS http://{}/v1/messages -H 'x-api-key: {key}' -H 'anthropic-version: 2023-06-01' -H 'content-type: application/json' -d '{body}'",
        server.address
    )
}
