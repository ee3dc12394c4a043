//! Where a path of an edit lies: variables put in, links resolved, beneath which mount it is. What is found here is only a
//! name: code in the sandbox may change it at once, so it is opened beneath its mount and without links.

use rustix::fs::readlink;
use sandboxd_protocol::{EditRefusal, layout};
use std::{
    ffi::{CString, OsStr, OsString},
    os::unix::ffi::OsStringExt as _,
    path::{Component, Path, PathBuf},
};

/// Longest path, as the kernel has it.
const MAX_PATH: usize = 4096;
/// Links on the way, as the kernel has it.
const MAX_LINKS: usize = 40;

/// A folder of the claim.
#[derive(Clone, Debug)]
pub(super) struct Mount {
    /// Where code in the sandbox sees it.
    pub(super) path: &'static str,
    /// Where this process sees it.
    pub(super) real: PathBuf,
    /// What the mount itself enforces; known here to say so before anything is done.
    pub(super) writable: bool,
}

/// The folders of the claim.
#[derive(Debug)]
pub(crate) struct Mounts(Vec<Mount>);

/// A name beneath a mount.
#[derive(Debug)]
pub(super) struct Place<'a> {
    /// The path that was asked for, absolute, for messages.
    pub(super) asked: String,
    pub(super) mount: &'a Mount,
    /// What follows; empty for the mount itself. Without `.`, `..` and, when it was looked at, links.
    pub(super) below: PathBuf,
}

impl Mounts {
    /// The mounts, or with a claim its folders in their places.
    pub(crate) fn new(claim: Option<&Path>) -> Self {
        let mount = |folder: &layout::Folder| Mount {
            path: folder.path,
            real: claim.map_or_else(|| folder.path.into(), |claim| claim.join(folder.claim)),
            writable: folder.writable,
        };
        Self(layout::FOLDERS.iter().map(mount).collect())
    }

    /// Finds the place of a path.
    pub(super) fn place(&self, path: &str, variables: &[CString]) -> Result<Place<'_>, EditRefusal> {
        let path = expand(path, |name| value(variables, name)).ok_or(EditRefusal::BadPath)?;
        if path.is_empty() || path.len() > MAX_PATH || path.contains('\0') {
            return Err(EditRefusal::BadPath);
        }
        let asked = Path::new(layout::WORKSPACE).join(&path).to_string_lossy().into_owned();
        let resolved = self.resolve(Path::new(&asked));
        let resolved = resolved.ok_or_else(|| EditRefusal::TooManyLinks { path: asked.clone() })?;
        match self.locate(&resolved) {
            Some((mount, below)) => Ok(Place { asked, mount, below: below.to_owned() }),
            None => Err(EditRefusal::NoMount { path: asked }),
        }
    }

    /// Beneath which mount a path without links lies, by the name of either side.
    fn locate<'a>(&self, path: &'a Path) -> Option<(&Mount, &'a Path)> {
        let by_this_side = self.0.iter().find_map(|mount| Some((mount, path.strip_prefix(&mount.real).ok()?)));
        by_this_side.or_else(|| self.0.iter().find_map(|mount| Some((mount, path.strip_prefix(mount.path).ok()?))))
    }

    /// An absolute path without links and `..`; what does not exist is taken as it is. `None` when there are too many links.
    fn resolve(&self, path: &Path) -> Option<PathBuf> {
        let mut todo = parts(path);
        let mut at = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = todo.pop() {
            if part == ".." {
                at.pop();
                continue;
            }
            at.push(&part);
            let Some(target) = self.link(&at) else { continue };
            links += 1;
            if links > MAX_LINKS {
                return None;
            }
            if target.is_absolute() {
                at = PathBuf::from("/");
            } else {
                at.pop();
            }
            todo.extend(parts(&target));
        }
        Some(at)
    }

    /// Where a link leads; `None` for everything else.
    fn link(&self, path: &Path) -> Option<PathBuf> {
        let target = match self.locate(path) {
            Some((mount, below)) => readlink(mount.real.join(below), Vec::new()),
            None => readlink(path, Vec::new()),
        };
        Some(OsString::from_vec(target.ok()?.into_bytes()).into())
    }
}

/// The names of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        Component::ParentDir => Some(OsStr::new("..")),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    });
    names.map(OsStr::to_owned).collect()
}

fn value<'a>(variables: &'a [CString], name: &str) -> Option<&'a str> {
    let mut pairs = variables.iter().filter_map(|variable| variable.to_str().ok()?.split_once('='));
    pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// Puts in the values of `$NAME` and `${NAME}`; what names no variable stays as it is. `None` when it grows too long.
fn expand<'a>(path: &str, value: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let mut out = String::new();
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        if let Some((value, behind)) = variable(after).and_then(|(name, behind)| Some((value(name)?, behind))) {
            out.push_str(value);
            rest = behind;
        } else {
            out.push('$');
            rest = after;
        }
        if out.len() > MAX_PATH {
            return None;
        }
    }
    out.push_str(rest);
    Some(out)
}

/// The name at the beginning of what follows a dollar sign, and what follows it.
fn variable(text: &str) -> Option<(&str, &str)> {
    if let Some(braced) = text.strip_prefix('{') {
        return braced.split_once('}');
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, behind) = text.split_at(end);
    name.starts_with(|c: char| !c.is_ascii_digit()).then_some((name, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    fn variables(pairs: &[(&str, &str)]) -> Vec<CString> {
        pairs.iter().map(|(name, value)| CString::new(format!("{name}={value}")).unwrap()).collect()
    }

    #[test]
    fn variables_are_put_in_where_they_are_known() {
        let known = variables(&[("INPUT_DIR", "/in"), ("A_1", "x=y"), ("EMPTY", "")]);
        for (path, expected) in [
            ("$INPUT_DIR/a", "/in/a"),
            ("${INPUT_DIR}a", "/ina"),
            ("$INPUT_DIRa", "$INPUT_DIRa"),
            ("$A_1-$A_1", "x=y-x=y"),
            ("$EMPTY.", "."),
            ("$$A_1", "$x=y"),
            ("cost: 5$", "cost: 5$"),
            ("$1 ${} ${A_1 $", "$1 ${} ${A_1 $"),
        ] {
            assert_eq!(expand(path, |name| value(&known, name)).as_deref(), Some(expected), "{path}");
        }
        let long = variables(&[("L", &"x".repeat(1_000_000))]);
        assert_eq!(expand(&"$L".repeat(1000), |name| value(&long, name)), None);
    }

    /// T09, and links.
    #[test]
    fn what_a_path_leads_to_decides() {
        let claim = tempfile::tempdir().unwrap();
        for name in layout::claim_folders() {
            fs::create_dir(claim.path().join(name)).unwrap();
        }
        let workspace = claim.path().join("workspace");
        fs::create_dir(workspace.join("sub")).unwrap();
        for (link, target) in [
            ("out", "/etc"),
            ("file", "/etc/passwd"),
            ("in", "sub"),
            ("uploads", "/mnt/user-data/uploads/u"),
            ("dangling", "sub/new"),
            ("sub/up", "../.."),
            ("loop", "loop"),
        ] {
            symlink(target, workspace.join(link)).unwrap();
        }
        symlink(claim.path().join("tmp"), workspace.join("tmp")).unwrap();
        let mounts = Mounts::new(Some(claim.path()));
        let known = variables(&[("INPUT_DIR", claim.path().join("uploads").to_str().unwrap())]);
        let found = |path: &str| {
            let place = mounts.place(path, &known);
            place.map(|place| (place.mount.path, place.below.to_str().unwrap().to_owned()))
        };
        for (path, mount, below) in [
            ("a.txt", layout::WORKSPACE, "a.txt"),
            ("./x/../a//b/", layout::WORKSPACE, "a/b"),
            ("/home/agent/workspace", layout::WORKSPACE, ""),
            ("/tmp/x", "/tmp", "x"),
            ("in/a", layout::WORKSPACE, "sub/a"),
            ("in/../a", layout::WORKSPACE, "a"),
            ("uploads", layout::UPLOADS, "u"),
            ("$INPUT_DIR/a", layout::UPLOADS, "a"),
            ("dangling", layout::WORKSPACE, "sub/new"),
            ("tmp/x", "/tmp", "x"),
            ("missing/a", layout::WORKSPACE, "missing/a"),
            ("/skills/s/SKILL.md", "/skills", "s/SKILL.md"),
        ] {
            assert_eq!(found(path), Ok((mount, below.to_owned())), "{path}");
        }
        for path in
            ["/etc/passwd", "../../../../etc/passwd", "out/passwd", "file", "/home/agent/x", "..", "sub/up", "/"]
        {
            assert!(matches!(found(path), Err(EditRefusal::NoMount { .. })), "{path}: {:?}", found(path));
        }
        assert!(matches!(found("loop"), Err(EditRefusal::TooManyLinks { .. })));
        for path in ["", "a\0b", &"x/".repeat(3000)] {
            assert_eq!(found(path), Err(EditRefusal::BadPath), "{path:?}");
        }
    }
}
