//! Model upstreams: a sampling goes out as one HTTP request, and what comes back becomes events of the turn machine.
//!
//! Pure: the reading of streams (`sse`, the dialects' readers), the making of bodies, what a failure means. Thin: the sending.
//! Nothing of an upstream's address, credentials or internals reaches a client.

mod anthropic;
mod catalog;
mod decode;
mod estimate;
mod failure;
mod http;
mod openai;
mod settings;
mod sse;
mod upstream;

use std::pin::Pin;

use engine::ModelEvent;
use futures_util::Stream;

/// What reads an upstream's bytes, for the fuzzer only.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    pub use crate::decode::fuzzing::stream;
}

pub use catalog::{Catalog, Model, Models, ModelsError};
pub use settings::{CapabilitiesEntry, ModelEntry, SettingsError, UpstreamEntry, UpstreamKind};
pub use upstream::{AddressError, KeyHeader, MaxTokensField};

/// The events of one sampling; dropping it cancels the sampling.
pub type Sampling = Pin<Box<dyn Stream<Item = ModelEvent> + Send>>;

/// Makes ring the process's TLS, unless it has one already; without it no HTTP client can be made.
pub fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
