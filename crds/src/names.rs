//! Names of a sandbox's children.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

const MAX_SLUG: usize = 40;
const HASH_CHARS: usize = 10;

/// Name of a sandbox's pod and claim: a legal name of at most 51 characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChildName(String);

impl ChildName {
    /// The name as Kubernetes takes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ChildName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Name of the pod and the claim of the Sandbox of this name and UID: the start of its name for people, and a hash of its UID.
///
/// Hashing the UID means that a re-created Sandbox never meets the children of its predecessor, and that nobody can squat on
/// a name beforehand.
pub fn child_name(sandbox: &str, uid: &str) -> ChildName {
    let slug = slug(sandbox);
    let hash = base32(&Sha256::digest(uid.as_bytes()));
    ChildName(format!("{slug}-{hash}"))
}

/// At most [`MAX_SLUG`] characters that are legal in a label; never empty, starts with a letter or digit, never ends with a dash.
fn slug(name: &str) -> String {
    let legal = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let mapped: String = name.chars().map(legal).collect();
    let mut slug: String = mapped.trim_start_matches('-').chars().take(MAX_SLUG).collect();
    slug.truncate(slug.trim_end_matches('-').len());
    if slug.is_empty() { "sandbox".to_owned() } else { slug }
}

/// The first [`HASH_CHARS`] characters of the lower-case base32 form.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bit = |index: usize| bytes.get(index / 8).map_or(0, |byte| usize::from((byte >> (7 - index % 8)) & 1));
    (0..HASH_CHARS)
        .map(|character| {
            let value = (0..5).fold(0, |value, offset| value << 1 | bit(character * 5 + offset));
            ALPHABET.get(value).copied().map_or('a', char::from)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UID: &str = "0f1e2d3c-0000-4000-8000-00000000cafe";

    #[test]
    fn base32_is_the_standard_one() {
        // SHA-256 of nothing starts e3b0c44298fc; RFC 4648 gives 4OYMIQUY7Q.
        assert_eq!(base32(&Sha256::digest(b"")), "4oymiquy7q");
    }

    #[test]
    fn a_re_created_sandbox_gets_other_names() {
        assert_ne!(child_name("notebook", UID), child_name("notebook", "another"));
    }

    #[test]
    fn long_and_dotted_names_are_cut_to_a_legal_slug() {
        let name = child_name(&format!("team.{}", "x".repeat(248)), UID);
        assert_eq!(name.as_str().len(), MAX_SLUG + 1 + HASH_CHARS);
        assert!(name.as_str().starts_with("team-xxx"), "{name}");
        assert!(
            child_name(&format!("{}.b", "a".repeat(39)), UID).as_str().starts_with(&format!("{}-", "a".repeat(39)))
        );
        assert!(child_name("...", UID).as_str().starts_with("sandbox-"));
    }

    proptest! {
        #[test]
        fn every_name_is_legal_for_pods_claims_and_labels(sandbox in ".{0,300}", uid in ".{0,60}") {
            let name = child_name(&sandbox, &uid);
            let text = name.as_str();
            prop_assert!(text.len() <= 63);
            prop_assert!(text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
            prop_assert!(!text.starts_with('-') && !text.ends_with('-'));
        }

        #[test]
        fn names_of_two_sandboxes_differ(a in "[0-9a-f]{8}", b in "[0-9a-f]{8}") {
            prop_assume!(a != b);
            prop_assert_ne!(child_name("same", &a), child_name("same", &b));
        }
    }
}
