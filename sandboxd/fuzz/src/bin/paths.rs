//! Paths of file requests: whatever is taken stays beneath its folder.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    sandboxd::fuzzing::path(data);
    // Most inputs lie in no folder.
    for folder in ["/tmp/", "/home/agent/workspace/", "/skills/", "/sealed/"] {
        sandboxd::fuzzing::path(&[folder.as_bytes(), data].concat());
    }
});
