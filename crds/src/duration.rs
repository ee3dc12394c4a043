//! Durations as people write them.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{borrow::Cow, fmt, str::FromStr, time::Duration as StdDuration};

/// A duration such as `90s`, `5m` or `1h30m`: one to four numbers of at most five digits, each with `h`, `m`, `s` or `ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(StdDuration);

const PATTERN: &str = "^([0-9]{1,5}(h|ms|m|s)){1,4}$";
const MAX_PARTS: usize = 4;
const MAX_DIGITS: usize = 5;

/// A text that is no [`Duration`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no duration; write for example 90s, 5m or 1h30m")]
pub struct DurationError(String);

impl Duration {
    /// The value for arithmetic.
    pub fn get(self) -> StdDuration {
        self.0
    }

    /// Whether it is `0s`, which stands for "never" where a field says so.
    pub fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

impl From<StdDuration> for Duration {
    fn from(value: StdDuration) -> Self {
        Self(value)
    }
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || DurationError(text.chars().take(40).collect());
        let (mut rest, mut millis, mut parts) = (text, 0u64, 0);
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, tail) = rest.split_at(digits);
            let (unit, after) = ["h", "ms", "m", "s"]
                .iter()
                .find_map(|unit| tail.strip_prefix(unit).map(|after| (*unit, after)))
                .ok_or_else(error)?;
            parts += 1;
            if digits == 0 || digits > MAX_DIGITS || parts > MAX_PARTS {
                return Err(error());
            }
            let factor = match unit {
                "h" => 3_600_000,
                "m" => 60_000,
                "s" => 1000,
                _ => 1,
            };
            millis += number.parse::<u64>().map_err(|_| error())? * factor;
            rest = after;
        }
        if parts == 0 { Err(error()) } else { Ok(Self(StdDuration::from_millis(millis))) }
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let parts =
            [(millis / 3_600_000, "h"), (millis / 60_000 % 60, "m"), (millis / 1000 % 60, "s"), (millis % 1000, "ms")];
        if millis == 0 {
            return f.write_str("0s");
        }
        parts.iter().filter(|(number, _)| *number > 0).try_for_each(|(number, unit)| write!(f, "{number}{unit}"))
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // A rule rather than a pattern, since a pattern is refused with itself instead of a sentence.
        json_schema!({
            "type": "string",
            "maxLength": 32,
            "x-kubernetes-validations": [{
                "rule": format!("self.matches('{PATTERN}')"),
                "message": "no duration; write for example 90s, 5m or 1h30m",
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn people_write_durations_in_several_ways() {
        for (text, millis) in [
            ("0s", 0),
            ("90s", 90_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("720h", 2_592_000_000),
            ("1s250ms", 1250),
        ] {
            assert_eq!(text.parse::<Duration>().unwrap().get(), StdDuration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["", "5", "m", "-5m", "5 m", "1.5h", "100000s", "1h1h1h1h1h", "5d", "5m "] {
            assert!(text.parse::<Duration>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(millis in 0u64..300_000_000_000) {
            let duration = Duration(StdDuration::from_millis(millis));
            prop_assert_eq!(duration.to_string().parse::<Duration>(), Ok(duration));
        }
    }
}
