//! Settings of networks and their probe.

use clap::{ArgAction, Args};
use std::{collections::BTreeMap, net::SocketAddr, str::FromStr};

/// Settings of networks and their probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct NetworkSettings {
    /// Sandboxes run only where the cluster was seen to enforce network policies
    #[arg(long, env = "CODEEXEC_REQUIRE_NETWORK_ENFORCEMENT", default_value_t = false, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub require_network_enforcement: bool,

    /// What any pod without a policy reaches, tried to see whether policies are enforced: ADDRESS:PORT, or a Service as NAMESPACE/NAME:PORT.
    /// Without it the Kubernetes service of the pod that the operator runs in; outside a cluster nothing is tried
    #[arg(long, env = "CODEEXEC_CANARY", value_name = "PLACE")]
    pub canary: Option<Canary>,

    /// Namespace of the API server, for templates with `network.apiAccess`
    #[arg(long, env = "CODEEXEC_API_ACCESS_NAMESPACE", requires_all = ["api_access_selector", "api_access_port"], value_name = "NAMESPACE")]
    pub api_access_namespace: Option<String>,

    /// Labels of the API server's pods: KEY=VALUE,KEY=VALUE
    #[arg(long, env = "CODEEXEC_API_ACCESS_SELECTOR", requires = "api_access_namespace", value_name = "LABELS")]
    pub api_access_selector: Option<Labels>,

    /// Port of the API server's pods that sandboxes may reach
    #[arg(long, env = "CODEEXEC_API_ACCESS_PORT", requires = "api_access_namespace", value_name = "PORT")]
    pub api_access_port: Option<u16>,

    /// Helm release, as NAMESPACE/NAME, that the deny-all policy belongs to when it has to be made anew
    #[arg(long, env = "CODEEXEC_HELM_RELEASE", value_name = "RELEASE")]
    pub helm_release: Option<HelmRelease>,
}

impl NetworkSettings {
    /// Where the API server is, if that was told.
    pub fn api_access(&self) -> Option<ApiAccess<'_>> {
        Some(ApiAccess {
            namespace: self.api_access_namespace.as_deref()?,
            labels: &self.api_access_selector.as_ref()?.0,
            port: self.api_access_port?,
        })
    }
}

/// The API server's port for sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiAccess<'a> {
    /// Namespace of its pods.
    pub namespace: &'a str,
    /// Labels of its pods.
    pub labels: &'a BTreeMap<String, String>,
    /// Port of its pods.
    pub port: u16,
}

/// What any pod without a policy reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Canary {
    /// At this address.
    Address(SocketAddr),
    /// At the addresses of this Service.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
}

impl FromStr for Canary {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let service = text.rsplit_once(':').and_then(|(service, port)| {
            let (namespace, name) = service.split_once('/')?;
            let port = port.parse().ok()?;
            let whole = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
            whole.then(|| Self::Service { namespace: namespace.to_owned(), name: name.to_owned(), port })
        });
        service.ok_or_else(|| "write ADDRESS:PORT, or a Service as NAMESPACE/NAME:PORT".to_owned())
    }
}

/// Labels as a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(pub BTreeMap<String, String>);

impl FromStr for Labels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').filter(|(key, _)| !key.is_empty())?;
            Some((key.to_owned(), value.to_owned()))
        };
        let labels: Option<BTreeMap<_, _>> = text.split(',').map(pair).collect();
        labels.map(Self).ok_or_else(|| "write labels as KEY=VALUE,KEY=VALUE".to_owned())
    }
}

/// A Helm release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelmRelease {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl FromStr for HelmRelease {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
        let release = parts.map(|(namespace, name)| Self { namespace: namespace.to_owned(), name: name.to_owned() });
        release.ok_or_else(|| "write a release as NAMESPACE/NAME".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_is_an_address_or_a_service() {
        let service = |namespace: &str, name: &str, port| Canary::Service {
            namespace: namespace.into(),
            name: name.into(),
            port,
        };
        assert_eq!("10.0.0.9:80".parse(), Ok(Canary::Address("10.0.0.9:80".parse().unwrap())));
        assert_eq!("[fd00::9]:80".parse(), Ok(Canary::Address("[fd00::9]:80".parse().unwrap())));
        assert_eq!("system/api:8080".parse(), Ok(service("system", "api", 8080)));
        for wrong in ["", "10.0.0.9", "api:80", "/api:80", "system/:80", "a/b/c:80", "system/api:http", "system/api"] {
            assert!(wrong.parse::<Canary>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_api_server_is_known_only_when_all_of_it_was_told() {
        let mut settings = NetworkSettings {
            api_access_namespace: Some("system".to_owned()),
            api_access_selector: Some("app=api,part=x".parse().unwrap()),
            ..NetworkSettings::default()
        };
        assert_eq!(settings.api_access(), None);
        settings.api_access_port = Some(8081);
        let access = settings.api_access().unwrap();
        assert_eq!((access.namespace, access.port, access.labels["part"].as_str()), ("system", 8081, "x"));
        assert!("a".parse::<Labels>().is_err() && "=b".parse::<Labels>().is_err());
        assert!("a".parse::<HelmRelease>().is_err() && "a/".parse::<HelmRelease>().is_err());
    }
}
