//! What one sandbox may have other than its template says.

use crate::{EnvVar, Resources};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What this sandbox has other than its template says, as far as the template's `allowedOverrides` lets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Overrides {
    /// CPU, memory and local storage of the `main` container, instead of the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Variables of the `main` container, added to the template's or in place of those of the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Image of the `main` container, one that the template's `allowedImages` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s]+$"))]
    pub image: Option<String>,
    /// Runtime class of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub runtime_class_name: Option<String>,
}

/// A field of `overrides`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Override {
    /// `overrides.resources`.
    Resources,
    /// `overrides.env`.
    Env,
    /// `overrides.image`, further limited by `allowedImages`.
    Image,
    /// `overrides.runtimeClassName`.
    RuntimeClassName,
}

impl Override {
    /// What a sandbox may override when its template does not say.
    pub const DEFAULT: &[Self] = &[Self::Resources, Self::Env];

    /// The field.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Resources => "resources",
            Self::Env => "env",
            Self::Image => "image",
            Self::RuntimeClassName => "runtimeClassName",
        }
    }
}
