//! Container ids as object names: injective, legal for any id, and no id is ever a path.

use sha2::{Digest, Sha256};
use std::fmt;

/// Which container a request means. Hashed into an object name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerKey<'a> {
    /// Named by the request, or the owner's default one.
    pub kind: ContainerKind,
    /// The tenant.
    pub workspace: &'a str,
    /// `None`: the container belongs to the whole workspace.
    pub user: Option<&'a str>,
    /// The id, of any bytes and length.
    pub id: &'a str,
}

/// How a container came to its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    /// The request, or an earlier answer, named it.
    Explicit,
    /// The one that its owner gets without naming any.
    Default,
}

/// Name of the object that a container is: at most 63 characters of `a-z`, `0-9` and `-`, first a letter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerName(String);

/// Whose a container is: a hash over workspace and user, kept with the sandbox and compared before use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerTag(String);

/// Longest readable part of a name: with 26 characters of hash and two hyphens it stays below 63, which leaves room for `c-`.
const SLUG: usize = 32;

impl ContainerKey<'_> {
    /// The name: a readable slug and 128 bits of SHA-256. Different keys have different names.
    pub fn name(&self) -> ContainerName {
        let kind = match self.kind {
            ContainerKind::Explicit => "explicit",
            ContainerKind::Default => "default",
        };
        let hash = digest(&[Some(kind), Some(self.workspace), self.user, Some(self.id)]);
        ContainerName(format!("{}-{}", slug(self.id), base32(&hash)))
    }

    /// The owner. Equal for all containers of one workspace, or of one user.
    pub fn owner(&self) -> OwnerTag {
        OwnerTag(base32(&digest(&[Some("owner"), Some(self.workspace), self.user])))
    }
}

impl ContainerName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A name that was written down before.
    pub(crate) fn of_folder(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl fmt::Display for ContainerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl OwnerTag {
    /// The tag as text: 26 characters of `a-z` and `2-7`, a legal label value.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Lower-case letters and digits of the id, the rest one hyphen each; always starts with a letter.
fn slug(id: &str) -> String {
    let mut slug = String::with_capacity(SLUG);
    for c in id.chars() {
        if slug.len() == SLUG {
            break;
        }
        match c.to_ascii_lowercase() {
            c @ ('a'..='z' | '0'..='9') => slug.push(c),
            _ if slug.ends_with('-') || slug.is_empty() => {}
            _ => slug.push('-'),
        }
    }
    let slug = slug.trim_end_matches('-');
    match slug.bytes().next() {
        None => "c".to_owned(),
        Some(b'0'..=b'9') => format!("c-{slug}"),
        Some(_) => slug.to_owned(),
    }
}

/// 128 bits over the parts, each with its length before it, so that (a, bc) and (ab, c) never meet; `None` differs from "".
fn digest(parts: &[Option<&str>]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update([u8::from(part.is_some())]);
        let bytes = part.unwrap_or_default().as_bytes();
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    }
    let mut short = [0; 16];
    short.copy_from_slice(&hash.finalize()[..16]);
    short
}

/// RFC 4648 base32 in lower case, without padding: 26 characters.
fn base32(bytes: &[u8; 16]) -> String {
    const ALPHABET: [char; 32] = [
        'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l', 'm', 'n', 'o', 'p', 'q', 'r', 's', 't', 'u', 'v',
        'w', 'x', 'y', 'z', '2', '3', '4', '5', '6', '7',
    ];
    let number = u128::from_be_bytes(*bytes);
    (0..26)
        .map(|i| {
            // 26 x 5 = 130 bits: the last character holds three bits and two zeros.
            let index = match 123_u32.checked_sub(i * 5) {
                Some(shift) => number >> shift,
                None => number << 2,
            };
            ALPHABET[(index & 31) as usize]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn key(id: &str) -> ContainerKey<'_> {
        ContainerKey { kind: ContainerKind::Explicit, workspace: "acme", user: Some("ann"), id }
    }

    fn is_legal(name: &str) -> bool {
        name.len() <= 63
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && !name.ends_with('-')
            && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
    }

    #[test]
    fn ids_that_kubernetes_would_refuse_become_distinct_legal_names() {
        let (long, longer, huge) = ("x".repeat(64), "x".repeat(300), "y".repeat(10_240));
        let ids = [
            "Sales_2026 Q3",
            "UPPER",
            "upper",
            &long,
            &longer,
            "1abc",
            "-x-",
            "日本",
            "../..",
            "",
            &huge,
            "a/b",
            "a\0b",
            "-",
            "a-",
            "a--",
            "c-1abc",
        ];
        let names: HashSet<_> = ids.iter().map(|id| key(id).name()).collect();
        assert_eq!(names.len(), ids.len());
        for name in names {
            assert!(is_legal(name.as_str()), "{name}");
        }
        assert!(key("Sales_2026 Q3").name().as_str().starts_with("sales-2026-q3-"));
    }

    #[test]
    fn tenants_kinds_and_users_never_meet() {
        let make = |kind, workspace, user, id| ContainerKey { kind, workspace, user, id }.name();
        let (explicit, default) = (ContainerKind::Explicit, ContainerKind::Default);
        let names = [
            make(explicit, "a", Some("bc"), "x"),
            make(explicit, "ab", Some("c"), "x"),
            make(explicit, "a", None, "x"),
            make(explicit, "a", Some(""), "x"),
            make(default, "a", None, "x"),
            make(explicit, "a", Some("x"), "bc"),
            make(explicit, "a", Some("xb"), "c"),
            make(explicit, "", Some("a"), "x"),
        ];
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    }

    #[test]
    fn the_owner_is_the_workspace_or_the_user_and_not_the_id() {
        let ann = key("one").owner();
        assert_eq!(ann, key("two").owner());
        assert_ne!(ann, ContainerKey { user: Some("bob"), ..key("one") }.owner());
        assert_ne!(ann, ContainerKey { user: None, ..key("one") }.owner());
        assert_ne!(ann, ContainerKey { workspace: "acm", user: Some("eann"), ..key("one") }.owner());
        assert_eq!(ann.as_str().len(), 26);
    }

    #[test]
    fn base32_is_that_of_the_rfc() {
        assert_eq!(base32(b"foobar\0\0\0\0\0\0\0\0\0\0"), "mzxw6ytboiaaaaaaaaaaaaaaaa");
        assert_eq!(base32(&[0xff; 16]), "77777777777777777777777774");
    }

    proptest! {
        #[test]
        fn every_key_has_a_legal_name(workspace: String, user: Option<String>, id: String) {
            let key = ContainerKey { kind: ContainerKind::Default, workspace: &workspace, user: user.as_deref(), id: &id };
            prop_assert!(is_legal(key.name().as_str()), "{}", key.name());
            prop_assert!(key.owner().as_str().bytes().all(|b| b.is_ascii_alphanumeric()));
        }

        #[test]
        fn different_keys_have_different_names(
            a in ("[a-cA-C/-]{0,4}", proptest::option::of("[a-c]{0,3}"), "[a-cA-C_. -]{0,5}"),
            b in ("[a-cA-C/-]{0,4}", proptest::option::of("[a-c]{0,3}"), "[a-cA-C_. -]{0,5}"),
        ) {
            let name = |(w, u, id): &(String, Option<String>, String)| {
                ContainerKey { kind: ContainerKind::Explicit, workspace: w, user: u.as_deref(), id }.name()
            };
            prop_assert_eq!(a == b, name(&a) == name(&b));
        }
    }
}
