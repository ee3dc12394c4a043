//! What sandboxes may reach.

use k8s_openapi::api::networking::v1::NetworkPolicyEgressRule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the sandboxes of a template may reach: nothing, but for what is named here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// What they may reach, as the egress rules of a NetworkPolicy. Names are resolved only if a rule lets the sandbox reach a DNS
    /// server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub egress: Vec<NetworkPolicyEgressRule>,
    /// Whether they may reach the API server's port for sandboxes.
    #[serde(default)]
    pub api_access: bool,
    /// `false`: the operator makes no NetworkPolicy for this template; the cluster's own policies say what is allowed.
    #[serde(default = "yes")]
    pub managed: bool,
}

fn yes() -> bool {
    true
}

impl Default for Network {
    fn default() -> Self {
        Self { egress: Vec::new(), api_access: false, managed: true }
    }
}
