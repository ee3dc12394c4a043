//! A proxy between a client of Kubernetes and its API server, which spoils on demand what passes through it.
//!
//! `rules` decides and `journal` remembers, both without IO; `proxy` forwards.

pub mod journal;
pub mod proxy;
pub mod rules;
