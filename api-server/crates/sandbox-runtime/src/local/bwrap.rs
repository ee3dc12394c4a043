//! The arguments of bubblewrap: what a local sandbox sees. Pure.

use super::{
    LocalLimits,
    host::{Host, Source},
};
use crate::Half;
use sandboxd_protocol::layout;
use std::{ffi::OsString, fs, io, path::Path};

/// What every sandbox gets, whatever it runs. `--as-pid-1` makes `sandboxd` the reaper; the namespace dies with it.
const ISOLATION: [&str; 16] = [
    "--unshare-all",
    "--unshare-user",
    "--uid",
    "1000",
    "--gid",
    "1000",
    "--disable-userns",
    "--cap-drop",
    "ALL",
    "--clearenv",
    "--new-session",
    "--die-with-parent",
    "--as-pid-1",
    "--hostname",
    layout::HOSTNAME,
    "--seccomp",
];

/// Files of `/etc` that we write: user names, and a resolver that asks nobody.
pub(super) const OUR_ETC: [(&str, &str); 5] = [
    ("group", "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    (
        "passwd",
        "root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:1000:1000::/home/agent:/bin/bash\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("resolv.conf", ""),
];

/// Writes our part of `/etc` into a folder of ours.
pub(super) fn write_etc(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, text) in OUR_ETC {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// Everything of the host that a sandbox is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paths<'a> {
    /// The claim's folder.
    pub(super) claim: &'a Path,
    /// Where [`write_etc`] wrote.
    pub(super) etc: &'a Path,
    /// The binary.
    pub(super) sandboxd: &'a Path,
}

/// Arguments that grow.
struct Arguments(Vec<OsString>);

impl Arguments {
    fn add<const N: usize>(&mut self, words: [&str; N]) -> &mut Self {
        self.0.extend(words.map(OsString::from));
        self
    }

    fn mount(&mut self, how: &str, from: impl AsRef<Path>, to: impl AsRef<Path>) -> &mut Self {
        self.0.extend([how.into(), from.as_ref().into(), to.as_ref().into()]);
        self
    }
}

/// What `bwrap` is called with to run `command` in one half, with the seccomp filter at descriptor `seccomp`.
pub(super) fn arguments(
    half: Half,
    host: &Host,
    paths: Paths<'_>,
    limits: LocalLimits,
    seccomp: i32,
    command: &[&str],
) -> Vec<OsString> {
    let mut arguments = Arguments(ISOLATION.map(OsString::from).to_vec());
    arguments.add([&seccomp.to_string(), "--proc", "/proc", "--dev", "/dev"]);
    // Where the server is root, so is the sandbox's user to the kernel's own files, even without any capability: it could set
    // the switches of the whole machine (`/proc/sys/kernel/core_pattern` names a program that is run as root).
    for folder in &host.proc_folders {
        arguments.mount("--ro-bind", folder, folder);
    }
    for file in &host.proc_files {
        arguments.mount("--ro-bind", "/dev/null", file);
    }
    arguments.mount("--ro-bind", paths.sandboxd, layout::BINARY);
    let folder = match half {
        Half::Main => {
            add_system(&mut arguments, host, paths.etc);
            add_folders(&mut arguments, paths.claim, limits);
            layout::WORKSPACE
        }
        // The binary is static and this half runs nothing else: it needs no file of the host.
        Half::Files => {
            arguments.mount("--bind", paths.claim, layout::CLAIM);
            "/"
        }
    };
    // Both are memory without a size limit, and belong to the sandbox's user: read-only, once everything is in its place.
    arguments.add(["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", folder, "--"]);
    arguments.0.extend(command.iter().map(OsString::from));
    arguments.0
}

fn add_system(arguments: &mut Arguments, host: &Host, etc: &Path) {
    for (path, source) in &host.system {
        match source {
            Source::Link(target) => arguments.mount("--symlink", target, path),
            Source::Path(source) => arguments.mount("--ro-bind", source, path),
        };
    }
    for (name, _) in OUR_ETC {
        arguments.mount("--ro-bind", etc.join(name), Path::new("/etc").join(name));
    }
}

fn add_folders(arguments: &mut Arguments, claim: &Path, limits: LocalLimits) {
    arguments.add(["--size", &limits.shm.to_string(), "--perms", "1777", "--tmpfs", "/dev/shm"]);
    arguments.add(["--size", &limits.home.to_string(), "--perms", "0755", "--tmpfs", layout::HOME]);
    for folder in layout::FOLDERS {
        let how = if folder.writable { "--bind" } else { "--ro-bind" };
        arguments.mount(how, claim.join(folder.claim), folder.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const LIMITS: LocalLimits = LocalLimits { home: 1000, shm: 2000 };

    fn words(half: Half) -> Vec<String> {
        let own = |path: &str| (path.into(), Source::Path(path.into()));
        let host = Host {
            system: vec![
                own("/usr"),
                ("/bin".into(), Source::Link("usr/bin".into())),
                own("/lib"),
                own("/etc/localtime"),
            ],
            proc_folders: vec!["/proc/sys".into()],
            proc_files: vec!["/proc/keys".into()],
        };
        let paths =
            Paths { claim: Path::new("/d/c"), etc: Path::new("/d/etc"), sandboxd: Path::new("/opt/x/sandboxd") };
        let words = arguments(half, &host, paths, LIMITS, 9, &["/opt/sandboxd/sandboxd", "serve"]);
        words.into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    /// (how, from, to) of every mount.
    fn mounts(words: &[String]) -> Vec<(&str, &str, &str)> {
        let how = ["--bind", "--ro-bind", "--symlink"];
        words
            .windows(3)
            .filter(|three| how.contains(&three[0].as_str()))
            .map(|three| (three[0].as_str(), three[1].as_str(), three[2].as_str()))
            .collect()
    }

    fn has(words: &[String], sequence: &[&str]) -> bool {
        words.windows(sequence.len()).any(|window| window == sequence)
    }

    #[test]
    fn both_halves_are_isolated_in_every_way() {
        for half in [Half::Main, Half::Files] {
            let words = words(half);
            for flag in ["--unshare-all", "--disable-userns", "--clearenv", "--new-session", "--die-with-parent"] {
                assert!(words.iter().any(|word| word == flag), "{flag}");
            }
            for pair in [["--uid", "1000"], ["--gid", "1000"], ["--cap-drop", "ALL"], ["--seccomp", "9"]] {
                assert!(has(&words, &pair), "{pair:?}");
            }
            assert!(!words.iter().any(|word| word == "--share-net" || word == "--cap-add" || word == "--dev-bind"));
            assert!(has(&words, &["--remount-ro", "/"]) && has(&words, &["--remount-ro", "/dev"]));
            assert_eq!(&words[words.len() - 3..], ["--", "/opt/sandboxd/sandboxd", "serve"]);
        }
    }

    #[test]
    fn main_sees_the_folders_of_its_claim_and_nothing_else_that_can_be_written() {
        let words = words(Half::Main);
        let writable: HashSet<_> =
            mounts(&words).into_iter().filter(|(how, ..)| *how == "--bind").map(|(_, from, to)| (from, to)).collect();
        let expected = HashSet::from([
            ("/d/c/workspace", "/home/agent/workspace"),
            ("/d/c/outputs", "/mnt/user-data/outputs"),
            ("/d/c/tmp", "/tmp"),
            ("/d/c/output", "/files/output"),
        ]);
        assert_eq!(writable, expected);
        for mount in [("--ro-bind", "/d/c/uploads", "/mnt/user-data/uploads"), ("--ro-bind", "/d/c/skills", "/skills")]
        {
            assert!(mounts(&words).contains(&mount), "{mount:?}");
        }
        assert!(!words.iter().any(|word| word.contains("sealed")));
    }

    #[test]
    fn host_paths_are_only_the_system_and_what_covers_proc() {
        let words = words(Half::Main);
        let host: HashSet<_> = mounts(&words)
            .into_iter()
            .map(|(_, from, _)| from)
            .filter(|from| !from.starts_with("/d/") && *from != "/opt/x/sandboxd")
            .collect();
        let expected = HashSet::from(["/usr", "usr/bin", "/lib", "/etc/localtime", "/proc/sys", "/dev/null"]);
        assert_eq!(host, expected);
    }

    #[test]
    fn files_sees_the_claim_and_no_file_of_the_host() {
        let words = words(Half::Files);
        let mut mounts = mounts(&words);
        mounts.retain(|(.., to)| !to.starts_with("/proc/"));
        let expected = [("--ro-bind", "/opt/x/sandboxd", "/opt/sandboxd/sandboxd"), ("--bind", "/d/c", "/claim")];
        assert_eq!(mounts, expected);
    }

    #[test]
    fn switches_of_the_machine_are_read_only_and_delicate_files_covered_in_both_halves() {
        for half in [Half::Main, Half::Files] {
            let words = words(half);
            assert!(has(&words, &["--ro-bind", "/proc/sys", "/proc/sys"]));
            assert!(has(&words, &["--ro-bind", "/dev/null", "/proc/keys"]));
        }
    }

    #[test]
    fn memory_file_systems_have_a_size() {
        let words = words(Half::Main);
        let sizes = words.iter().filter(|word| *word == "--size").count();
        assert_eq!(sizes, words.iter().filter(|word| *word == "--tmpfs").count());
        assert!(has(&words, &["--size", "1000", "--perms", "0755", "--tmpfs", "/home/agent"]));
    }
}
