//! One server call: the sandbox acquired, the client's files put in, the command run, what it left behind stored.

use crate::{
    App,
    attached::Upload,
    containers::Containers,
    entropy,
    files::MAX_FILE,
    trouble::{explain, run_failure},
};
use engine::{
    BashInput, CallInput, Captured, CodeAnswer, CodeAnswers, CodeCall, Exit, FailureKind, Input, ServerCall,
    ToolFailure, ToolOutcome,
};
use file_store::{FileId, FileMeta, FileName, NewFile, Origin, StoreError, Whose, Workspace};
use futures_util::StreamExt;
use sandbox_runtime::{
    CallResult, CellStep, Edit, FileError, Limits, OutputFile, Resume, RunError, RunKind, RunOutcome, RunRequest,
    Sandbox, Tool, ToolCall,
};
use sandboxd_protocol::layout::UPLOADS;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::sync::OnceCell;

/// How long a sandbox may take to be ready.
const ACQUIRE_DEADLINE: Duration = Duration::from_mins(2);
/// Bytes of stdout, and of stderr, that a call keeps.
pub const OUTPUT_LIMIT: usize = 1024 * 1024;
/// Longest run of a command, whatever is asked for.
pub const MAX_COMMAND: Duration = Duration::from_mins(8);
/// Longest run of a Python cell.
pub const CELL_LIMIT: Duration = Duration::from_secs(90);
/// Longest time of an edit. One takes milliseconds; a slow disk may take long to have it for sure.
const EDIT_LIMIT: Duration = Duration::from_mins(1);

/// What the calls of one turn share.
pub struct Commands {
    pub app: Arc<App>,
    pub containers: Containers,
    pub workspace: Workspace,
    /// The client's tools that cells may call.
    pub tools: Vec<Tool>,
    /// The client's files, for the input folder.
    pub uploads: Vec<Upload>,
    /// Limit of a command that asks for none.
    pub command_limit: Duration,
    /// Limit of a cell.
    pub cell_limit: Duration,
    /// The turn's sandbox, its files in place. A turn has one container.
    pub sandbox: OnceCell<Sandbox>,
}

/// Edits a file; `left` is what remains of the turn's time.
async fn edited(sandbox: &Sandbox, id: &str, edit: Edit, left: Duration) -> ToolOutcome {
    match sandbox.edit(id, edit, EDIT_LIMIT.min(left)).await {
        Ok(outcome) => ToolOutcome::Edited(outcome),
        Err(error) => failed(&error),
    }
}

fn failed(error: &RunError) -> ToolOutcome {
    tracing::warn!(%error, "a call has no result");
    ToolOutcome::Failed(run_failure(error))
}

fn limits(limit: Duration) -> Limits {
    Limits { timeout_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), output_bytes: OUTPUT_LIMIT as u64 }
}

/// What the model has to know of a cell's end and its interpreter's.
fn interpreter_news(exit: &sandbox_runtime::Exit) -> impl Iterator<Item = &'static str> {
    let fresh =
        "The interpreter of the earlier cells had ended: this cell began in a new one, without their variables.\n";
    let lost = "The Python interpreter has ended, and its variables are lost; the next cell begins in a new one.\n";
    let superseded = "A newer cell has ended this one, which waited for the results of its calls.\n";
    [(exit.fresh_interpreter, fresh), (exit.superseded, superseded), (exit.interpreter_lost, lost)]
        .into_iter()
        .filter_map(|(is_so, sentence)| is_so.then_some(sentence))
}

/// Where a client's file lies in the sandbox.
pub fn upload_path(name: &FileName) -> String {
    format!("{UPLOADS}/{}", name.as_str())
}

impl Commands {
    /// Runs a call to its end, or a cell to its calls of the client's tools; `left` is what remains of the turn's time.
    pub async fn run(&self, call: ServerCall, left: Duration) -> Input {
        let ServerCall { id, input, container } = call;
        let sandbox = match self.sandbox.get_or_try_init(|| self.prepare(&container)).await {
            Ok(sandbox) => sandbox,
            Err(failure) => return Input::Result { id, outcome: ToolOutcome::Failed(failure) },
        };
        let outcome = match input {
            CallInput::Bash(BashInput { command, timeout, restart }) => {
                let asked = timeout.map_or(self.command_limit, Duration::from_secs);
                let limit = asked.min(MAX_COMMAND).min(left);
                self.finish(sandbox, &id, &container, RunKind::Bash { command, restart }, limit).await
            }
            CallInput::Cell(code) => {
                let limit = self.cell_limit.min(left);
                let run = RunKind::Cell { code, tools: self.tools.clone() };
                let request = RunRequest { run, env: BTreeMap::new(), limits: limits(limit) };
                let step = sandbox.cell(&id, &request).await;
                return self.cell_step(sandbox, id, &container, limit, step).await;
            }
            CallInput::Answers(answers) => {
                let resume = self.resume(answers);
                let step = sandbox.resume(&id, &resume).await;
                return self.cell_step(sandbox, id, &container, self.cell_limit, step).await;
            }
            CallInput::Edit(edit) => edited(sandbox, &id, edit, left).await,
        };
        Input::Result { id, outcome }
    }

    fn resume(&self, CodeAnswers { results, calls }: CodeAnswers) -> Resume {
        let result = |CodeAnswer { number, content, is_error }| CallResult { call_id: number, content, is_error };
        Resume {
            results: results.into_iter().map(result).collect(),
            calls,
            tools: self.tools.iter().map(|tool| tool.name.clone()).collect(),
            limits: limits(self.cell_limit),
        }
    }

    async fn cell_step(
        &self,
        sandbox: &Sandbox,
        id: String,
        container: &str,
        limit: Duration,
        step: Result<CellStep, RunError>,
    ) -> Input {
        let outcome = match step {
            Ok(CellStep::Calls(calls)) => {
                let call = |ToolCall { call_id, name, input }| CodeCall { number: call_id, name, input };
                return Input::Calls { id, calls: calls.into_iter().map(call).collect() };
            }
            Ok(CellStep::Finished(outcome)) => self.finished(sandbox, &id, container, limit, outcome).await,
            Err(error) => failed(&error),
        };
        Input::Result { id, outcome }
    }

    /// Runs it, and stores what it left behind.
    async fn finish(&self, sandbox: &Sandbox, id: &str, container: &str, run: RunKind, limit: Duration) -> ToolOutcome {
        let request = RunRequest { run, env: BTreeMap::new(), limits: limits(limit) };
        match sandbox.run(id, &request).await {
            Ok(outcome) => self.finished(sandbox, id, container, limit, outcome).await,
            Err(error) => failed(&error),
        }
    }

    async fn prepare(&self, container: &str) -> Result<Sandbox, ToolFailure> {
        let spec = self.containers.spec(container);
        let sandbox = self.app.sandboxes.acquire(&spec, ACQUIRE_DEADLINE).await.map_err(|error| {
            tracing::warn!(%error, sandbox.name = spec.name.as_str(), "no sandbox");
            ToolFailure { kind: FailureKind::Unavailable, explanation: explain(&error).into_owned() }
        })?;
        let mut later = BTreeSet::new();
        // Of files of one name the last one is there.
        let mut lasting: Vec<_> =
            self.uploads.iter().rev().filter(|file| later.insert(file.meta.filename.as_str())).collect();
        lasting.reverse();
        for file in lasting {
            self.put_in(&sandbox, file).await?;
        }
        Ok(sandbox)
    }

    /// Puts a client's file into the input folder, unless it is there: code cannot write there, and the time tells whose content it is.
    async fn put_in(&self, sandbox: &Sandbox, upload: &Upload) -> Result<(), ToolFailure> {
        let Upload { meta: file, is_answered } = upload;
        let (path, made) = (upload_path(&file.filename), file.id.millis());
        let there = sandbox.stat_file(&path).await;
        if there.is_ok_and(|there| (there.size, there.modified_ms) == (file.size_bytes, made)) {
            return Ok(());
        }
        let failed = |explanation: &str, cause: &dyn std::fmt::Display| {
            tracing::warn!(file.id = %file.id, error = %cause, "a client's file was not put into the sandbox");
            ToolFailure { kind: FailureKind::Unavailable, explanation: explanation.to_owned() }
        };
        let opened = match self.app.files.open(&self.workspace, file.id, entropy::now()).await {
            // It was there once, and what became of it since is the container's business.
            Err(StoreError::NotFound | StoreError::Expired) if *is_answered => return Ok(()),
            opened => opened.map_err(|error| failed("An uploaded file cannot be read any more.", &error))?,
        };
        let written = sandbox.write_file_of(&path, made, opened.body).await;
        written.map(drop).map_err(|error| match &error {
            FileError::NoSpace => failed("The sandbox's disk is full: an uploaded file does not fit.", &error),
            FileError::NoSandbox(cause) => failed(&explain(cause), &error),
            FileError::NotFound
            | FileError::Forbidden(_)
            | FileError::TooLarge
            | FileError::Changed
            | FileError::Unavailable(_)
            | FileError::Source(_) => failed("An uploaded file could not be put into the sandbox; try again.", &error),
        })
    }

    async fn finished(
        &self,
        sandbox: &Sandbox,
        id: &str,
        container: &str,
        limit: Duration,
        outcome: RunOutcome,
    ) -> ToolOutcome {
        let RunOutcome { stdout, stderr, exit } = outcome;
        let mut stderr = Captured { bytes: stderr.into(), truncated: exit.stderr_truncated };
        for sentence in interpreter_news(&exit) {
            stderr.bytes.extend_from_slice(sentence.as_bytes());
        }
        let mut outputs = Vec::new();
        if exit.outputs > 0 {
            let (stored, lost) = self.capture(sandbox, id, container).await;
            outputs = stored;
            // The command did run; a result that hides what became of its files would be a lie.
            for sentence in lost {
                stderr.bytes.extend_from_slice(format!("{sentence}\n").as_bytes());
            }
        }
        ToolOutcome::Finished {
            stdout: Captured { bytes: stdout.into(), truncated: exit.stdout_truncated },
            stderr,
            exit: if exit.timed_out { Exit::TimedOut(limit) } else { Exit::Code(exit.code) },
            outputs,
        }
    }

    /// Stores the files that a run left in its output folder: their ids, and a sentence for each that was lost.
    async fn capture(&self, sandbox: &Sandbox, id: &str, container: &str) -> (Vec<String>, Vec<String>) {
        let files = match sandbox.seal(id).await {
            Ok(files) => files,
            Err(error) => {
                tracing::warn!(%error, "output files not captured");
                return (Vec::new(), vec!["The files in $OUTPUT_DIR could not be captured.".to_owned()]);
            }
        };
        let (mut stored, mut lost) = (Vec::new(), Vec::new());
        for file in files {
            match self.store(sandbox, &file, id, container).await {
                Ok(meta) => stored.push(meta.id.to_string()),
                Err(reason) => lost.push(format!("The output file {:?} was not captured: {reason}.", file.name)),
            }
        }
        if let Err(error) = sandbox.discard_sealed(id).await {
            tracing::warn!(%error, "captured output files not removed from the sandbox");
        }
        (stored, lost)
    }

    async fn store(
        &self,
        sandbox: &Sandbox,
        file: &OutputFile,
        id: &str,
        container: &str,
    ) -> Result<FileMeta, &'static str> {
        if file.size > MAX_FILE {
            return Err("it is larger than 500 MB");
        }
        let filename = FileName::component(&file.name).map_err(|_| "its name cannot be stored")?;
        let content = sandbox.read_file(&file.path).await.map_err(|error| {
            tracing::warn!(%error, "an output file could not be read");
            "it could not be read"
        })?;
        let mime_type = mime_guess::from_path(filename.as_str()).first_or_octet_stream().to_string();
        let origin = Origin::Output { container: container.to_owned(), call: id.to_owned() };
        let new =
            NewFile { filename, mime_type, created_at: entropy::now(), expires_at: None, downloadable: true, origin };
        let file_id = FileId::new(entropy::now_millis(), entropy::random());
        let stored = self.app.files.put(&self.workspace, file_id, new, content.body.boxed(), MAX_FILE).await;
        stored.map_err(|error| {
            tracing::warn!(%error, "an output file was not stored");
            match error {
                StoreError::NoSpace => "the file store is full",
                StoreError::OverTotal { whose: Whose::Workspace, .. } => "the workspace's files take all that they may",
                StoreError::OverTotal { whose: Whose::User, .. } => "the user's files take all that they may",
                StoreError::TooLarge { .. } => "it is larger than 500 MB",
                StoreError::NotFound
                | StoreError::Expired
                | StoreError::InvalidName(_)
                | StoreError::Body(_)
                | StoreError::Unavailable { .. }
                | StoreError::Io { .. } => "the file store failed",
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_says_whose_variables_are_gone() {
        let news = |fresh_interpreter, interpreter_lost| {
            let exit = sandbox_runtime::Exit { fresh_interpreter, interpreter_lost, ..Default::default() };
            interpreter_news(&exit).map(|sentence| sentence.starts_with("The interpreter of")).collect::<Vec<_>>()
        };
        assert!(news(false, false).is_empty());
        assert_eq!(news(true, false), [true]);
        assert_eq!(news(false, true), [false]);
        assert_eq!(news(true, true), [true, false]);
    }
}
