//! The time of a pass, passed in.

use jiff::{SignedDuration, Timestamp};

/// The time of a pass, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Time of day, to compare with what stands in objects.
    pub time: Timestamp,
    /// Time on the monotonic clock since the operator started: what is counted by it does not care about clocks that are set.
    pub uptime: SignedDuration,
}
