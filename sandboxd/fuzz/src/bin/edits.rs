//! Edits of files of any bytes: what is not edited keeps its bytes.
#![no_main]

use libfuzzer_sys::{arbitrary::Unstructured, fuzz_target};

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    let Ok((range, line, old, new)) = input.arbitrary::<([i8; 2], i8, String, String)>() else { return };
    let text = input.take_rest();
    sandboxd::fuzzing::edit(text, &old, &new, range.map(i64::from), i64::from(line));
    // A text that is there more often than chance has it.
    let some =
        String::from_utf8_lossy(text.get(..text.len().min(usize::from(line.unsigned_abs()))).unwrap_or_default());
    sandboxd::fuzzing::edit(text, &some, &new, range.map(i64::from), i64::from(line));
});
