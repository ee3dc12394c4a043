//! The only place that reads the clock and the random source; everything else is given their values.

use jiff::Timestamp;

/// Now.
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// Milliseconds since 1970, as ids carry them.
pub fn now_millis() -> u64 {
    u64::try_from(now().as_millisecond()).unwrap_or(0)
}

/// Bytes nobody can guess. The kernel's source fails only before it is initialised; then nothing here may go on.
#[expect(clippy::expect_used, reason = "ids without randomness would collide and could be guessed")]
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel's random source works");
    bytes
}
