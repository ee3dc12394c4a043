//! Names that come from outside, checked once.

use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};
use std::fmt;

/// The id of a run: a file name, a header value and a URL part at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RunId(String);

impl RunId {
    const MAX_LEN: usize = 128;

    /// Takes `[A-Za-z0-9_-]{1,128}`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        let ok = !text.is_empty() && text.len() <= Self::MAX_LEN && text.bytes().all(allowed);
        ok.then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A short name of the id, to remember many that are gone.
    pub(crate) fn digest(&self) -> u128 {
        let digest = Sha256::digest(self.0.as_bytes());
        digest.iter().take(16).fold(0, |sum, byte| sum << 8 | u128::from(*byte))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Bytes as lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// 128 random bits as hex.
pub(crate) fn random_name() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(hex(&bytes))
}

/// The value of one query parameter, still encoded.
pub(crate) fn query_value<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    query?.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ids_are_plain_file_names() {
        for good in ["a", "srvtoolu_01AbC-9", &"x".repeat(128)] {
            assert!(RunId::parse(good).is_some(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "é", "a\n", "%2e", &"x".repeat(129)] {
            assert!(RunId::parse(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn a_query_value_is_found_by_its_name() {
        assert_eq!(query_value(Some("a=1&path=%2Fx%3D"), "path"), Some("%2Fx%3D"));
        assert_eq!(query_value(Some("xpath=1&path"), "path"), None);
        assert_eq!(query_value(None, "path"), None);
    }
}
