//! Ids of files: later ones sort first, so that an ascending list of names is newest first.

use std::{
    fmt,
    str::{self, FromStr},
};

use serde::{Deserialize, Serialize};

const PREFIX: &str = "file_";
const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
const LENGTH: usize = 26;
/// The time takes 48 bits, above 80 random ones.
const LAST_MILLIS: u64 = (1 << 48) - 1;

/// Id of a file: `file_` and 26 characters of `0-9a-v`. It is safe as the name of a file on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FileId([u8; LENGTH]);

/// The text is no file id, hence names no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a file id")]
pub struct MalformedId;

impl FileId {
    /// The id of a file made at this time (milliseconds since 1970).
    pub fn new(millis: u64, random: [u8; 10]) -> Self {
        let time = LAST_MILLIS - millis.min(LAST_MILLIS);
        let random = random.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
        let mut rest = u128::from(time) << 80 | random;
        let mut text = [0; LENGTH];
        for place in text.iter_mut().rev() {
            *place = DIGITS[(rest % 32) as usize];
            rest /= 32;
        }
        Self(text)
    }

    /// When the file was made, in milliseconds since 1970.
    pub fn millis(&self) -> u64 {
        let number = self.0.iter().fold(0_u128, |number, digit| {
            let value = if digit.is_ascii_digit() { digit - b'0' } else { digit - b'a' + 10 };
            number << 5 | u128::from(value)
        });
        LAST_MILLIS - u64::try_from(number >> 80).unwrap_or(LAST_MILLIS)
    }
}

impl FromStr for FileId {
    type Err = MalformedId;

    fn from_str(text: &str) -> Result<Self, MalformedId> {
        let digits: [u8; LENGTH] =
            text.strip_prefix(PREFIX).ok_or(MalformedId)?.as_bytes().try_into().map_err(|_| MalformedId)?;
        // 26 digits hold 130 bits, an id 128: the first digit has three.
        let is_id = digits[0] <= b'7' && digits.iter().all(|digit| DIGITS.contains(digit));
        is_id.then_some(Self(digits)).ok_or(MalformedId)
    }
}

impl TryFrom<String> for FileId {
    type Error = MalformedId;

    fn try_from(text: String) -> Result<Self, MalformedId> {
        text.parse()
    }
}

impl From<FileId> for String {
    fn from(id: FileId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(PREFIX)?;
        formatter.write_str(str::from_utf8(&self.0).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_id_is_refused() {
        let good = FileId::new(1_790_000_000_000, [7; 10]).to_string();
        assert_eq!(good.parse::<FileId>().unwrap().to_string(), good);
        let upper = good.to_uppercase();
        let foreign_letter = format!("{}z", &good[..30]);
        let over_128_bits = good.replacen("file_", "file_8", 1);
        let over_128_bits = &over_128_bits[..31];
        for text in [
            "",
            "file_",
            "file_01Sales",
            "/etc/passwd",
            "/mnt/user-data/uploads/../../../etc/passwd",
            "file_../../../../../../etc/passwd",
            "file_..%2f..%2f..%2f..%2f..%2f",
            &good[5..],
            &good[..30],
            &format!("{good}0"),
            &format!("{good}\n"),
            &format!(" {good}"),
            &upper,
            &foreign_letter,
            over_128_bits,
            "file_報報報報報報報報報",
        ] {
            assert_eq!(text.parse::<FileId>(), Err(MalformedId), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn an_id_reads_back(millis in 0..=LAST_MILLIS, random: [u8; 10]) {
            let id = FileId::new(millis, random);
            prop_assert_eq!(id.to_string().parse::<FileId>(), Ok(id));
            prop_assert_eq!(id.millis(), millis);
            prop_assert_eq!(id.to_string().len(), 31);
        }

        #[test]
        fn later_ids_sort_first(a in 0..LAST_MILLIS, later in 1..1_000_000_u64, one: [u8; 10], two: [u8; 10]) {
            let b = (a + later).min(LAST_MILLIS);
            prop_assert!(FileId::new(b, one).to_string() < FileId::new(a, two).to_string());
            prop_assert!(FileId::new(b, one) < FileId::new(a, two));
        }

        #[test]
        fn different_random_bytes_make_different_ids(millis in 0..=LAST_MILLIS, one: [u8; 10], two: [u8; 10]) {
            prop_assert_eq!(one == two, FileId::new(millis, one) == FileId::new(millis, two));
        }

        #[test]
        fn any_text_that_parses_is_one_harmless_path_component(text in ".{0,40}|file_[0-9a-z./]{26}") {
            if let Ok(id) = text.parse::<FileId>() {
                prop_assert_eq!(id.to_string(), text.clone());
                prop_assert!(!text.contains(['/', '.', '\\', '\0']));
            }
        }
    }
}
