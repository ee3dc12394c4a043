//! What an edit makes of a text, byte by byte: nothing is decoded, and what is not edited stays as it is. Pure.
//!
//! A line ends with its line feed; the last one may have none. A carriage return before it belongs to the line.

use super::search::{LineEnds, find, newlines};
use sandboxd_protocol::{EditOutcome, EditRefusal};
use std::ops::Range;

/// Longest text of the changed lines that is told, in bytes: one line may be as long as the file.
const MAX_HUNK: usize = 256 * 1024;

/// The lines of a view.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// Their bytes, without the last one's line feed.
    pub(super) bytes: Range<usize>,
    pub(super) start_line: u64,
    pub(super) num_lines: u64,
    pub(super) total_lines: u64,
}

/// A changed text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) content: Vec<u8>,
    /// What is told of it.
    pub(super) outcome: EditOutcome,
}

/// A line feed at the end makes no further line.
pub(super) fn count_lines(text: &[u8]) -> u64 {
    newlines(text) + u64::from(text.last().is_some_and(|byte| *byte != b'\n'))
}

/// Where a line begins, counted from 1; the end of the text when it has fewer.
fn line_start(text: &[u8], line: u64) -> usize {
    let Some(before) = line.checked_sub(2) else { return 0 };
    let mut ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    usize::try_from(before).ok().and_then(|before| ends.nth(before)).unwrap_or(text.len())
}

/// The lines of a range, or all. The end may lie behind the last line; the start may not, but for an empty text.
pub(super) fn view(text: &[u8], range: Option<[i64; 2]>) -> Result<Selection, EditRefusal> {
    let total_lines = count_lines(text);
    let [start, end] = range.unwrap_or([1, -1]);
    let bad = || EditRefusal::BadRange { start, end, total_lines };
    let first = u64::try_from(start).ok().filter(|first| (1..=total_lines.max(1)).contains(first)).ok_or_else(bad)?;
    let last = if end == -1 { total_lines } else { u64::try_from(end).map_err(|_| bad())?.min(total_lines) };
    if end != -1 && end < start {
        return Err(bad());
    }
    let (from, to) = (line_start(text, first), line_start(text, last.saturating_add(1)));
    let bytes = text.get(from..to).unwrap_or_default();
    let shown = bytes.strip_suffix(b"\n").unwrap_or(bytes).len();
    let num_lines = (last + 1).saturating_sub(first);
    Ok(Selection { bytes: from..from + shown, start_line: first, num_lines, total_lines })
}

/// Puts a text in the place of one that occurs once: exactly as it is, else with line feeds for the carriage returns and line
/// feeds of the file, which the new text then gets too.
pub(super) fn replace(text: &[u8], old: &str, new: &str) -> Result<Change, EditRefusal> {
    if old.is_empty() {
        return Err(EditRefusal::EmptyOldStr);
    }
    if let Some(at) = only_place(text, old, LineEnds::Exact)? {
        return Ok(splice(text, at, new.as_bytes()));
    }
    if !has_crlf(text) {
        return Err(EditRefusal::NoMatch);
    }
    let at = only_place(text, &old.replace("\r\n", "\n"), LineEnds::Folded)?.ok_or(EditRefusal::NoMatch)?;
    let with_crlf = has_crlf(text.get(at.clone()).unwrap_or_default());
    Ok(splice(text, at, with_line_ends(new, with_crlf).as_bytes()))
}

fn only_place(text: &[u8], wanted: &str, ends: LineEnds) -> Result<Option<Range<usize>>, EditRefusal> {
    let found = find(text, wanted.as_bytes(), ends);
    if found.count > 1 {
        return Err(EditRefusal::Ambiguous { count: found.count, lines: found.lines });
    }
    Ok(found.first)
}

/// Puts lines after a line. They end as the line before them does, or as the one behind them at the beginning.
pub(super) fn insert(text: &[u8], after: i64, lines: &str) -> Result<Change, EditRefusal> {
    let total_lines = count_lines(text);
    let out_of_range = || EditRefusal::LineOutOfRange { insert_line: after, total_lines };
    let after = u64::try_from(after).ok().filter(|after| *after <= total_lines).ok_or_else(out_of_range)?;
    let at = line_start(text, after + 1);
    let crlf = ends_with_crlf(text, after.max(1));
    let line_end = if crlf { "\r\n" } else { "\n" };
    let mut block = if crlf { with_line_ends(lines, true) } else { lines.to_owned() };
    let is_at_open_end = at == text.len() && text.last().is_some_and(|byte| *byte != b'\n');
    if !is_at_open_end && !text.is_empty() && !block.ends_with('\n') {
        block.push_str(line_end);
    }
    let added = (block.len() <= MAX_HUNK).then(|| shown_lines("+", block.as_bytes()));
    let new_lines = count_lines(block.as_bytes());
    if is_at_open_end {
        block.insert_str(0, line_end);
    }
    let (before, behind) = text.split_at_checked(at).unwrap_or((text, &[]));
    let outcome = EditOutcome::Changed { start_line: after, old_lines: 0, new_lines, lines: added };
    Ok(Change { content: [before, block.as_bytes(), behind].concat(), outcome })
}

/// Changes a place, and tells of the lines that it lies in.
fn splice(text: &[u8], at: Range<usize>, with: &[u8]) -> Change {
    let before = text.get(..at.start).unwrap_or_default();
    let behind = text.get(at.end..).unwrap_or_default();
    let content = [before, with, behind].concat();
    let first = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    let (old_end, new_end) = (at.end, at.start + with.len());
    let is_whole = |text: &[u8], end: usize| text.get(first..end).is_none_or(|s| s.is_empty() || s.ends_with(b"\n"));
    // What follows in the last line belongs to it, unless the change began and ended between lines.
    let rest = if is_whole(text, old_end) && is_whole(&content, new_end) {
        0
    } else {
        behind.iter().position(|byte| *byte == b'\n').map_or(behind.len(), |newline| newline + 1)
    };
    let removed = text.get(first..old_end + rest).unwrap_or_default();
    let added = content.get(first..new_end + rest).unwrap_or_default();
    let lines = (removed.len() + added.len() <= MAX_HUNK)
        .then(|| [shown_lines("-", removed), shown_lines("+", added)].concat());
    let (start_line, old_lines, new_lines) = (newlines(before) + 1, count_lines(removed), count_lines(added));
    Change { outcome: EditOutcome::Changed { start_line, old_lines, new_lines, lines }, content }
}

/// Lines as a unified diff shows them.
fn shown_lines(mark: &str, block: &[u8]) -> Vec<String> {
    if block.is_empty() {
        return Vec::new();
    }
    let lines = block.strip_suffix(b"\n").unwrap_or(block).split(|byte| *byte == b'\n');
    lines.map(|line| format!("{mark}{}", String::from_utf8_lossy(line))).collect()
}

fn has_crlf(text: &[u8]) -> bool {
    text.windows(2).any(|pair| pair == b"\r\n")
}

/// Whether a line ends with a carriage return and a line feed; of one without an end, whether the one before does.
fn ends_with_crlf(text: &[u8], line: u64) -> bool {
    let from = line_start(text, line);
    let own = text.get(from..).unwrap_or_default().iter().position(|byte| *byte == b'\n').map(|end| from + end);
    let end = own.or_else(|| text.iter().rposition(|byte| *byte == b'\n'));
    end.and_then(|end| text.get(..end)).is_some_and(|before| before.ends_with(b"\r"))
}

fn with_line_ends(text: &str, crlf: bool) -> String {
    let plain = text.replace("\r\n", "\n");
    if crlf { plain.replace('\n', "\r\n") } else { plain }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
