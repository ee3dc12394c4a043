//! What goes over the control pipe between `sandboxd` and its interpreter: one JSON text a line. No IO.
//!
//! The code of a cell can write there whatever it likes. A line is bounded, and one that cannot be read ends the interpreter.

use sandboxd_protocol::{CallResult, Tool};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Longest line from the interpreter: twice what the calls of one frame need.
const MAX_LINE: usize = 128 * 1024;

/// A message to the interpreter.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToInterpreter<'a> {
    /// Run this.
    Cell {
        number: u64,
        code: &'a str,
        tools: &'a [Tool],
        /// Variables of the environment that are the cell's own.
        variables: &'a BTreeMap<String, String>,
        limits: Limits,
    },
    /// Results of calls.
    Results { cell: u64, results: &'a [CallResult] },
}

impl ToInterpreter<'_> {
    pub(crate) fn line(&self) -> Vec<u8> {
        // Strings, numbers and trees that were read from JSON always serialise.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// What the interpreter itself keeps to, so that code is told by an exception; beyond it the interpreter is ended.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Limits {
    /// Calls that wait for results.
    pub(crate) pending: usize,
    /// Bytes of the calls that wait for results.
    pub(crate) pending_bytes: usize,
    /// Calls of a cell.
    pub(crate) calls: usize,
    /// Bytes of the calls of a cell.
    pub(crate) bytes: usize,
    /// Seconds that a call waits for its result.
    pub(crate) call_seconds: f64,
}

/// A message from the interpreter.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FromInterpreter {
    /// It has started.
    Ready { pid: i32 },
    /// The code makes calls, waits for results, or goes on.
    Calls(CallsMessage),
    /// The code has ended, and all its output is in the pipes.
    End { cell: u64, code: i32 },
}

/// How the calls of a cell stand.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallsMessage {
    pub(crate) cell: u64,
    /// New calls.
    pub(crate) calls: Vec<NewCall>,
    /// Earlier calls whose results are no longer waited for.
    pub(crate) closed: Vec<u32>,
    /// Whether the code does nothing until results come.
    pub(crate) idle: bool,
    /// How many messages with results it had when it said so.
    pub(crate) seen: u64,
}

/// A call that the code makes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewCall {
    pub(crate) name: String,
    /// Kept as it is written.
    pub(crate) input: Box<RawValue>,
}

/// Lines that arrive in pieces.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    /// Bytes in which there is no line feed.
    searched: usize,
}

impl Lines {
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    /// The next message, if it is whole; else what is wrong.
    pub(crate) fn next(&mut self) -> Result<Option<FromInterpreter>, &'static str> {
        let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
        let Some(at) = unsearched.iter().position(|byte| *byte == b'\n').map(|at| self.searched + at) else {
            self.searched = self.buffer.len();
            let too_long = self.searched > MAX_LINE;
            return if too_long { Err("its control message is too long") } else { Ok(None) };
        };
        if at > MAX_LINE {
            return Err("its control message is too long");
        }
        let line: Vec<u8> = self.buffer.drain(..=at).collect();
        self.searched = 0;
        serde_json::from_slice(&line).map(Some).map_err(|_| "its control message cannot be read")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(bytes: &[u8], cut: usize) -> Result<Vec<FromInterpreter>, &'static str> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for piece in bytes.chunks(cut) {
            lines.push(piece);
            while let Some(message) = lines.next()? {
                found.push(message);
            }
        }
        Ok(found)
    }

    #[test]
    fn messages_survive_any_cut() {
        let call = r#"{"calls":{"cell":3,"calls":[{"name":"t","input":{"a":[1]}}],"closed":[0],"idle":true,"seen":0}}"#;
        let text = format!("{}\n{call}\n{}\n", r#"{"ready":{"pid":7}}"#, r#"{"end":{"cell":3,"code":1}}"#);
        for cut in 1..40 {
            let found = messages(text.as_bytes(), cut).unwrap();
            assert!(matches!(
                found.as_slice(),
                [
                    FromInterpreter::Ready { pid: 7 },
                    FromInterpreter::Calls(CallsMessage { cell: 3, idle: true, .. }),
                    FromInterpreter::End { cell: 3, code: 1 }
                ]
            ));
        }
    }

    #[test]
    fn what_is_no_message_or_too_long_is_refused() {
        for bad in ["\n", "x\n", "{}\n", "{\"end\":{}}\n", "{\"end\":{\"cell\":1,\"code\":0,\"more\":1}}\n", "[1]\n"] {
            assert!(messages(bad.as_bytes(), 3).is_err(), "{bad:?}");
        }
        assert!(messages(&vec![b' '; MAX_LINE + 1], 5000).is_err());
        assert!(messages(&vec![b' '; MAX_LINE], 5000).is_ok_and(|found| found.is_empty()));
    }

    #[test]
    fn a_message_to_the_interpreter_is_one_line() {
        let results = [CallResult { call_id: 0, content: "a\nb".into(), is_error: false }];
        let line = ToInterpreter::Results { cell: 1, results: &results }.line();
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
    }
}
