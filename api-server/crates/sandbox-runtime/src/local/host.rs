//! What a local sandbox's system is made of: this machine's own programs, or an image that was unpacked.

use super::bwrap::OUR_ETC;
use std::{
    ffi::OsStr,
    fs::{self, DirEntry},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Folders of this machine's root that a sandbox sees.
const FOLDERS: [&str; 7] = ["usr", "bin", "lib", "lib32", "lib64", "libx32", "sbin"];
/// Entries of this machine's `/etc` that a sandbox sees: needed to find libraries and programs, and to show local time.
const ETC: [&str; 3] = ["alternatives", "ld.so.cache", "localtime"];
/// Folders of an image's root that a sandbox does not see: they are its own, or nobody's.
const NOT_OF_THE_IMAGE: [&str; 14] = [
    "boot",
    "dev",
    "files",
    "home",
    "lost+found",
    "media",
    "mnt",
    "proc",
    "root",
    "run",
    "skills",
    "srv",
    "sys",
    "tmp",
];
/// Folders of an image's root in which something of ours lies.
const SHARED: [&str; 2] = ["etc", "opt"];

/// Where something of a sandbox's system comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A link that leads there, inside the sandbox.
    Link(PathBuf),
    /// This path of the machine.
    Path(PathBuf),
}

/// What the sandboxes of this machine have of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    /// Paths of the sandbox that hold its programs, and where they come from.
    pub(super) system: Vec<(PathBuf, Source)>,
    /// Folders of `/proc` that are not a process's.
    pub(super) proc_folders: Vec<PathBuf>,
    /// Files of `/proc` that somebody may write, or not everybody may read.
    pub(super) proc_files: Vec<PathBuf>,
}

impl Host {
    /// Looks at this machine, and at the unpacked image that sandboxes take their programs from, if there is one.
    pub(super) fn look(image: Option<&Path>) -> io::Result<Self> {
        let mut host = Self { system: image.map_or_else(machine, self::image)?, ..Self::default() };
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let is_process = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
            match entry.metadata() {
                Ok(found) if found.is_dir() && !is_process => host.proc_folders.push(entry.path()),
                Ok(found) if found.is_file() && is_delicate(&entry.file_name(), found.permissions().mode()) => {
                    host.proc_files.push(entry.path());
                }
                // A process may end while it is looked at; links lead to the reader's own.
                Ok(_) | Err(_) => {}
            }
        }
        host.proc_folders.sort_unstable();
        host.proc_files.sort_unstable();
        Ok(host)
    }
}

fn machine() -> io::Result<Vec<(PathBuf, Source)>> {
    let mut system = Vec::new();
    for name in FOLDERS {
        let path = Path::new("/").join(name);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => system.push((path.clone(), Source::Link(fs::read_link(&path)?))),
            Ok(found) if found.is_dir() => system.push((path.clone(), Source::Path(path))),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    // A link is followed: what it leads to may be outside of what the sandbox sees.
    let etc = ETC.iter().map(|name| Path::new("/etc").join(name)).filter(|path| path.exists());
    system.extend(etc.map(|path| (path.clone(), Source::Path(path))));
    Ok(system)
}

fn image(root: &Path) -> io::Result<Vec<(PathBuf, Source)>> {
    let mut system = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if is_own(&path) {
                continue;
            }
            if SHARED.iter().any(|name| path == Path::new(name)) && entry.file_type()?.is_dir() {
                folders.push(path);
            } else if let Some(source) = source(&entry, folder.as_os_str().is_empty())? {
                system.push((Path::new("/").join(path), source));
            }
        }
    }
    system.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(system)
}

/// Whether the sandbox has this of its own, whatever the image has there.
fn is_own(path: &Path) -> bool {
    let is_our_etc = path.parent() == Some(Path::new("etc")) && OUR_ETC.iter().any(|(name, _)| path.ends_with(name));
    is_our_etc || path == Path::new("opt/sandboxd") || NOT_OF_THE_IMAGE.iter().any(|name| path == Path::new(name))
}

/// Files in the root itself belong to whoever unpacked the image.
fn source(entry: &DirEntry, is_in_root: bool) -> io::Result<Option<Source>> {
    let kind = entry.file_type()?;
    Ok(match (kind.is_symlink(), kind.is_dir()) {
        (true, _) => Some(Source::Link(fs::read_link(entry.path())?)),
        (false, false) if is_in_root => None,
        (false, _) => Some(Source::Path(entry.path())),
    })
}

/// Whether a file of `/proc` must not be seen: by its mode, or since it shows keys and addresses of the whole machine.
fn is_delicate(name: &OsStr, mode: u32) -> bool {
    let is_named = ["kallsyms", "kcore", "key-users", "keys", "timer_list"].iter().any(|named| name == *named);
    mode & 0o222 != 0 || mode & 0o004 == 0 || is_named
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn delicate_files_are_known_by_mode_or_name() {
        assert!(is_delicate("sysrq-trigger".as_ref(), 0o200) && is_delicate("kmsg".as_ref(), 0o400));
        assert!(is_delicate("keys".as_ref(), 0o444) && !is_delicate("cpuinfo".as_ref(), 0o444));
    }

    #[test]
    fn this_machine_shows_its_programs_and_no_more() {
        let system = machine().unwrap();
        assert!(system.contains(&("/usr".into(), Source::Path("/usr".into()))));
        for path in ["/home", "/root", "/var", "/etc", "/etc/passwd", "/run"] {
            assert!(!system.iter().any(|(seen, _)| seen == Path::new(path)), "{path}");
        }
    }

    #[test]
    fn an_image_is_seen_whole_but_for_what_is_the_sandboxs_own() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for folder in ["usr/bin", "var/cache", "home/agent", "proc", "etc/fonts", "opt/sandboxd", "opt/tool", "data"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        for file in [".tag", "etc/passwd", "etc/pip.conf"] {
            fs::write(path(file), "").unwrap();
        }
        symlink("usr/bin", path("bin")).unwrap();
        symlink("/usr/share/zoneinfo/UTC", path("etc/localtime")).unwrap();
        let own = |name: &str| (Path::new("/").join(name), Source::Path(path(name)));
        let link = |name: &str, target: &str| (PathBuf::from(name), Source::Link(target.into()));
        let expected = [
            link("/bin", "usr/bin"),
            own("data"),
            own("etc/fonts"),
            link("/etc/localtime", "/usr/share/zoneinfo/UTC"),
            own("etc/pip.conf"),
            own("opt/tool"),
            own("usr"),
            own("var"),
        ];
        assert_eq!(image(root.path()).unwrap(), expected);
    }
}
