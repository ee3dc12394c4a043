//! The operator: turns Sandbox resources into pods with workspaces.
//!
//! Each look at a Sandbox is one pass of five steps, a module each: [`observe`] (what exists, from watched stores), [`validate`]
//! (what is wanted), [`decide`] (what to do; pure), [`apply`] (does it) and [`report`] (says it, in one write of the status).
//! [`controller`] runs them, [`watch`] says when.

pub mod apply;
pub mod clock;
pub mod controller;
pub mod decide;
#[cfg(test)]
mod fixture;
pub mod gate;
pub mod health;
pub mod history;
pub mod inquire;
pub mod isolation;
pub mod leader;
pub mod metrics;
pub mod network;
pub mod observe;
pub mod pod_state;
pub mod probe;
pub mod queue;
pub mod refusal;
pub mod render;
pub mod report;
pub mod settings;
pub mod status;
pub mod templates;
#[cfg(test)]
mod tests;
pub mod trouble;
pub mod validate;
pub mod watch;
