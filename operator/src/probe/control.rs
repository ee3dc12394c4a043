//! The positive control: whether the canary answers at all.

use crate::{apply::request, network::settings::Canary};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use tokio::{net::TcpStream, time::timeout};

/// Longest wait for a connection of the operator itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the operator itself reached.
pub(super) enum Control {
    /// There is no canary.
    Unset,
    /// The canary's addresses cannot be found out.
    Unknown,
    /// These were tried.
    Tried {
        /// The canary's addresses.
        canaries: Vec<SocketAddr>,
        /// Those that answered.
        reached: BTreeSet<String>,
    },
}

/// Connects to the canary. Without a setting that is the Kubernetes service, which every pod is told of.
pub(super) async fn control(client: &Client, canary: Option<&Canary>) -> Control {
    let canaries = match canary {
        Some(Canary::Address(address)) => vec![*address],
        Some(Canary::Service { namespace, name, port }) => match addresses(client, namespace, name, *port).await {
            Some(addresses) => addresses,
            None => return Control::Unknown,
        },
        None => match kubernetes(|name| std::env::var(name).ok()) {
            Some(address) => vec![address],
            None => return Control::Unset,
        },
    };
    let mut reached = BTreeSet::new();
    for canary in &canaries {
        if matches!(timeout(PATIENCE, TcpStream::connect(canary)).await, Ok(Ok(_))) {
            reached.insert(canary.to_string());
        }
    }
    Control::Tried { canaries, reached }
}

fn kubernetes(variable: impl Fn(&str) -> Option<String>) -> Option<SocketAddr> {
    let host: IpAddr = variable("KUBERNETES_SERVICE_HOST")?.parse().ok()?;
    let port = variable("KUBERNETES_SERVICE_PORT")?.parse().ok()?;
    Some(SocketAddr::new(host, port))
}

async fn addresses(client: &Client, namespace: &str, name: &str, port: u16) -> Option<Vec<SocketAddr>> {
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let failure = match request("reading the canary's service", name, services.get(name)).await {
        Ok(Ok(service)) => return Some(cluster_addresses(&service, port)).filter(|addresses| !addresses.is_empty()),
        Ok(Err(refusal)) => format!("{refusal:?}"),
        Err(error) => error.to_string(),
    };
    tracing::warn!(service = name, namespace, failure, "the service that is the canary cannot be read");
    None
}

fn cluster_addresses(service: &Service, port: u16) -> Vec<SocketAddr> {
    let addresses = service.spec.iter().flat_map(|spec| spec.cluster_ips.iter().flatten());
    addresses.filter_map(|address| Some(SocketAddr::new(address.parse().ok()?, port))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_service_is_tried_at_each_of_its_addresses() {
        let found = |addresses: serde_json::Value| {
            let service: Service = serde_json::from_value(json!({ "spec": { "clusterIPs": addresses } })).unwrap();
            cluster_addresses(&service, 8080).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found(json!(["10.96.0.9", "fd00::9"])), ["10.96.0.9:8080", "[fd00::9]:8080"]);
        assert!(found(json!(["None"])).is_empty());
    }

    #[test]
    fn without_a_setting_it_is_the_kubernetes_service_of_the_pod() {
        let in_a_pod = |name: &str| Some(if name.ends_with("HOST") { "fd00::1" } else { "443" }.to_owned());
        assert_eq!(kubernetes(in_a_pod).unwrap().to_string(), "[fd00::1]:443");
        assert_eq!(kubernetes(|_| None), None);
    }
}
