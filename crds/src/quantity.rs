//! Amounts of resources.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use std::{borrow::Cow, cmp::Ordering, fmt, str::FromStr};

/// An amount such as `2`, `500m`, `5Gi`: the quantity of Kubernetes, without a sign. Whole numbers may be written without quotes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Quantity(String);

const PATTERN: &str = r"^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$";

/// A text that is no [`Quantity`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no quantity; write for example 2, 500m or 5Gi")]
pub struct QuantityError(String);

impl Quantity {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares amounts, whatever their units (`1Gi` is more than `1G`).
    pub fn compare(&self, other: &Self) -> Ordering {
        // Exactly equal spellings first: floating point decides only between amounts that differ.
        if self.0 == other.0 { Ordering::Equal } else { self.value().total_cmp(&other.value()) }
    }

    /// The amount in base units (cores, bytes); precise enough to compare.
    fn value(&self) -> f64 {
        parse(&self.0).unwrap_or(0.0)
    }
}

/// `None` when it is no quantity.
fn parse(text: &str) -> Option<f64> {
    let number_end = text.bytes().position(|b| !b.is_ascii_digit() && b != b'.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (whole, fraction) = number.split_once('.').map_or((number, None), |(whole, fraction)| (whole, Some(fraction)));
    let digits = |part: &str, max: usize| (1..=max).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole, 15) || fraction.is_some_and(|part| !digits(part, 9)) {
        return None;
    }
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024f64,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        exponent => {
            let power = exponent.strip_prefix(['e', 'E'])?;
            let unsigned = power.strip_prefix(['+', '-']).unwrap_or(power);
            if !digits(unsigned, 2) {
                return None;
            }
            10f64.powi(power.parse().ok()?)
        }
    };
    Some(number.parse::<f64>().ok()? * factor)
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match parse(text) {
            Some(_) => Ok(Self(text.to_owned())),
            None => Err(QuantityError(text.chars().take(40).collect())),
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Number(number) => number.to_string(),
            Written::Text(text) => text,
        };
        text.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maxLength": 32,
            // A rule rather than a pattern, since a pattern is refused with itself instead of a sentence.
            "x-kubernetes-validations": [{
                "rule": format!("string(self).matches('{PATTERN}')"),
                "message": "no quantity; write for example 2, 500m or 5Gi",
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quantity(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn amounts_compare_across_units() {
        for (less, more) in [("500m", "1"), ("1G", "1Gi"), ("900Mi", "1Gi"), ("1e3", "1001"), ("0.5Gi", "513Mi")] {
            assert_eq!(quantity(less).compare(&quantity(more)), Ordering::Less, "{less} < {more}");
        }
        assert_eq!(quantity("1024Mi").compare(&quantity("1Gi")), Ordering::Equal);
    }

    #[test]
    fn whole_numbers_need_no_quotes() {
        assert_eq!(serde_json::from_str::<Quantity>("2").unwrap(), quantity("2"));
        assert_eq!(serde_json::from_str::<Quantity>("\"5Gi\"").unwrap(), quantity("5Gi"));
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "5GB", "-1", "1..5", ".5", "5 Gi", "Gi", "1e", "1e+", "1e100", "5gi"] {
            assert!(text.parse::<Quantity>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused_without_panic(text in ".{0,40}") {
            let _ = text.parse::<Quantity>();
        }
    }
}
