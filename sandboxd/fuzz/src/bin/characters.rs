//! Output cut at any byte: text without half a character at its end.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let whole = engine::fuzzing::text(data, false);
    assert_eq!(whole, String::from_utf8_lossy(data));
    for end in 0..=data.len().min(16) {
        let cut = engine::fuzzing::text(&data[..end], true);
        let kept = cut.strip_suffix("\n...[truncated]").unwrap();
        let Ok(valid) = std::str::from_utf8(data) else { continue };
        // Of text that is whole, a cut shows a beginning, and nothing in the place of what was cut.
        assert!(valid.starts_with(kept) && end - kept.len() < 4);
    }
});
