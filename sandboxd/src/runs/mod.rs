//! Runs: each command once, its output kept while somebody may ask for it.

pub(crate) mod command;
pub(crate) mod drive;
pub(crate) mod output;
pub(crate) mod pipes;
pub(crate) mod run;
pub(crate) mod table;
