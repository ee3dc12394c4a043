//! The shell sub-tool.

use std::time::Duration;

use serde_json::{Map, Value, json};
use wire::{BashOutputFile, BashResult, ToolErrorCode};

use super::{BASH, InvalidInput, SandboxFacts, ToolProfile, failure_code};
use crate::outcome::{Captured, Exit, ToolFailure};

/// Ends a stream that was cut.
const TRUNCATED: &str = "\n...[truncated]";

/// The input of a shell call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BashInput {
    /// The command.
    pub command: String,
    /// The time limit that the call names, in whole seconds; the caller clamps it to what the deployment allows.
    pub timeout: Option<u64>,
    /// Whether it begins afresh: nothing of before runs on, and the workspace is empty.
    pub restart: bool,
}

impl ToolProfile {
    pub(super) fn bash_definition(&self, facts: &SandboxFacts) -> Value {
        let mut properties = Map::new();
        properties.insert("command".into(), json!({ "type": "string", "description": "The shell command to run." }));
        if self.zylon {
            let description = format!(
                "Time limit in seconds. Default {}, at most {}.",
                facts.command_limit.as_secs(),
                facts.max_command_limit.as_secs()
            );
            properties.insert("timeout".into(), json!({ "type": "integer", "description": description }));
            let description = format!(
                "First ends everything that runs in the sandbox and deletes all files in {}; uploads and outputs stay. Then runs the \
                 command.",
                facts.working_directory
            );
            properties.insert("restart".into(), json!({ "type": "boolean", "description": description }));
        }
        json!({
            "name": BASH,
            "description": self.bash_description(facts),
            "input_schema": {
                "type": "object",
                "properties": properties,
                "required": ["command"],
                "additionalProperties": false,
            },
        })
    }

    fn bash_description(&self, facts: &SandboxFacts) -> String {
        let network = if facts.network { "Network access is limited." } else { "There is no network." };
        let files = if self.zylon {
            "Uploaded files are in /mnt/user-data/uploads/ (read-only). To give files to the user, write them to /mnt/user-data/outputs/."
        } else {
            "Uploaded files are in the folder $INPUT_DIR. To give files to the user, copy them to the top level of the folder \
             $OUTPUT_DIR in the same command: it is new and empty for each call, and you do not see the list of captured files, \
             so end with `ls \"$OUTPUT_DIR\"`."
        };
        format!(
            "Runs a bash command in an isolated sandbox ({}) on the server, and returns its exit code, stdout and stderr. Each \
             call starts a new shell in {}: files stay, variables and the current folder do not. Standard input is empty. A command \
             is stopped after {} seconds; each output stream is cut after {} bytes. {network}{} {files}",
            facts.runtime,
            facts.working_directory,
            facts.command_limit.as_secs(),
            facts.output_limit,
            facts.installed(),
        )
    }

    pub(super) fn parse_bash(&self, input: &Value) -> Result<BashInput, InvalidInput> {
        let fail = |text: String| Err(InvalidInput(text));
        let Some(fields) = input.as_object() else {
            return fail(format!("the input of {BASH} must be a JSON object with a `command`"));
        };
        let known: &[&str] = if self.zylon { &["command", "timeout", "restart"] } else { &["command"] };
        if let Some(key) = fields.keys().find(|key| !known.contains(&key.as_str())) {
            return fail(format!("{BASH} has no parameter `{key}`; it takes {}", known.join(", ")));
        }
        let restart = match fields.get("restart") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(restart)) => *restart,
            Some(_) => return fail("`restart` must be a boolean".to_owned()),
        };
        let timeout = match fields.get("timeout") {
            None | Some(Value::Null) => None,
            Some(value) => match seconds(value) {
                Some(0) => None,
                Some(seconds) => Some(seconds),
                None => return fail("`timeout` must be a whole number of seconds, 1 or more".to_owned()),
            },
        };
        match fields.get("command") {
            None | Some(Value::Null) => fail(format!("{BASH} requires the command parameter.")),
            Some(Value::String(command)) if command.contains('\0') => {
                fail("`command` must not contain NUL characters".to_owned())
            }
            Some(Value::String(command)) => Ok(BashInput { command: command.clone(), timeout, restart }),
            Some(_) => fail("`command` must be a string".to_owned()),
        }
    }

    pub(super) fn finished(&self, stdout: &Captured, stderr: &Captured, exit: Exit, outputs: &[String]) -> BashResult {
        let mut stderr = text_of(stderr);
        let return_code = match exit {
            Exit::Code(code) => code,
            Exit::TimedOut(_) if !self.zylon => {
                return BashResult::Error { error_code: ToolErrorCode::ExecutionTimeExceeded, detail: None };
            }
            Exit::TimedOut(limit) => {
                if !stderr.is_empty() && !stderr.ends_with('\n') {
                    stderr.push('\n');
                }
                stderr.push_str(&timed_out(limit));
                124
            }
        };
        let content = outputs.iter().map(|id| BashOutputFile { file_id: id.clone() }).collect();
        BashResult::Finished { stdout: text_of(stdout), stderr, return_code, content }
    }

    pub(super) fn bash_failed(&self, failure: &ToolFailure) -> BashResult {
        let (error_code, detail) = self.error(failure_code(failure.kind), &failure.explanation);
        BashResult::Error { error_code, detail }
    }
}

/// A whole number, also as text, since models write both.
fn seconds(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn timed_out(limit: Duration) -> String {
    format!("Command timed out after {}s.", whole_seconds(limit))
}

/// Limits are whole seconds but for the last one of a turn's budget.
pub(super) fn whole_seconds(limit: Duration) -> u64 {
    limit.as_secs() + u64::from(limit.subsec_nanos() > 0)
}

/// Bytes as text: a character that the cut went through is dropped, other invalid bytes are replaced.
pub(crate) fn text_of(captured: &Captured) -> String {
    let bytes = &captured.bytes;
    let whole = if captured.truncated { &bytes[..whole_characters(bytes)] } else { bytes };
    let mut text = String::from_utf8_lossy(whole).into_owned();
    if captured.truncated {
        text.push_str(TRUNCATED);
    }
    text
}

/// Length without an unfinished character at the end.
fn whole_characters(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(3);
    for start in (from..bytes.len()).rev() {
        let needed = match bytes[start] {
            0x80..=0xBF => continue,
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            _ => 1,
        };
        let unfinished = start + needed > bytes.len();
        return if unfinished { start } else { bytes.len() };
    }
    bytes.len()
}
