//! Answers of a hostile model upstream, in both dialects: the same however they are cut, and always blocks one by one.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((size, bytes)) = data.split_first() else { return };
    providers::fuzzing::stream(bytes, usize::from(*size));
});
