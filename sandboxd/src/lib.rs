//! The one process inside every sandbox.
//!
//! `sandboxd` is PID 1 of both containers. In `main` it runs commands, in `files` it serves the claim's files; both over
//! HTTP/2 on one byte stream at a time (see [`sandboxd_protocol`]). Everything beneath it is hostile: code in the sandbox
//! runs as the same user, so nothing that it can write is believed.

mod attach;
mod cli;
mod descriptors;
mod edit;
mod files;
mod http;
mod init;
mod limits;
mod main_half;
mod names;
mod probe;
mod process;
mod repl;
mod runs;
mod serve;
mod sys;
mod worker;
mod workspace;

pub use cli::run_from_arguments;

/// Parts that take hostile bytes, for the fuzzer only.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    pub use crate::{edit::fuzzing::edit, files::fuzzing::path};
}
