//! The folders of a sandbox: where they lie on the claim, and where code in `main` sees them.

/// A folder of the claim, as `main` sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folder {
    /// Name on the claim (the mount's sub-path).
    pub claim: &'static str,
    /// Where `main` sees it.
    pub path: &'static str,
    /// Whether `main` may write. Read-only is the mount's doing, not a check.
    pub writable: bool,
}

/// Working directory of every command.
pub const WORKSPACE: &str = "/home/agent/workspace";
/// `$INPUT_DIR`: what was uploaded.
pub const UPLOADS: &str = "/mnt/user-data/uploads";
/// Deliverables of the Zylon surface.
pub const OUTPUTS: &str = "/mnt/user-data/outputs";
/// Parent of the per-call `$OUTPUT_DIR` folders; each is named by its run.
pub const OUTPUT: &str = "/files/output";
/// Kept with the workspace.
pub const TMP: &str = "/tmp";
/// `$HOME`; lost with the pod.
pub const HOME: &str = "/home/agent";

/// Every folder of the claim that `main` mounts.
pub const FOLDERS: [Folder; 7] = [
    Folder { claim: "workspace", path: WORKSPACE, writable: true },
    Folder { claim: "outputs", path: OUTPUTS, writable: true },
    Folder { claim: "uploads", path: UPLOADS, writable: false },
    Folder { claim: "skills", path: "/mnt/skills", writable: false },
    Folder { claim: "skills", path: "/skills", writable: false },
    Folder { claim: "tmp", path: TMP, writable: true },
    Folder { claim: "output", path: OUTPUT, writable: true },
];

/// Folder of the claim that holds sealed outputs; `main` never mounts it.
pub const SEALED: &str = "sealed";
/// How `GET /file` names a sealed output.
pub const SEALED_PATH: &str = "/sealed";

/// Where the `files` half mounts the whole claim.
pub const CLAIM: &str = "/claim";
/// Folder of the binary in both halves, mounted read-only.
pub const BINARY_DIR: &str = "/opt/sandboxd";
/// The binary: what is exec'd, always by this path.
pub const BINARY: &str = "/opt/sandboxd/sandboxd";
/// Folder of the socket, private to each container.
pub const SOCKET_DIR: &str = "/run/sandboxd";
/// The socket.
pub const SOCKET: &str = "/run/sandboxd/sandboxd.sock";

/// User and group that everything in a sandbox runs as.
pub const USER: u32 = 1000;
/// Exit status of `init` when the claim's folders cannot be made or written by [`USER`] (`EX_CANTCREAT` of sysexits.h).
pub const EXIT_WORKSPACE_UNWRITABLE: u8 = 73;
/// Host name of every sandbox.
pub const HOSTNAME: &str = "sandbox";

/// Folders to be made on a new claim, each once.
pub fn claim_folders() -> Vec<&'static str> {
    let mut names: Vec<_> = FOLDERS.iter().map(|folder| folder.claim).chain([SEALED]).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Variables of every run, before those of its request.
pub fn environment() -> [(&'static str, &'static str); 7] {
    [
        ("HOME", HOME),
        ("INPUT_DIR", UPLOADS),
        ("LANG", "C.UTF-8"),
        ("LOGNAME", "agent"),
        ("PATH", "/home/agent/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("TMPDIR", "/tmp"),
        ("USER", "agent"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_claims_folders_are_distinct_and_hold_the_sealed_one() {
        let names = claim_folders();
        assert_eq!(names, ["output", "outputs", "sealed", "skills", "tmp", "uploads", "workspace"]);
    }

    #[test]
    fn main_never_sees_sealed_outputs() {
        assert!(FOLDERS.iter().all(|folder| folder.claim != SEALED));
    }
}
