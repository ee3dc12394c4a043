//! Who calls: API keys, or anybody on loopback behind checks that no web page can pass.

use crate::config::AuthKind;
use file_store::Workspace;
use http::{HeaderMap, header};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::{
    fmt::Write as _,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
    time::SystemTime,
};
use subtle::ConstantTimeEq;

/// The tenant that a request acts for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Owner of containers and files on the Anthropic surface.
    pub workspace: String,
    /// Owner, with the workspace, of containers on the Zylon surface.
    pub user: String,
    /// First characters of the key's hash, for logs.
    pub key_id: String,
}

impl Identity {
    /// Where the caller's stored files are, and on whose account new ones.
    pub fn files(&self) -> Workspace {
        Workspace::named(&self.workspace).used_by(&self.user)
    }
}

/// SHA-256 of an API key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Hashes a key as the client sends it.
    pub fn of(key: &str) -> Self {
        Self(Sha256::digest(key).into())
    }

    /// Lower-case hex, as the keys file has it.
    pub fn to_hex(self) -> String {
        self.0.iter().fold(String::new(), |mut hex, byte| {
            // Writing to a string cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }

    fn from_hex(hex: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        let ok = hex.len() == 64
            && bytes.iter_mut().zip(hex.as_bytes().chunks(2)).all(|(byte, pair)| {
                let parsed = std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
                parsed.inspect(|value| *byte = *value).is_some()
            });
        ok.then_some(Self(bytes))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyLine {
    sha256: String,
    workspace: String,
    user: String,
}

struct Key {
    hash: KeyHash,
    identity: Identity,
}

/// Why a keys file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// It cannot be read.
    #[error("cannot read the keys file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A line is no key.
    #[error(
        "line {line} of the keys file {path} is no key: {reason}; it must be like {{\"sha256\": \"<64 hex digits>\", \"workspace\": \"...\", \"user\": \"...\"}}"
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// It holds no key, so that nobody could call.
    #[error("the keys file {0} holds no key")]
    Empty(PathBuf),
}

fn parse_keys(path: &Path, text: &str) -> Result<Vec<Key>, KeysError> {
    let wrong = |line, reason: String| KeysError::Line { path: path.to_owned(), line, reason };
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let KeyLine { sha256, workspace, user } =
            serde_json::from_str(line).map_err(|e| wrong(number, e.to_string()))?;
        let hash = KeyHash::from_hex(&sha256).ok_or_else(|| wrong(number, "sha256 is not 64 hex digits".into()))?;
        if workspace.is_empty() || user.is_empty() {
            return Err(wrong(number, "workspace and user must not be empty".into()));
        }
        let key_id = hash.to_hex().chars().take(8).collect();
        keys.push(Key { hash, identity: Identity { workspace, user, key_id } });
    }
    if keys.is_empty() { Err(KeysError::Empty(path.to_owned())) } else { Ok(keys) }
}

struct Loaded {
    keys: Vec<Key>,
    modified: Option<SystemTime>,
}

/// The keys of a file, read again when it changes.
pub struct KeyFile {
    path: PathBuf,
    loaded: RwLock<Loaded>,
}

impl KeyFile {
    /// Reads the file.
    pub fn open(path: PathBuf) -> Result<Self, KeysError> {
        let loaded = RwLock::new(load(&path)?);
        Ok(Self { path, loaded })
    }

    /// Reads the file again if it changed. A file that has become unusable leaves the keys as they were.
    pub fn reload(&self) {
        let modified = std::fs::metadata(&self.path).and_then(|meta| meta.modified()).ok();
        if self.loaded.read().is_ok_and(|loaded| loaded.modified == modified) {
            return;
        }
        match load(&self.path) {
            Ok(new) => {
                tracing::info!(keys.count = new.keys.len(), "api keys read again");
                if let Ok(mut loaded) = self.loaded.write() {
                    *loaded = new;
                }
            }
            Err(error) => tracing::warn!(%error, "api keys not read again; the former ones stay in force"),
        }
    }

    /// Compares with every key, so that the time taken tells nothing.
    fn find(&self, key: &str) -> Option<Identity> {
        let hash = KeyHash::of(key);
        let loaded = self.loaded.read().ok()?;
        loaded.keys.iter().fold(None, |found, key| {
            if bool::from(key.hash.0.ct_eq(&hash.0)) { Some(key.identity.clone()) } else { found }
        })
    }
}

fn load(path: &Path) -> Result<Loaded, KeysError> {
    let read = |source| KeysError::Read { path: path.to_owned(), source };
    let modified = std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let keys = parse_keys(path, &std::fs::read_to_string(path).map_err(read)?)?;
    Ok(Loaded { keys, modified })
}

/// How callers are told apart.
#[derive(Clone)]
pub enum Auth {
    /// By key.
    Keys(Arc<KeyFile>),
    /// Not at all; only on a loopback address.
    Loopback {
        /// The address listened on.
        listen: SocketAddr,
    },
}

/// Why a request is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 401: no key.
    NoKey,
    /// 401: a wrong key.
    WrongKey,
    /// 403, on loopback without keys: a `Host` that is not ours, so a name that a web page made point here.
    ForeignHost,
    /// 403, on loopback without keys: sent by a web page.
    FromWebPage,
}

impl Auth {
    /// Refuses `none` where others could reach it.
    pub fn check_listen(kind: AuthKind, listen: SocketAddr) -> Result<(), String> {
        match kind {
            AuthKind::Keys => Ok(()),
            AuthKind::None if listen.ip().is_loopback() => Ok(()),
            AuthKind::None => Err(format!(
                "--auth none would let anybody who reaches {listen} run commands; listen on 127.0.0.1 or use --auth keys"
            )),
        }
    }

    /// Who sends these headers.
    pub fn identify(&self, headers: &HeaderMap) -> Result<Identity, Refusal> {
        match self {
            Self::Keys(file) => {
                let key = presented_key(headers).ok_or(Refusal::NoKey)?;
                file.find(key).ok_or(Refusal::WrongKey)
            }
            Self::Loopback { listen } => {
                check_no_web_page(headers, *listen)?;
                let anonymous = "anonymous".to_owned();
                Ok(Identity { workspace: "default".to_owned(), user: anonymous.clone(), key_id: anonymous })
            }
        }
    }
}

/// The key of either SDK generation; `x-api-key` wins.
fn presented_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let bearer = || {
        let (scheme, key) = text("authorization")?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    };
    text("x-api-key").or_else(bearer).filter(|key| !key.is_empty())
}

/// What a browser adds or cannot forge: its `Origin`, `Sec-Fetch-Site`, the name in `Host`, and for a body that is not
/// JSON a header that no form can send.
fn check_no_web_page(headers: &HeaderMap, listen: SocketAddr) -> Result<(), Refusal> {
    let port = listen.port();
    let ours = [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}"), listen.to_string()];
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    if hosts.next().is_some() || !host.is_some_and(|host| ours.iter().any(|own| own == host)) {
        return Err(Refusal::ForeignHost);
    }
    let site = headers.get("sec-fetch-site").map(http::HeaderValue::as_bytes);
    if headers.contains_key(header::ORIGIN) || !matches!(site, None | Some(b"none" | b"same-origin")) {
        return Err(Refusal::FromWebPage);
    }
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let json = content_type.is_some_and(|value| {
        value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
    });
    let unforgeable = ["anthropic-version", "authorization", "x-api-key"];
    if content_type.is_some() && !json && !unforgeable.iter().any(|name| headers.contains_key(*name)) {
        return Err(Refusal::FromWebPage);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect::<Vec<_>>()
            .into_iter()
            .fold(HeaderMap::new(), |mut map, (name, value): (http::HeaderName, http::HeaderValue)| {
                map.append(name, value);
                map
            })
    }

    fn key_file(lines: &str) -> (tempfile::TempDir, Result<KeyFile, KeysError>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        std::fs::write(&path, lines).unwrap();
        (dir, KeyFile::open(path))
    }

    fn line(key: &str, workspace: &str) -> String {
        format!("{{\"sha256\": \"{}\", \"workspace\": \"{workspace}\", \"user\": \"u\"}}\n", KeyHash::of(key).to_hex())
    }

    #[test]
    fn a_key_is_found_in_either_header_and_x_api_key_wins() {
        let (_dir, file) = key_file(&(line("one", "w1") + "\n" + &line("two", "w2")));
        let auth = Auth::Keys(Arc::new(file.unwrap()));
        let workspace =
            |pairs: &[(&'static str, &str)]| auth.identify(&headers(pairs)).map(|identity| identity.workspace);
        assert_eq!(workspace(&[("x-api-key", "one")]), Ok("w1".into()));
        assert_eq!(workspace(&[("authorization", "Bearer two")]), Ok("w2".into()));
        assert_eq!(workspace(&[("authorization", "bearer two")]), Ok("w2".into()));
        assert_eq!(workspace(&[("authorization", "Bearer two"), ("x-api-key", "one")]), Ok("w1".into()));
        assert_eq!(workspace(&[("x-api-key", "three")]), Err(Refusal::WrongKey));
        for none in [&[][..], &[("authorization", "Basic two")], &[("x-api-key", " ")], &[("authorization", "Bearer ")]]
        {
            assert_eq!(workspace(none), Err(Refusal::NoKey), "{none:?}");
        }
    }

    #[test]
    fn an_unusable_keys_file_is_refused_with_the_line_at_fault() {
        for (lines, part) in [
            ("", "holds no key"),
            ("nonsense", "line 1"),
            ("\n{\"sha256\": \"12\", \"workspace\": \"w\", \"user\": \"u\"}", "line 2"),
            ("{\"sha256\": \"\", \"workspace\": \"w\"}", "missing field"),
        ] {
            let (_dir, file) = key_file(lines);
            let message = file.err().unwrap().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_changed_file_counts_after_a_reload_and_a_broken_one_does_not() {
        let (dir, file) = key_file(&line("old", "w"));
        let (file, path) = (file.unwrap(), dir.path().join("keys"));
        let rewrite = |text: &str, seconds| {
            std::fs::write(&path, text).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            file.reload();
        };
        rewrite(&line("new", "w"), 1);
        assert!(file.find("old").is_none() && file.find("new").is_some());
        rewrite("broken", 2);
        assert!(file.find("new").is_some());
    }

    #[test]
    fn without_keys_only_programs_on_this_machine_may_call() {
        type Row = (&'static str, &'static [(&'static str, &'static str)], Option<Refusal>);
        const HOST: (&str, &str) = ("host", "localhost:8080");
        let auth = Auth::Loopback { listen: "127.0.0.1:8080".parse().unwrap() };
        let outcome = |pairs: &[(&'static str, &str)]| auth.identify(&headers(pairs)).err();
        let rows: [Row; 11] = [
            ("curl", &[HOST, ("content-type", "application/json")], None),
            ("json with a charset", &[HOST, ("content-type", "application/json; charset=utf-8")], None),
            ("a get", &[("host", "127.0.0.1:8080")], None),
            ("an sdk's upload", &[HOST, ("content-type", "multipart/form-data"), ("anthropic-version", "x")], None),
            ("rebinding", &[("host", "evil.example:8080")], Some(Refusal::ForeignHost)),
            ("another port", &[("host", "localhost")], Some(Refusal::ForeignHost)),
            ("two hosts", &[HOST, ("host", "evil.example")], Some(Refusal::ForeignHost)),
            ("no host", &[], Some(Refusal::ForeignHost)),
            ("a page", &[HOST, ("origin", "http://localhost:8080")], Some(Refusal::FromWebPage)),
            ("an image", &[HOST, ("sec-fetch-site", "cross-site")], Some(Refusal::FromWebPage)),
            ("a form", &[HOST, ("content-type", "text/plain")], Some(Refusal::FromWebPage)),
        ];
        for (name, pairs, expected) in rows {
            assert_eq!(outcome(pairs), expected, "{name}");
        }
    }

    #[test]
    fn no_auth_is_refused_where_others_could_reach_it() {
        for (address, ok) in [("127.0.0.1:1", true), ("[::1]:1", true), ("0.0.0.0:1", false), ("192.168.1.5:1", false)]
        {
            assert_eq!(Auth::check_listen(AuthKind::None, address.parse().unwrap()).is_ok(), ok, "{address}");
            assert!(Auth::check_listen(AuthKind::Keys, address.parse().unwrap()).is_ok());
        }
    }
}
