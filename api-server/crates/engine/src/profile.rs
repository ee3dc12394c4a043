//! The code execution tool's contract: what the model is told, how its input is read, how an outcome is put into a block.

use std::time::Duration;

use serde_json::{Map, Value, json};
use wire::{
    BashOutputFile, BashResult, CodeToolVersion, ContentBlock, ErrorDetail, MessagesRequest, Tool, ToolErrorCode,
};

use crate::outcome::{Captured, Exit, FailureKind, ToolFailure, ToolOutcome};

/// The shell sub-tool's name.
pub const BASH: &str = "bash_code_execution";
/// Ends a stream that was cut.
const TRUNCATED: &str = "\n...[truncated]";
/// Longest text of one stream that the model reads; a client gets all of it.
const MODEL_STREAM_CHARS: usize = 40_000;

/// What the sandbox really is, for the descriptions. Constant per deployment, so that prompts stay the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxFacts {
    /// Such as `Debian 12 with bash and Python 3.11`.
    pub runtime: String,
    /// Where commands start.
    pub working_directory: String,
    /// A command's time limit when the call names none.
    pub command_limit: Duration,
    /// The longest time limit that a call may name.
    pub max_command_limit: Duration,
    /// Bytes of each output stream that are kept.
    pub output_limit: usize,
    /// Whether commands reach a network.
    pub network: bool,
}

/// The input of a shell call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BashInput {
    /// The command.
    pub command: String,
    /// The time limit that the call names, in whole seconds; the caller clamps it to what the deployment allows.
    pub timeout: Option<u64>,
}

/// Why an input is not valid, in words for the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidInput(pub String);

/// Which dialect of the tool a request speaks.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolProfile {
    /// `code_execution_v1`, or Zylon's extensions: time-outs as results, `unavailable` with a detail, more inputs.
    zylon: bool,
    cache_control: Option<Value>,
}

impl ToolProfile {
    /// The profile of a request; `None` when it offers no code execution.
    pub fn of(request: &MessagesRequest) -> Option<Self> {
        request.tools.iter().find_map(|tool| match tool {
            Tool::Code(tool) => Some(Self {
                zylon: tool.version == CodeToolVersion::V1 || request.zylon_extension,
                cache_control: tool.cache_control.clone(),
            }),
            Tool::Client(_) => None,
        })
    }

    /// The sub-tools as client tools for the upstream.
    pub fn definitions(&self, facts: &SandboxFacts) -> Vec<Value> {
        let mut properties = Map::new();
        properties.insert("command".into(), json!({ "type": "string", "description": "The shell command to run." }));
        if self.zylon {
            let description = format!(
                "Time limit in seconds. Default {}, at most {}.",
                facts.command_limit.as_secs(),
                facts.max_command_limit.as_secs()
            );
            properties.insert("timeout".into(), json!({ "type": "integer", "description": description }));
        }
        let mut bash = json!({
            "name": BASH,
            "description": self.description(facts),
            "input_schema": {
                "type": "object",
                "properties": properties,
                "required": ["command"],
                "additionalProperties": false,
            },
        });
        if let Some(cache) = &self.cache_control {
            bash["cache_control"] = cache.clone();
        }
        vec![bash]
    }

    fn description(&self, facts: &SandboxFacts) -> String {
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
             is stopped after {} seconds; each output stream is cut after {} bytes. {network} {files}",
            facts.runtime,
            facts.working_directory,
            facts.command_limit.as_secs(),
            facts.output_limit,
        )
    }

    /// Whether this is one of the sub-tools that the model was offered.
    pub fn offers(&self, name: &str) -> bool {
        name == BASH
    }

    /// Reads a shell call's input.
    ///
    /// # Errors
    /// What the model has to do differently.
    pub fn parse_bash(&self, input: &Value) -> Result<BashInput, InvalidInput> {
        let fail = |text: String| Err(InvalidInput(text));
        let Some(fields) = input.as_object() else {
            return fail(format!("the input of {BASH} must be a JSON object with a `command`"));
        };
        let known: &[&str] = if self.zylon { &["command", "timeout", "restart"] } else { &["command"] };
        if let Some(key) = fields.keys().find(|key| !known.contains(&key.as_str())) {
            return fail(format!("{BASH} has no parameter `{key}`; it takes {}", known.join(", ")));
        }
        match fields.get("restart") {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Bool(true)) => {
                return fail("this server does not support `restart`: call again without it".to_owned());
            }
            Some(_) => return fail("`restart` must be a boolean".to_owned()),
        }
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
            Some(Value::String(command)) => Ok(BashInput { command: command.clone(), timeout }),
            Some(_) => fail("`command` must be a string".to_owned()),
        }
    }

    /// The public block for an outcome.
    pub fn bash_result(&self, tool_use_id: &str, outcome: &ToolOutcome) -> ContentBlock {
        let content = match outcome {
            ToolOutcome::Finished { stdout, stderr, exit, outputs } => self.finished(stdout, stderr, *exit, outputs),
            ToolOutcome::Failed(failure) => self.failed(failure),
        };
        ContentBlock::BashCodeExecutionToolResult { tool_use_id: tool_use_id.to_owned(), content }
    }

    fn finished(&self, stdout: &Captured, stderr: &Captured, exit: Exit, outputs: &[String]) -> BashResult {
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

    fn failed(&self, failure: &ToolFailure) -> BashResult {
        if self.zylon {
            let detail = ErrorDetail { code: "unavailable".to_owned(), explanation: failure.explanation.clone() };
            return BashResult::Error { error_code: ToolErrorCode::Unavailable, detail: Some(detail) };
        }
        let error_code = match failure.kind {
            FailureKind::InvalidInput => ToolErrorCode::InvalidToolInput,
            FailureKind::Unavailable => ToolErrorCode::Unavailable,
            FailureKind::TooManyRequests => ToolErrorCode::TooManyRequests,
            FailureKind::TimedOut => ToolErrorCode::ExecutionTimeExceeded,
            FailureKind::OutputFileTooLarge => ToolErrorCode::OutputFileTooLarge,
        };
        BashResult::Error { error_code, detail: None }
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
    // Limits are whole seconds but for the last one of a turn's budget.
    let seconds = limit.as_secs() + u64::from(limit.subsec_nanos() > 0);
    format!("Command timed out after {seconds}s.")
}

/// Bytes as text: a character that the cut went through is dropped, other invalid bytes are replaced.
fn text_of(captured: &Captured) -> String {
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

/// What the model reads of a public result block, and whether it is an error. A pure function of the block, so that a replayed
/// history makes the same prompt.
pub(crate) fn model_text(content: &Value) -> (String, bool) {
    let kind = content["type"].as_str().unwrap_or_default();
    if kind.ends_with("_tool_result_error") {
        let code = content["error_code"].as_str().unwrap_or("unavailable");
        let reason = content["detail"]["explanation"].as_str().or_else(|| content["error_message"].as_str());
        return (reason.map_or_else(|| format!("error: {code}"), |reason| format!("error: {code}: {reason}")), true);
    }
    if kind == "bash_code_execution_result" || kind == "code_execution_result" {
        let mut text = format!("exit_code: {}", content["return_code"]);
        for stream in ["stdout", "stderr"] {
            let output = content[stream].as_str().unwrap_or_default();
            if !output.is_empty() {
                text.extend(["\n\n", stream, ":\n", &head_and_tail(output)]);
            }
        }
        return (text, false);
    }
    (head_and_tail(&content.to_string()), false)
}

/// Long output as its beginning and its end, where the errors are.
fn head_and_tail(text: &str) -> String {
    let count = text.chars().count();
    if count <= MODEL_STREAM_CHARS {
        return text.to_owned();
    }
    let head = MODEL_STREAM_CHARS * 3 / 5;
    let tail = MODEL_STREAM_CHARS - head;
    let byte_at = |place: usize| text.char_indices().nth(place).map_or(text.len(), |(byte, _)| byte);
    let (head_end, tail_start) = (byte_at(head), byte_at(count - tail));
    let omitted = count - MODEL_STREAM_CHARS;
    format!("{}\n...[{omitted} characters omitted]...\n{}", &text[..head_end], &text[tail_start..])
}

#[cfg(test)]
mod tests;
