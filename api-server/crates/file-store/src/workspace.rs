//! The scope of a file, and on whose account it is.

use std::fmt::Write as _;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A workspace as the store knows it: a hash, so that any name is a legal and unguessable folder. It may be in the hands of a user.
#[derive(Clone, Debug)]
pub struct Workspace {
    key: String,
    user: Option<Owner>,
}

/// Who stored a file: a hash of the user's name, short enough for the names of objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Owner(String);

impl Workspace {
    /// The scope of the workspace of this name.
    pub fn named(name: &str) -> Self {
        let digest = Sha256::new().chain_update(b"workspace\0").chain_update(name).finalize();
        Self { key: hex(&digest[..16]), user: None }
    }

    /// The same workspace; what is stored is this user's.
    #[must_use]
    pub fn used_by(self, user: &str) -> Self {
        let digest = Sha256::new().chain_update(b"user\0").chain_update(user).finalize();
        Self { user: Some(Owner(BASE64.encode(&digest[..8]))), ..self }
    }

    /// Whose a new file is.
    pub fn user(&self) -> Option<&Owner> {
        self.user.as_ref()
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
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
