//! Settings: flags, and environment variables of the same name.

use clap::{Parser, ValueEnum};
use std::net::SocketAddr;

/// Turns Sandbox resources into pods with workspaces.
#[derive(Clone, Debug, Parser)]
#[command(name = "operator", version)]
pub struct Settings {
    /// Namespace whose sandboxes are looked after; may be repeated, or a list with commas
    #[arg(long = "sandbox-namespace", env = "CODEEXEC_SANDBOX_NAMESPACE", required = true, value_delimiter = ',', value_name = "NAMESPACE", value_parser = namespace)]
    pub sandbox_namespaces: Vec<String>,

    /// Image of the init and `files` containers of every sandbox
    #[arg(long, env = "CODEEXEC_SANDBOXD_IMAGE", value_name = "IMAGE")]
    pub sandboxd_image: String,

    /// Address of /healthz, /readyz and /metrics
    #[arg(long, env = "CODEEXEC_LISTEN", default_value = "0.0.0.0:9090", value_name = "ADDRESS")]
    pub listen: SocketAddr,

    /// Form of the log
    #[arg(long, env = "CODEEXEC_LOG_FORMAT", default_value = "json", value_name = "FORMAT")]
    pub log_format: LogFormat,

    /// What is logged: a level, or a filter such as `info,operator=debug`
    #[arg(long, env = "CODEEXEC_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// A name that Kubernetes takes for a namespace.
fn namespace(text: &str) -> Result<String, String> {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let good = !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(legal)
        && !text.starts_with('-')
        && !text.ends_with('-');
    good.then(|| text.to_owned())
        .ok_or_else(|| "a namespace has at most 63 lower-case letters, digits and dashes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_come_as_a_list_or_repeated() {
        let settings = Settings::try_parse_from([
            "operator",
            "--sandbox-namespace",
            "a,b",
            "--sandbox-namespace",
            "c",
            "--sandboxd-image",
            "i",
        ])
        .unwrap();
        assert_eq!(settings.sandbox_namespaces, ["a", "b", "c"]);
        let refused = Settings::try_parse_from(["operator", "--sandbox-namespace", "A_b", "--sandboxd-image", "i"]);
        assert!(refused.unwrap_err().to_string().contains("lower-case"));
    }
}
