//! What came of a server call, before it is put into the words of a tool profile.

use std::time::Duration;

use sandboxd_protocol::EditOutcome;
use serde_json::{Map, Value};

/// The end of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolOutcome {
    /// The command came to an end, if only by force.
    Finished {
        /// Standard output as far as it was kept.
        stdout: Captured,
        /// Standard error as far as it was kept.
        stderr: Captured,
        /// How it ended.
        exit: Exit,
        /// Files API ids of the captured files.
        outputs: Vec<String>,
    },
    /// The edit was done, or refused for what it asks for.
    Edited(EditOutcome),
    /// The call did not run, or nothing is known of its end.
    Failed(ToolFailure),
}

/// A call of a client's tool that Python code makes.
#[derive(Clone, Debug, PartialEq)]
pub struct CodeCall {
    /// Its number in the cell, from 0 and without gaps.
    pub number: u32,
    /// The tool's.
    pub name: String,
    /// The argument.
    pub input: Map<String, Value>,
}

/// What a cell that waits goes on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeAnswers {
    /// For each call that it waits for.
    pub results: Vec<CodeAnswer>,
    /// How many calls it has made so far.
    pub calls: u32,
}

/// What a client's tool says to the code that called it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeAnswer {
    /// The call's number.
    pub number: u32,
    /// What the code gets.
    pub content: String,
    /// Whether the client says that the tool failed.
    pub is_error: bool,
}

/// A stream's bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// Any bytes; what is not UTF-8 is shown as U+FFFD.
    pub bytes: Vec<u8>,
    /// There was more: the last character may be cut in the middle, and is dropped then.
    pub truncated: bool,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with the code that a shell shows: 128 + n after signal n.
    Code(i32),
    /// Killed at this time limit.
    TimedOut(Duration),
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFailure {
    /// The kind, which decides the code.
    pub kind: FailureKind,
    /// The reason in public words; shown where the profile has room for it.
    pub explanation: String,
}

/// Kinds of [`ToolFailure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The input is not valid.
    InvalidInput,
    /// The sandbox cannot be used, or was lost.
    Unavailable,
    /// Too many calls, or a quota is used up.
    TooManyRequests,
    /// The call took too long, and nothing of its output is known.
    TimedOut,
    /// A captured file is too large to be stored.
    OutputFileTooLarge,
}
