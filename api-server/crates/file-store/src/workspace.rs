//! The scope of a file.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// A workspace as the store knows it: a hash, so that any name is a legal and unguessable folder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Workspace(String);

impl Workspace {
    /// The scope of the workspace of this name.
    pub fn named(name: &str) -> Self {
        let digest = Sha256::new().chain_update(b"workspace\0").chain_update(name).finalize();
        Self(hex(&digest[..16]))
    }

    pub(crate) fn key(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_key(text: &str) -> bool {
        text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_becomes_one_harmless_folder_of_its_own() {
        let keys: std::collections::HashSet<_> = ["default", "Default", "", "../default", "a/b", "報告", "a\0b"]
            .map(|name| Workspace::named(name).key().to_owned())
            .into_iter()
            .collect();
        assert_eq!(keys.len(), 7);
        assert!(keys.iter().all(|key| Workspace::is_key(key)));
    }
}
