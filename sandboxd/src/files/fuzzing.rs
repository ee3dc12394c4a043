//! What holds for every path, for the fuzzer.

use super::path::{Place, parse, writable};
use std::path::Component;

/// Takes any bytes as a path of the sandbox.
pub fn path(bytes: &[u8]) {
    let Ok(place) = parse(bytes) else { return };
    if let Place::File { below, .. } = &place {
        assert!(below.components().all(|part| matches!(part, Component::Normal(_))) && !below.as_os_str().is_empty());
    }
    if let Ok((folder, below)) = writable(place) {
        assert!(!matches!(folder, "skills" | "sealed" | "output") && below.is_relative());
    }
}
