//! Fenced code blocks by the rules of `CommonMark`, at the top level of a text.

/// A fenced block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fence {
    /// First word of the info string.
    pub(super) language: String,
    /// Its lines, each with its end.
    pub(super) content: String,
}

struct Opening {
    mark: u8,
    length: usize,
    indent: usize,
    language: String,
}

/// The fenced blocks of a text. A longer fence encloses shorter ones; one without an end reaches to the end of the text.
pub(super) fn fences(text: &str) -> Vec<Fence> {
    let mut found = Vec::new();
    let mut open: Option<(Opening, String)> = None;
    for line in text.lines() {
        match open.take() {
            None => open = opening(line).map(|opening| (opening, String::new())),
            Some((opening, content)) if closes(&opening, line) => {
                found.push(Fence { language: opening.language, content });
            }
            Some((opening, mut content)) => {
                content.push_str(unindent(line, opening.indent));
                content.push('\n');
                open = Some((opening, content));
            }
        }
    }
    found.extend(open.map(|(opening, content)| Fence { language: opening.language, content }));
    found
}

/// Indentation, mark and length of a run of backticks or tildes at the start of a line, and what follows.
fn run(line: &str) -> Option<(usize, u8, usize, &str)> {
    let rest = line.trim_start_matches(' ');
    let indent = line.len() - rest.len();
    let mark = rest.bytes().next().filter(|byte| matches!(byte, b'`' | b'~'))?;
    let length = rest.bytes().take_while(|byte| *byte == mark).count();
    (indent <= 3 && length >= 3).then(|| (indent, mark, length, &rest[length..]))
}

fn opening(line: &str) -> Option<Opening> {
    let (indent, mark, length, info) = run(line)?;
    if mark == b'`' && info.contains('`') {
        return None;
    }
    let language = info.split_whitespace().next().unwrap_or_default().to_owned();
    Some(Opening { mark, length, indent, language })
}

fn closes(opening: &Opening, line: &str) -> bool {
    run(line).is_some_and(|(_, mark, length, rest)| {
        mark == opening.mark && length >= opening.length && rest.trim().is_empty()
    })
}

fn unindent(line: &str, indent: usize) -> &str {
    let spaces = line.bytes().take(indent).take_while(|byte| *byte == b' ').count();
    &line[spaces..]
}

#[cfg(test)]
mod tests {
    use super::fences;

    fn read(text: &str) -> Vec<(String, String)> {
        fences(text).into_iter().map(|fence| (fence.language, fence.content)).collect()
    }

    fn one(language: &str, content: &str) -> Vec<(String, String)> {
        vec![(language.to_owned(), content.to_owned())]
    }

    #[test]
    fn fences_follow_commonmark() {
        for (name, text, expected) in [
            ("plain", "a\n```bash\nls\n```\nb", one("bash", "ls\n")),
            ("tildes and more info", "~~~ bash title=x\nls\n~~~", one("bash", "ls\n")),
            ("longer encloses shorter", "````text\n```bash\nls\n```\n````", one("text", "```bash\nls\n```\n")),
            ("closing may be longer", "```bash\nls\n`````", one("bash", "ls\n")),
            ("other mark does not close", "```bash\n~~~\n```", one("bash", "~~~\n")),
            ("text after the mark does not close", "```bash\n``` x\n```", one("bash", "``` x\n")),
            ("without an end", "```bash\nls\n\n", one("bash", "ls\n\n")),
            ("indent is taken off", "  ```bash\n    ls\n pwd\n  ```", one("bash", "  ls\npwd\n")),
            ("four spaces are no fence", "    ```bash\nls", vec![]),
            ("backtick in the info is inline code", "```bash `x`\nls", vec![]),
            ("two backticks are none", "``bash\nls\n``", vec![]),
            ("empty", "```bash\n```", one("bash", "")),
            ("no language", "```\nx\n```", one("", "x\n")),
        ] {
            assert_eq!(read(text), expected, "{name}");
        }
    }
}
