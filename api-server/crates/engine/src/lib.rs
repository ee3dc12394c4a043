//! What a Messages turn does, as pure functions: the history's checks, the prompt, the turn machine, tool results, the demo model.
//!
//! No IO, no clock, no randomness: the caller passes in events, time and random bytes, and performs the [`Action`]s.

pub mod demo;
mod fold;
mod history;
mod model;
mod outcome;
mod profile;
mod raw;
mod turn;

#[cfg(test)]
mod testing;

pub use fold::Fold;
pub use history::{DeferredCall, History};
pub use model::{BlockDelta, ModelEvent, ModelFailure, ModelMessage, ModelRequest, OpenBlock};
pub use outcome::{Captured, CodeAnswer, CodeAnswers, CodeCall, Exit, FailureKind, ToolFailure, ToolOutcome};
pub use profile::{
    BASH, BashInput, CELL, CallInput, EDITOR, Function, InvalidInput, SandboxFacts, SubTool, ToolProfile,
};
pub use turn::{Action, Input, ServerCall, Turn, TurnEnd, TurnPlan, TurnSettings, TurnSource};

/// Parts that take hostile bytes, for the fuzzer only.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    /// A stream's bytes as a client reads them.
    pub fn text(bytes: &[u8], truncated: bool) -> String {
        crate::profile::text_of(&crate::Captured { bytes: bytes.to_vec(), truncated })
    }
}
