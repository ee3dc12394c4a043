//! Settings: flags, and environment variables of the same name.

use crate::{leader::Timing, network::settings::NetworkSettings};
use clap::{ArgAction, Args, Parser, ValueEnum};
use jiff::SignedDuration;
use std::{net::SocketAddr, time::Duration};

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

    /// What sandboxes may reach
    #[command(flatten)]
    pub network: NetworkSettings,

    /// Who of several operators works
    #[command(flatten)]
    pub election: ElectionSettings,

    /// Form of the log
    #[arg(long, env = "CODEEXEC_LOG_FORMAT", default_value = "json", value_name = "FORMAT")]
    pub log_format: LogFormat,

    /// What is logged: a level, or a filter such as `info,operator=debug`
    #[arg(long, env = "CODEEXEC_LOG", default_value = "info,kube_client=off", value_name = "FILTER")]
    pub log: String,
}

/// Settings of leader election.
#[derive(Clone, Debug, Args)]
pub struct ElectionSettings {
    /// Work only while holding a Lease; `false` is for trials with a single operator
    #[arg(long, env = "CODEEXEC_LEADER_ELECTION", default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub leader_election: bool,

    /// Namespace of the Lease; without it the service account's, or that of the kubeconfig's context
    #[arg(long, env = "CODEEXEC_LEASE_NAMESPACE", value_name = "NAMESPACE", value_parser = namespace)]
    pub lease_namespace: Option<String>,

    /// Name of the Lease: one for all operators that look after the same namespaces
    #[arg(long, env = "CODEEXEC_LEASE_NAME", default_value = "codeexec-operator", value_name = "NAME")]
    pub lease_name: String,

    /// Name of this pod, the first part of its name as a candidate; without it the host's
    #[arg(long, env = "CODEEXEC_POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,

    /// Another operator takes the Lease when it was not renewed for so long
    #[arg(long, env = "CODEEXEC_LEASE_DURATION", default_value = "15s", value_name = "DURATION", value_parser = duration)]
    pub lease_duration: Duration,

    /// The operator ends when it could not renew the Lease for so long
    #[arg(long, env = "CODEEXEC_LEASE_RENEW_DEADLINE", default_value = "10s", value_name = "DURATION", value_parser = duration)]
    pub lease_renew_deadline: Duration,

    /// Pause between two attempts to take or renew the Lease
    #[arg(long, env = "CODEEXEC_LEASE_RETRY", default_value = "2s", value_name = "DURATION", value_parser = duration)]
    pub lease_retry: Duration,
}

impl ElectionSettings {
    /// The times, if they fit together.
    pub fn timing(&self) -> Result<Timing, String> {
        let Self { lease_duration, lease_renew_deadline, lease_retry, .. } = *self;
        Timing { duration: lease_duration, renew_deadline: lease_renew_deadline, retry: lease_retry }.checked()
    }
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed: Result<SignedDuration, _> = text.parse();
    parsed
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| "write a duration such as 15s or 500ms".to_owned())
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

    fn election(flags: &[&str]) -> Result<ElectionSettings, clap::Error> {
        let always = ["operator", "--sandbox-namespace", "a", "--sandboxd-image", "i"];
        Settings::try_parse_from(always.iter().chain(flags)).map(|settings| settings.election)
    }

    #[test]
    fn leader_election_is_on_unless_it_is_turned_off() {
        assert!(election(&[]).unwrap().leader_election);
        assert!(election(&["--leader-election"]).unwrap().leader_election);
        assert!(!election(&["--leader-election=false"]).unwrap().leader_election);
        assert!(!election(&["--leader-election", "false"]).unwrap().leader_election);
    }

    #[test]
    fn times_of_the_lease_have_to_fit_together() {
        let timing = election(&[]).unwrap().timing().unwrap();
        assert_eq!(timing.duration, Duration::from_secs(15));
        let short = election(&["--lease-duration", "3s", "--lease-renew-deadline", "2s", "--lease-retry", "500ms"]);
        assert_eq!(short.unwrap().timing().unwrap().retry, Duration::from_millis(500));
        let refused = election(&["--lease-duration", "5s"]).unwrap().timing().unwrap_err();
        assert!(refused.contains("renew deadline"), "{refused}");
        assert!(election(&["--lease-retry=-2s"]).unwrap_err().to_string().contains("500ms"));
    }
}
