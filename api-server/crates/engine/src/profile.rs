//! The code execution tool's contract: what the model is told, how its input is read, how an outcome is put into a block.

mod bash;
mod cell;
mod editor;
mod view;

use std::time::Duration;

use sandboxd_protocol::Edit;
use serde_json::Value;
use wire::{ClientTool, CodeToolVersion, ContentBlock, ErrorDetail, MessagesRequest, Tool, ToolErrorCode};

use crate::outcome::{CodeAnswers, FailureKind, ToolOutcome};
pub use bash::BashInput;
#[cfg(feature = "fuzzing")]
pub(crate) use bash::text_of;
pub(crate) use view::model_view;

/// The shell sub-tool's name.
pub const BASH: &str = "bash_code_execution";
/// The editor sub-tool's name.
pub const EDITOR: &str = "text_editor_code_execution";
/// The Python sub-tool's name.
pub const CELL: &str = "code_execution";

/// What the sandbox really is, for the descriptions. Constant per deployment, so that prompts stay the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxFacts {
    /// Such as `Debian 12 with bash and Python 3.11`.
    pub runtime: String,
    /// What is installed, such as `pandas 2.3.3`; empty when nothing is known.
    pub libraries: Vec<String>,
    /// Names of what models expect and do not find.
    pub absent: Vec<String>,
    /// Where commands start.
    pub working_directory: String,
    /// A command's time limit when the call names none.
    pub command_limit: Duration,
    /// The longest time limit that a call may name.
    pub max_command_limit: Duration,
    /// A Python cell's time limit.
    pub cell_limit: Duration,
    /// Whether it has Python. Without it the tools that offer a shell as well offer no Python.
    pub repl: bool,
    /// Bytes of each output stream that are kept.
    pub output_limit: usize,
    /// Whether commands reach a network.
    pub network: bool,
}

impl SandboxFacts {
    /// Sentences that tell what is installed, each with a space before it.
    fn installed(&self) -> String {
        let sentence = |lead: &str, names: &[String]| match names {
            [] => String::new(),
            names => format!(" {lead}: {}.", names.join(", ")),
        };
        sentence("Installed", &self.libraries) + &sentence("Not installed", &self.absent)
    }
}

/// A part of the code execution tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubTool {
    /// Runs commands.
    Bash,
    /// Shows and edits files.
    Editor,
    /// Runs Python code that remembers.
    Cell,
}

impl SubTool {
    /// What the model calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bash => BASH,
            Self::Editor => EDITOR,
            Self::Cell => CELL,
        }
    }
}

/// A call's input, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallInput {
    /// A command.
    Bash(BashInput),
    /// An edit.
    Edit(Edit),
    /// Python code.
    Cell(String),
    /// What Python code goes on with that waits for the client's tools.
    Answers(CodeAnswers),
}

impl CallInput {
    /// Whose input it is.
    pub const fn tool(&self) -> SubTool {
        match self {
            Self::Bash(_) => SubTool::Bash,
            Self::Edit(_) => SubTool::Editor,
            Self::Cell(_) | Self::Answers(_) => SubTool::Cell,
        }
    }
}

/// Why an input is not valid, in words for the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidInput(pub String);

/// A tool of the client that Python code calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// The tool's name.
    pub name: String,
    /// What it does, in the client's words.
    pub description: Option<String>,
    /// JSON schema of its argument.
    pub schema: Option<Value>,
}

impl Function {
    fn of(tool: &ClientTool) -> Self {
        let definition = &tool.definition;
        Self {
            name: tool.name.clone(),
            description: definition.get("description").and_then(Value::as_str).map(str::to_owned),
            schema: definition.get("input_schema").cloned(),
        }
    }
}

/// Which dialect of the tool a request speaks.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolProfile {
    version: CodeToolVersion,
    /// Whether the sandbox has Python.
    repl: bool,
    /// `code_execution_v1`, or Zylon's extensions: time-outs as results, `unavailable` with a detail, more inputs.
    zylon: bool,
    cache_control: Option<Value>,
    functions: Vec<Function>,
}

impl ToolProfile {
    /// The profile of a request; `None` when it offers no code execution.
    pub fn of(request: &MessagesRequest, facts: &SandboxFacts) -> Option<Self> {
        let called = |tool: &Tool| match tool {
            Tool::Client(tool) => tool.callers.code.then(|| Function::of(tool)),
            Tool::Code(_) => None,
        };
        request.tools.iter().find_map(|tool| match tool {
            Tool::Code(tool) => Some(Self {
                version: tool.version,
                repl: facts.repl,
                zylon: tool.version == CodeToolVersion::V1 || request.zylon_extension,
                cache_control: tool.cache_control.clone(),
                functions: if facts.repl { request.tools.iter().filter_map(called).collect() } else { Vec::new() },
            }),
            Tool::Client(_) => None,
        })
    }

    /// The sub-tools as client tools for the upstream.
    pub fn definitions(&self, facts: &SandboxFacts) -> Vec<Value> {
        let define = |tool: &SubTool| match tool {
            SubTool::Bash => self.bash_definition(facts),
            SubTool::Editor => self.editor_definition(facts),
            SubTool::Cell => self.cell_definition(facts),
        };
        let mut definitions: Vec<Value> = self.sub_tools().iter().map(define).collect();
        if let (Some(last), Some(cache)) = (definitions.last_mut(), &self.cache_control) {
            last["cache_control"] = cache.clone();
        }
        definitions
    }

    /// What the model is offered, never nothing. The tool that is Python alone stays so: its clients know no other result, and a
    /// sandbox without Python says so in each.
    const fn sub_tools(&self) -> &'static [SubTool] {
        match self.version {
            CodeToolVersion::Dated20250522 => &[SubTool::Cell],
            CodeToolVersion::Dated20260120 | CodeToolVersion::Dated20260521 if self.repl => {
                &[SubTool::Bash, SubTool::Editor, SubTool::Cell]
            }
            CodeToolVersion::Dated20250825
            | CodeToolVersion::Dated20260120
            | CodeToolVersion::Dated20260521
            | CodeToolVersion::V1 => &[SubTool::Bash, SubTool::Editor],
        }
    }

    /// The client's tools that Python code calls. Without Python there are none, and the model calls them itself.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Whether the model calls a tool of the client itself.
    pub fn is_called_directly(&self, tool: &ClientTool) -> bool {
        tool.callers.direct || !self.functions.iter().any(|function| function.name == tool.name)
    }

    /// The sub-tool that stands for the whole: the shell, where there is one.
    pub fn main_tool(&self) -> SubTool {
        self.sub_tools().first().copied().unwrap_or(SubTool::Bash)
    }

    /// The sub-tool of this name, if the model was offered it.
    pub fn offered(&self, name: &str) -> Option<SubTool> {
        self.sub_tools().iter().copied().find(|tool| tool.name() == name)
    }

    /// Reads a call's input.
    ///
    /// # Errors
    /// What the model has to do differently.
    pub fn parse(&self, tool: SubTool, input: &Value) -> Result<CallInput, InvalidInput> {
        match tool {
            SubTool::Bash => self.parse_bash(input).map(CallInput::Bash),
            SubTool::Editor => self.parse_edit(input).map(CallInput::Edit),
            SubTool::Cell => Self::parse_cell(input).map(CallInput::Cell),
        }
    }

    /// The public block for an outcome of a call.
    pub fn result(&self, tool: SubTool, tool_use_id: &str, outcome: &ToolOutcome) -> ContentBlock {
        let tool_use_id = tool_use_id.to_owned();
        match (outcome, tool) {
            (ToolOutcome::Finished { stdout, stderr, exit, outputs }, SubTool::Cell) => {
                let content = self.cell_finished(stdout, stderr, *exit, outputs);
                ContentBlock::CodeExecutionToolResult { tool_use_id, content }
            }
            (ToolOutcome::Finished { stdout, stderr, exit, outputs }, SubTool::Bash | SubTool::Editor) => {
                let content = self.finished(stdout, stderr, *exit, outputs);
                ContentBlock::BashCodeExecutionToolResult { tool_use_id, content }
            }
            (ToolOutcome::Edited(outcome), _) => {
                ContentBlock::TextEditorCodeExecutionToolResult { tool_use_id, content: self.edited(outcome) }
            }
            (ToolOutcome::Failed(failure), SubTool::Bash) => {
                ContentBlock::BashCodeExecutionToolResult { tool_use_id, content: self.bash_failed(failure) }
            }
            (ToolOutcome::Failed(failure), SubTool::Cell) => {
                ContentBlock::CodeExecutionToolResult { tool_use_id, content: self.cell_failed(failure) }
            }
            (ToolOutcome::Failed(failure), SubTool::Editor) => {
                let content = self.editor_error(failure_code(failure.kind), failure.explanation.clone());
                ContentBlock::TextEditorCodeExecutionToolResult { tool_use_id, content }
            }
        }
    }

    /// One dialect has codes, the other has reasons.
    fn error(&self, code: ToolErrorCode, explanation: &str) -> (ToolErrorCode, Option<ErrorDetail>) {
        if !self.zylon {
            return (code, None);
        }
        let detail = ErrorDetail { code: "unavailable".to_owned(), explanation: explanation.to_owned() };
        (ToolErrorCode::Unavailable, Some(detail))
    }
}

fn failure_code(kind: FailureKind) -> ToolErrorCode {
    match kind {
        FailureKind::InvalidInput => ToolErrorCode::InvalidToolInput,
        FailureKind::Unavailable => ToolErrorCode::Unavailable,
        FailureKind::TooManyRequests => ToolErrorCode::TooManyRequests,
        FailureKind::TimedOut => ToolErrorCode::ExecutionTimeExceeded,
        FailureKind::OutputFileTooLarge => ToolErrorCode::OutputFileTooLarge,
    }
}

#[cfg(test)]
mod tests;
