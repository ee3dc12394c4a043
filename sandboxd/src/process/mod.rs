//! Processes: who lives, who is killed, who reaps. `sandboxd` is the only one that waits for its children.

pub(crate) mod reaper;
pub(crate) mod shim;
pub(crate) mod table;
pub(crate) mod tree;
