//! What holds for every edit of every text, for the fuzzer.

use super::text::{insert, replace, view};
use sandboxd_protocol::EditOutcome;

/// Views, replaces and inserts in a text that may be any bytes.
pub fn edit(text: &[u8], old: &str, new: &str, range: [i64; 2], line: i64) {
    if let Ok(seen) = view(text, Some(range)) {
        assert!(seen.bytes.end <= text.len() && seen.start_line >= 1);
        let shown = text[seen.bytes.clone()].split(|byte| *byte == b'\n').count() as u64;
        assert!(seen.num_lines == shown || seen.bytes.is_empty());
    }
    if let Ok(change) = replace(text, old, new) {
        // What is outside the one place keeps its bytes.
        let same = |a: &mut dyn Iterator<Item = &u8>, b: &mut dyn Iterator<Item = &u8>| {
            a.zip(b).take_while(|(a, b)| a == b).count()
        };
        let kept = same(&mut text.iter(), &mut change.content.iter())
            + same(&mut text.iter().rev(), &mut change.content.iter().rev());
        let folded = old.replace("\r\n", "\n").len() + old.matches('\n').count();
        assert!(kept + folded.max(old.len()) >= text.len().min(change.content.len()), "{kept} bytes kept");
        let EditOutcome::Changed { start_line, .. } = change.outcome else { panic!("no change") };
        assert!(start_line >= 1);
    }
    if let Ok(change) = insert(text, line, new) {
        let head = text.iter().zip(&change.content).take_while(|(a, b)| a == b).count();
        let tail = text.iter().rev().zip(change.content.iter().rev()).take_while(|(a, b)| a == b).count();
        assert!(head + tail >= text.len(), "an insertion takes nothing away");
    }
}
