//! Cells: Python code in an interpreter that remembers, and its calls for the client's tools.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

/// Calls of a cell that may wait for their results at a time.
pub const MAX_PENDING_CALLS: usize = 128;
/// Calls that a cell may make in all.
pub const MAX_CALLS: usize = 1024;
/// Bytes of all calls of a cell, as JSON.
pub const MAX_CALL_BYTES: usize = 4 * 1024 * 1024;
/// A call without a result for this long ends in an exception in the cell's code.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(270);
/// How long a cell's clock stands still at a time while no result comes; then it goes on.
pub const MAX_WAIT: Duration = Duration::from_secs(330);

/// A tool of the client that a cell may call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name; a name that is no Python identifier is changed for the code, never on the wire.
    pub name: String,
    /// JSON schema of its argument: required and unknown keys are checked before a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
}

/// One call of a client's tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Its number within the cell, from 0 and without gaps.
    pub call_id: u32,
    /// The tool's name, as it was offered.
    pub name: String,
    /// The argument.
    pub input: Map<String, Value>,
}

impl ToolCall {
    /// Reads the payload of a [`crate::Frame::Calls`].
    pub fn parse_list(payload: &[u8]) -> Result<Vec<Self>, serde_json::Error> {
        serde_json::from_slice(payload)
    }
}

/// The result of one call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallResult {
    /// The call's number.
    pub call_id: u32,
    /// What the code gets, also when it is an error.
    pub content: String,
    /// Whether the client says that the tool failed.
    #[serde(default)]
    pub is_error: bool,
}

/// Body of `POST /runs/{id}/calls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallResults {
    /// The results, in any order.
    pub results: Vec<CallResult>,
}

/// A cell that waits for results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingCell {
    /// Its run.
    pub run: String,
    /// The calls without a result.
    pub calls: Vec<ToolCall>,
}
