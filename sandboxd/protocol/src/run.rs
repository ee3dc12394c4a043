//! Requests to run something, and how a run ended.

use crate::{Edit, Tool, WaitingCell};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Body of `PUT /runs/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRequest {
    /// What to run.
    #[serde(flatten)]
    pub run: RunKind,
    /// Variables set for this run, beside the container's own and the fixed ones of [`crate::layout::environment`].
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Bounds of the run.
    pub limits: Limits,
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "input", rename_all = "snake_case")]
pub enum RunKind {
    /// A fresh `bash` that runs one command, with stdin at its end.
    Bash {
        /// The command text, of any length up to the body limit.
        command: String,
        /// Begins afresh: as after `POST /reset` nothing else runs and the workspace is empty.
        #[serde(default)]
        restart: bool,
    },
    /// An edit of a file. Edits wait for each other, and not for commands.
    Edit(Edit),
    /// Python code in the interpreter that remembers. Cells run one after another.
    Cell {
        /// The code.
        code: String,
        /// The client's tools that the code may call.
        #[serde(default)]
        tools: Vec<Tool>,
    },
}

/// Bounds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Wall-clock time in milliseconds after which every process of the run is killed. A cell's clock stands still while it
    /// waits for results, and a cell is interrupted first.
    pub timeout_ms: u64,
    /// Bytes of stdout that are kept, and as many of stderr; the rest is read and dropped.
    pub output_bytes: u64,
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code as a shell shows it: 128 + n after signal n; 124 after the time limit, 126 when no shell could be started.
    pub code: i32,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Killed at its time limit.
    #[serde(default)]
    pub timed_out: bool,
    /// Killed, in part at least, for want of memory.
    #[serde(default)]
    pub oom: bool,
    /// Killed since nobody followed it for [`crate::ABANDONED_AFTER`].
    #[serde(default)]
    pub abandoned: bool,
    /// Killed by `DELETE /runs/{id}`.
    #[serde(default)]
    pub cancelled: bool,
    /// Stdout went over the limit.
    #[serde(default)]
    pub stdout_truncated: bool,
    /// Stderr went over the limit.
    #[serde(default)]
    pub stderr_truncated: bool,
    /// The cell's interpreter is gone, and its variables with it.
    #[serde(default)]
    pub interpreter_lost: bool,
    /// The cell started on a new interpreter although there had been one.
    #[serde(default)]
    pub fresh_interpreter: bool,
    /// A newer cell ended this one while it waited for results.
    #[serde(default)]
    pub superseded: bool,
    /// Entries in the run's output folder; 0 means that there is nothing to seal.
    #[serde(default)]
    pub outputs: u32,
}

/// Answer of `GET /state`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Runs that were started and have not ended.
    pub running: u32,
    /// Runs that wait for their turn.
    pub waiting: u32,
    /// Results that can still be joined.
    pub kept: u32,
    /// The cell that waits for results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<WaitingCell>,
}
