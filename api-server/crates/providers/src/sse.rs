//! Server-sent events out of bytes, however the bytes are cut.

/// Largest line and largest event, in bytes: a hostile upstream must not fill the memory.
const MAX_EVENT: usize = 16 << 20;

/// One event that holds data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The lines of its `data` fields, joined by line feeds. Bytes that are not UTF-8 are replaced.
    pub(crate) data: String,
}

/// An event or a line that is longer than any upstream needs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Splits a stream; comments, names, ids and events without data are left out.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    line: Vec<u8>,
    /// The last byte was a carriage return: a line feed after it ends no line of its own.
    after_return: bool,
    /// Past the first line, which may begin with a byte order mark.
    begun: bool,
    data: Option<String>,
}

impl Splitter {
    /// Adds the events that the next bytes complete; also with an error, those before it.
    pub(crate) fn push(&mut self, mut bytes: &[u8], events: &mut Vec<Event>) -> Result<(), TooLong> {
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.after_return) && first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
            let (part, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            if self.line.len() + part.len() > MAX_EVENT {
                return Err(TooLong);
            }
            self.line.extend_from_slice(part);
            let Some((terminator, rest)) = rest.split_first() else { break };
            self.after_return = *terminator == b'\r';
            bytes = rest;
            self.end_line(events)?;
        }
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<Event>) -> Result<(), TooLong> {
        let line = std::mem::take(&mut self.line);
        let mut line = line.as_slice();
        if !std::mem::replace(&mut self.begun, true) {
            line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        }
        if line.is_empty() {
            events.extend(self.data.take().map(|data| Event { data }));
            return Ok(());
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        if name == b"data" {
            let value = String::from_utf8_lossy(value.strip_prefix(b" ").unwrap_or(value));
            match &mut self.data {
                Some(data) if data.len() + value.len() > MAX_EVENT => return Err(TooLong),
                Some(data) => {
                    data.push('\n');
                    data.push_str(&value);
                }
                None => self.data = Some(value.into_owned()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(pieces: &[&[u8]]) -> Vec<String> {
        let (mut splitter, mut events) = (Splitter::default(), Vec::new());
        for piece in pieces {
            splitter.push(piece, &mut events).unwrap();
        }
        events.into_iter().map(|event| event.data).collect()
    }

    #[test]
    fn fields_lines_and_events_are_told_apart() {
        let rows: [(&str, &str, &[&str]); 9] = [
            ("one event", "event: a\ndata: {}\n\n", &["{}"]),
            ("carriage returns", "data: a\r\n\r\ndata: b\r\rdata: c\n\n", &["a", "b", "c"]),
            ("several lines", "data: a\ndata:\ndata:  b\n\n", &["a\n\n b"]),
            ("no space after the colon", "data:a\n\n", &["a"]),
            ("no colon", "data\n\n", &[""]),
            ("comments and other fields", ": ping\nid: 7\nretry: 1\n\ndata: a\n\n", &["a"]),
            ("a name that only begins alike", "database: x\n\n", &[]),
            ("a byte order mark", "\u{feff}data: a\n\ndata: \u{feff}\n\n", &["a", "\u{feff}"]),
            ("an event that does not end", "data: a\n\ndata: b\n", &["a"]),
        ];
        for (name, text, events) in rows {
            assert_eq!(split(&[text.as_bytes()]), events, "{name}");
        }
        assert_eq!(split(&[b"data: \xFFx\n\n"]), ["\u{fffd}x"]);
    }

    #[test]
    fn endless_lines_and_events_are_given_up() {
        let megabyte = vec![b'x'; 1 << 20];
        let line = [b"data: ".as_slice(), &megabyte, b"\n"].concat();
        for piece in [megabyte, line] {
            let (mut splitter, mut events) = (Splitter::default(), Vec::new());
            let first = splitter.push(b"data: a\n\n", &mut events);
            assert!(first.is_ok() && (0..17).any(|_| splitter.push(&piece, &mut events) == Err(TooLong)));
            assert_eq!(events.len(), 1, "what came before is kept");
        }
    }

    proptest! {
        #[test]
        fn where_the_bytes_are_cut_does_not_matter(
            lines in prop::collection::vec(prop::sample::select(vec![
                "data: {\"a\":1}", "data: \u{fc}\u{1f600}", "data:", "event: x", ": c", "", "", "data: b ", "\u{feff}data: z",
            ]), 0..20),
            endings in prop::collection::vec(prop::sample::select(vec!["\n", "\r\n", "\r"]), 20),
        ) {
            let text: String = lines.iter().zip(&endings).flat_map(|(line, ending)| [*line, *ending]).collect();
            let bytes = text.as_bytes();
            let whole = split(&[bytes]);
            for cut in 0..=bytes.len() {
                prop_assert_eq!(&split(&[&bytes[..cut], &bytes[cut..]]), &whole, "cut at {}", cut);
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(split(&single), whole);
        }
    }
}
