//! Activity tokens.

use jiff::Timestamp;

/// The value of the annotation [`crate::keys::ACTIVITY`]: an RFC 3339 UTC time with nine fractional digits, the last six of
/// them random.
///
/// A token is compared for equality only, never as a time. Two users who write at the same millisecond still write different
/// tokens; the time is for people. `random` is used modulo a million.
pub fn activity_token(now: Timestamp, random: u32) -> String {
    let nanosecond = now.subsec_nanosecond().rem_euclid(1_000_000_000);
    let seconds = if now.subsec_nanosecond() < 0 { now.as_second() - 1 } else { now.as_second() };
    let whole = Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{}.{:03}{:06}Z", whole.strftime("%Y-%m-%dT%H:%M:%S"), nanosecond / 1_000_000, random % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_reads_as_a_time_with_a_random_tail() {
        let now: Timestamp = "2026-03-04T05:06:07.089123456Z".parse().unwrap();
        assert_eq!(activity_token(now, 1_000_042), "2026-03-04T05:06:07.089000042Z");
        let before_the_epoch: Timestamp = "1969-12-31T23:59:59.25Z".parse().unwrap();
        assert_eq!(activity_token(before_the_epoch, 7), "1969-12-31T23:59:59.250000007Z");
    }

    proptest! {
        #[test]
        fn a_token_is_a_time_within_a_millisecond(millis in 0i64..4_102_444_800_000, random: u32) {
            let now = Timestamp::from_millisecond(millis).unwrap();
            let token = activity_token(now, random);
            prop_assert_eq!(token.len(), "2026-03-04T05:06:07.089000042Z".len());
            prop_assert_eq!(token.parse::<Timestamp>().unwrap().as_millisecond(), millis);
        }
    }
}
