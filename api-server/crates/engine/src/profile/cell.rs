//! The Python sub-tool.

use std::time::Duration;

use serde_json::{Value, json};
use wire::{CellOutputFile, CellResult, CodeToolVersion, ToolErrorCode};

use super::{
    BASH, CELL, Function, InvalidInput, SandboxFacts, ToolProfile,
    bash::{text_of, whole_seconds},
    failure_code,
};
use crate::outcome::{Captured, Exit, FailureKind, ToolFailure};

/// What a cell returns that was stopped at its limit, as the shell's `timeout` does.
const TIMED_OUT: i32 = 124;

impl ToolProfile {
    pub(super) fn cell_definition(&self, facts: &SandboxFacts) -> Value {
        json!({
            "name": CELL,
            "description": self.cell_description(facts),
            "input_schema": {
                "type": "object",
                "properties": { "code": { "type": "string", "description": "The Python code to run." } },
                "required": ["code"],
                "additionalProperties": false,
            },
        })
    }

    fn cell_description(&self, facts: &SandboxFacts) -> String {
        let network = if facts.network { "Network access is limited." } else { "There is no network." };
        // What the shell's description tells is not told twice.
        let (sandbox, installed) = if self.version == CodeToolVersion::Dated20250522 {
            (format!("in an isolated sandbox ({}) on the server", facts.runtime), facts.installed())
        } else {
            (format!("in the sandbox that {BASH} works in, with the same files"), String::new())
        };
        let limit = if self.version == CodeToolVersion::Dated20260120 {
            String::new()
        } else {
            format!(
                " A call is interrupted after {} seconds; variables are kept, so do long work in steps.",
                facts.cell_limit.as_secs()
            )
        };
        let files = if self.zylon {
            "Uploaded files are in /mnt/user-data/uploads/ (read-only). To give files to the user, write them to /mnt/user-data/outputs/."
        } else {
            "Uploaded files are in the folder os.environ[\"INPUT_DIR\"]. To give files to the user, write them to the top level of the \
             folder os.environ[\"OUTPUT_DIR\"] in the same call: it is new and empty for each call."
        };
        format!(
            "Runs Python code {sandbox}, and returns what it prints to stdout and stderr, the value of a last expression, and the \
             traceback of an exception. The interpreter goes on between calls: variables, imports and the current folder, at first \
             {}, stay. `await` works at the top level. Standard input is empty.{limit} Each output stream is cut after {} bytes. \
             {network}{installed} {files}{}",
            facts.working_directory,
            facts.output_limit,
            self.functions_description(),
        )
    }

    /// How code calls the client's tools.
    fn functions_description(&self) -> String {
        if self.functions.is_empty() {
            return String::new();
        }
        let mut text = "\n\nThe code may call these async functions. Each takes one dict with its arguments, and returns a string, \
                        which may hold JSON: `text = await name({...})`. Calls gathered with `asyncio.gather` are made at once. Only \
                        what the code prints comes back, so print what is needed of the results. For a name that is no Python \
                        identifier write `_` in the place of each other character, and before a leading digit."
            .to_owned();
        for Function { name, description, schema } in &self.functions {
            let description = description.as_deref().unwrap_or_default();
            let schema = schema.as_ref().map(Value::to_string).unwrap_or_default();
            text.extend(["\n- `", name, "`: ", description, "\n  Arguments: ", &schema]);
        }
        text
    }

    pub(super) fn parse_cell(input: &Value) -> Result<String, InvalidInput> {
        let fail = |text: &str| Err(InvalidInput(format!("{CELL}{text}")));
        let Some(fields) = input.as_object() else {
            return fail(": the input must be a JSON object with `code`");
        };
        if let Some(key) = fields.keys().find(|key| *key != "code") {
            return fail(&format!(" has no parameter `{key}`; it takes code"));
        }
        match fields.get("code") {
            None | Some(Value::Null) => fail(" requires the code parameter."),
            Some(Value::String(code)) => Ok(code.clone()),
            Some(_) => fail(": `code` must be a string"),
        }
    }

    pub(super) fn cell_finished(
        &self,
        stdout: &Captured,
        stderr: &Captured,
        exit: Exit,
        outputs: &[String],
    ) -> CellResult {
        let mut stderr = text_of(stderr);
        let return_code = match exit {
            Exit::Code(code) => code,
            Exit::TimedOut(_) if self.version == CodeToolVersion::Dated20250522 && !self.zylon => {
                return CellResult::Error { error_code: ToolErrorCode::ExecutionTimeExceeded, detail: None };
            }
            Exit::TimedOut(limit) => {
                if !stderr.is_empty() && !stderr.ends_with('\n') {
                    stderr.push('\n');
                }
                stderr.push_str(&timed_out(limit));
                TIMED_OUT
            }
        };
        let content = outputs.iter().map(|id| CellOutputFile { file_id: id.clone() }).collect();
        CellResult::Finished { stdout: text_of(stdout), stderr, return_code, content }
    }

    pub(super) fn cell_failed(&self, failure: &ToolFailure) -> CellResult {
        let code = match failure.kind {
            // The contract has no code for it here.
            FailureKind::OutputFileTooLarge => ToolErrorCode::Unavailable,
            kind @ (FailureKind::InvalidInput
            | FailureKind::Unavailable
            | FailureKind::TooManyRequests
            | FailureKind::TimedOut) => failure_code(kind),
        };
        let (error_code, detail) = self.error(code, &failure.explanation);
        CellResult::Error { error_code, detail }
    }
}

/// The contract's word for it first.
fn timed_out(limit: Duration) -> String {
    format!("detection_timeout: the cell was interrupted after {}s.", whole_seconds(limit))
}

#[cfg(test)]
#[path = "cell_tests.rs"]
mod tests;
