//! Logs go to stderr; `RUST_LOG` chooses what is written, `info` without it.

use crate::config::LogFormat;
use tracing_subscriber::EnvFilter;

/// Turns logging on, once.
pub fn init(format: LogFormat, default_level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => {
            builder.with_target(false).with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init();
        }
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}
