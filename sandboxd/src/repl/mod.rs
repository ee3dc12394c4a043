//! Cells: Python code in one interpreter that remembers, and whose code can call the client's tools.
//!
//! The interpreter is a process under a shim of its own. It gets its half of the work ([`interpreter`]) over a memory file and
//! is driven over a pipe in each direction ([`message`]). Whatever it writes there comes from hostile code.

pub(crate) mod calls;
mod cell;
mod clock;
mod interpreter;
pub(crate) mod message;
mod talk;

use crate::process::table::Shims;
use interpreter::Resting;
use sandboxd_protocol::{ErrorBody, Tool};
use std::{
    collections::BTreeMap,
    ffi::CString,
    sync::atomic::{AtomicBool, Ordering},
};
use tokio::sync::{Mutex, watch};

/// The interpreter's place, and whose turn it is.
#[derive(Debug)]
pub(crate) struct Repl {
    /// Held by the cell that runs; the others wait for it in order.
    slot: Mutex<Slot>,
    /// How many wait.
    queued: watch::Sender<usize>,
    /// The interpreter at rest must not be used any more.
    doomed: AtomicBool,
}

#[derive(Debug, Default)]
struct Slot {
    resting: Option<Resting>,
    /// There has been an interpreter that ran.
    had_one: bool,
}

impl Repl {
    pub(crate) fn new() -> Self {
        Self { slot: Mutex::default(), queued: watch::Sender::new(0), doomed: AtomicBool::new(false) }
    }

    /// Counts a cell that waits, until what is returned is dropped.
    fn queue(&self) -> Queued<'_> {
        self.queued.send_modify(|queued| *queued += 1);
        Queued(&self.queued)
    }

    /// From now on no cell goes on with an interpreter of before.
    pub(crate) fn doom(&self) {
        self.doomed.store(true, Ordering::Relaxed);
    }

    /// Ends the doomed interpreter at rest with everything that it has started, unless a newer cell has done so.
    pub(crate) async fn end_doomed(&self, shims: &Shims) {
        // A newer cell may hold the place for long, and it is none of those that are to end.
        let Ok(mut slot) = self.slot.try_lock() else { return };
        if let Some(resting) = slot.resting.take_if(|_| self.doomed.swap(false, Ordering::Relaxed))
            && let Some(interpreter) = resting.wake().await
        {
            shims.kill(&interpreter.shim).await;
        }
    }
}

/// A cell that waits for its turn.
struct Queued<'a>(&'a watch::Sender<usize>);

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|queued| *queued = queued.saturating_sub(1));
    }
}

/// A cell before its turn.
#[derive(Debug)]
pub(crate) struct Work {
    code: String,
    tools: Vec<Tool>,
    /// Variables of the environment that are the cell's own.
    variables: BTreeMap<String, String>,
    python: CString,
    /// Environment of an interpreter that is started for it.
    env: Vec<CString>,
}

impl Work {
    /// Takes what was checked already: variables whose names and values can be set. `env` is the environment without them.
    pub(crate) fn prepare(
        code: String,
        tools: Vec<Tool>,
        requested: &BTreeMap<String, String>,
        env: Vec<CString>,
        output: String,
    ) -> Result<Self, ErrorBody> {
        let path = env.iter().find_map(|variable| variable.to_str().ok()?.strip_prefix("PATH=")).unwrap_or_default();
        let python = interpreter::find(path, interpreter::is_executable)?;
        let mut variables = requested.clone();
        variables.remove("INPUT_DIR");
        variables.insert("OUTPUT_DIR".to_owned(), output);
        Ok(Self { code, tools, variables, python, env })
    }
}
