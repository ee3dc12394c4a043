//! Finding a text in another one, overlapping places included. In time that grows with their lengths only, whatever they hold:
//! both come from the sandbox.

use std::ops::Range;

/// Lines that are told of the places where a text was found.
const MAX_LINES: usize = 20;

/// What ends a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineEnds {
    /// Every byte counts.
    Exact,
    /// A carriage return before a line feed is passed over.
    Folded,
}

/// Where a text was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// How often.
    pub(super) count: u64,
    /// The lines in which the first places begin, counted from 1.
    pub(super) lines: Vec<u64>,
    /// The first place.
    pub(super) first: Option<Range<usize>>,
}

/// Line feeds in a text.
pub(super) fn newlines(text: &[u8]) -> u64 {
    text.split(|byte| *byte == b'\n').fold(0_u64, |count, _| count + 1).saturating_sub(1)
}

/// Finds a text that is not empty.
pub(super) fn find(text: &[u8], wanted: &[u8], ends: LineEnds) -> Found {
    let mut found = Found::default();
    if wanted.is_empty() || wanted.len() > text.len() {
        return found;
    }
    let wanted_newlines = newlines(wanted);
    let mut matcher = Matcher::new(wanted);
    let mut line = 1_u64;
    let mut bytes = text.iter().copied().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        let before_newline = byte == b'\r' && bytes.peek().is_some_and(|(_, next)| *next == b'\n');
        if ends == LineEnds::Folded && before_newline {
            continue;
        }
        line += u64::from(byte == b'\n');
        if matcher.push(byte) {
            found.count += 1;
            if found.lines.len() < MAX_LINES {
                found.lines.push(line.saturating_sub(wanted_newlines));
            }
            found.first.get_or_insert_with(|| start(text, at + 1, wanted.len(), ends)..at + 1);
        }
    }
    found
}

/// Where a place begins that ends here and has this many bytes that count.
fn start(text: &[u8], end: usize, length: usize, ends: LineEnds) -> usize {
    if ends == LineEnds::Exact {
        return end.saturating_sub(length);
    }
    (0..length).fold(end, |at, _| {
        let at = at.saturating_sub(1);
        let newline = text.get(at.saturating_sub(1)..=at) == Some(b"\r\n".as_slice());
        if newline { at.saturating_sub(1) } else { at }
    })
}

/// Takes a text byte by byte (Knuth, Morris, Pratt).
struct Matcher<'a> {
    wanted: &'a [u8],
    /// For each length of a beginning that matched: how much of it is a beginning again when the next byte does not match.
    shorter: Vec<u32>,
    matched: usize,
}

impl<'a> Matcher<'a> {
    fn new(wanted: &'a [u8]) -> Self {
        let mut matcher = Self { wanted, shorter: Vec::with_capacity(wanted.len()), matched: 0 };
        for (place, byte) in wanted.iter().enumerate() {
            if place > 0 {
                matcher.push(*byte);
            }
            matcher.shorter.push(u32::try_from(matcher.matched).unwrap_or(u32::MAX));
        }
        matcher.matched = 0;
        matcher
    }

    /// Whether a place ends with this byte.
    fn push(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.wanted.get(self.matched) != Some(&byte) {
            self.matched = self.shorter.get(self.matched - 1).map_or(0, |shorter| *shorter as usize);
        }
        if self.wanted.get(self.matched) == Some(&byte) {
            self.matched += 1;
        }
        self.matched == self.wanted.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn places_overlap_and_tell_their_lines() {
        let found = find(b"aaa", b"aa", LineEnds::Exact);
        assert_eq!((found.count, found.lines, found.first), (2, vec![1, 1], Some(0..2)));
        let found = find(b"x\ny\nx\n\nx", b"x", LineEnds::Exact);
        assert_eq!((found.count, found.lines), (3, vec![1, 3, 5]));
        let found = find(b"a\nb\na\nb\n", b"\nb", LineEnds::Exact);
        assert_eq!((found.count, found.lines, found.first), (2, vec![1, 3], Some(1..3)));
        assert_eq!(find(b"abc", b"d", LineEnds::Exact), Found::default());
    }

    #[test]
    fn only_a_carriage_return_that_ends_a_line_is_passed_over() {
        assert_eq!(find(b"a\r\nb\r\nc", b"a\nb", LineEnds::Folded).first, Some(0..4));
        assert_eq!(find(b"a\r\nb\r\nc", b"\nb\n", LineEnds::Folded).first, Some(1..6));
        assert_eq!(find(b"a\rb\r\n", b"ab", LineEnds::Folded).count, 0);
        assert_eq!(find(b"a\r\nb", b"a\nb", LineEnds::Exact).count, 0);
    }

    #[test]
    fn the_worst_text_takes_no_longer_than_any_other() {
        let (text, wanted) = (vec![b'a'; 4 << 20], vec![b'a'; 2 << 20]);
        assert_eq!(find(&text, &wanted, LineEnds::Exact).count, (2 << 20) + 1);
    }

    proptest! {
        #[test]
        fn what_is_found_is_what_a_plain_search_finds(text in "[ab\n]{0,40}", wanted in "[ab\n]{1,4}") {
            let (text, wanted) = (text.as_bytes(), wanted.as_bytes());
            let starts: Vec<usize> = (0..text.len()).filter(|at| text[*at..].starts_with(wanted)).collect();
            let found = find(text, wanted, LineEnds::Exact);
            prop_assert_eq!(found.count, starts.len() as u64);
            let lines: Vec<u64> = starts.iter().map(|at| newlines(&text[..*at]) + 1).take(MAX_LINES).collect();
            prop_assert_eq!(found.lines, lines);
            prop_assert_eq!(found.first, starts.first().map(|at| *at..at + wanted.len()));
        }
    }
}
