//! Whether sandboxes work on this machine, and what they do not limit here.

use super::{Inner, LocalError};
use crate::{Half, Installed};
use sandboxd_protocol::layout;
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::time::{Duration, timeout};

/// Time for the trial run.
const TRIAL: Duration = Duration::from_secs(20);
/// How the trial run ends where all is well, and there is no Python.
const NO_PYTHON: i32 = 3;
/// What models expect, and the program that tells what of it there is: the same that tells it of an image.
const CONTENTS: &str = include_str!("../../../../../images/sandbox/contents.txt");
const INVENTORY: &str = include_str!("../../../../../images/sandbox/inventory.py");

/// The program of this path, or of this name on `$PATH`.
pub(super) fn find_program(program: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    let found = std::env::split_paths(path?).map(|folder| folder.join(program)).find(|file| file.is_file())?;
    found.canonicalize().ok()
}

/// Runs a command exactly as a sandbox is run; what is installed there, and nothing where there is no Python.
pub(super) async fn try_out(inner: &Inner) -> Result<Option<Installed>, LocalError> {
    let folder = inner.config.data_dir.join("check");
    for part in layout::claim_folders() {
        fs::create_dir_all(folder.join(part))?;
    }
    let path = layout::environment().into_iter().find(|(name, _)| *name == "PATH");
    let path = path.map(|(name, value)| format!("{name}={value}")).unwrap_or_default();
    // Only what a process says on stderr is read.
    let look = format!(
        "python=$(command -v python3 || command -v python) || exit {NO_PYTHON}; \"$python\" -I -c \"$0\" \"$1\" >&2 2>/dev/null || :"
    );
    let command = ["/usr/bin/env", &path, "sh", "-c", &look, INVENTORY, CONTENTS];
    let arguments = inner.arguments(Half::Main, folder.clone(), &command);
    let child = inner
        .spawner
        .spawn(arguments, Stdio::null())
        .await
        .map_err(|e| LocalError::NoIsolation(format!("bubblewrap cannot be started: {e}")))?;
    let output = timeout(TRIAL, child.wait_with_output())
        .await
        .map_err(|_| LocalError::NoIsolation("a trial sandbox did not end in time".to_owned()))??;
    fs::remove_dir_all(&folder)?;
    match output.status.code() {
        // What cannot be told is not told.
        Some(0) => return Ok(Some(serde_json::from_slice(&output.stderr).unwrap_or_default())),
        Some(NO_PYTHON) => return Ok(None),
        Some(_) | None => {}
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let host = Switches {
        apparmor: read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").trim() == "1",
        clone: read("/proc/sys/kernel/unprivileged_userns_clone").trim() == "0",
        maximum: read("/proc/sys/user/max_user_namespaces").trim() == "0",
    };
    Err(LocalError::NoIsolation(explain(said.trim(), host)))
}

/// Switches of the kernel that forbid user namespaces.
#[derive(Clone, Copy, Debug, Default)]
struct Switches {
    apparmor: bool,
    clone: bool,
    maximum: bool,
}

/// What to do about a sandbox that does not start.
fn explain(said: &str, host: Switches) -> String {
    let advice = if said.contains("Unknown option") {
        "bubblewrap is too old: 0.8 or newer is needed"
    } else if host.maximum {
        "user namespaces are switched off: set `sysctl user.max_user_namespaces=10000`"
    } else if host.clone {
        "user namespaces are switched off for ordinary users: set `sysctl kernel.unprivileged_userns_clone=1`"
    } else if host.apparmor {
        "AppArmor keeps bubblewrap from making user namespaces (Ubuntu 23.10 and newer): install a profile for it, a file \
         /etc/apparmor.d/bwrap with `abi <abi/4.0>, include <tunables/global> profile bwrap /usr/bin/bwrap \
         flags=(unconfined) { userns, }`, and reload AppArmor"
    } else {
        "this machine does not let bubblewrap make user namespaces: inside a container, run the server on Kubernetes, or \
         allow them for the container"
    };
    format!(
        "local sandboxes do not work here, and there is no mode without isolation. {advice}. bubblewrap said: {said}"
    )
}

/// What a local sandbox may use up, and what it lacks.
pub(super) fn limitations(is_root: bool, absent: &[String]) -> Vec<String> {
    let mut all = vec![
        "local sandboxes: memory, CPU time and the number of processes are not limited".to_owned(),
        "local sandboxes: disk space is that of the data folder's file system, without a limit for each".to_owned(),
    ];
    if is_root {
        all.push("local sandboxes: the server runs as root; run it as an ordinary user".to_owned());
    }
    if !absent.is_empty() {
        all.push(format!(
            "local sandboxes lack what models expect: {}; `make sandbox-rootfs` unpacks an image that has it",
            absent.join(", ")
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_fits_the_machine() {
        let refused = "bwrap: setting up uid map: Permission denied";
        for (said, host, expected) in [
            ("bwrap: Unknown option --disable-userns", Switches::default(), "0.8 or newer"),
            (refused, Switches { apparmor: true, ..Switches::default() }, "/etc/apparmor.d/bwrap"),
            (refused, Switches { clone: true, ..Switches::default() }, "unprivileged_userns_clone=1"),
            (refused, Switches { maximum: true, ..Switches::default() }, "max_user_namespaces"),
            (refused, Switches::default(), "Kubernetes"),
        ] {
            let text = explain(said, host);
            assert!(text.contains(expected) && text.contains(said), "{text}");
        }
    }

    #[test]
    fn a_program_is_a_path_or_a_name_to_be_found() {
        let path = OsStr::new("/nonexistent:/usr/bin:/bin");
        assert!(find_program(Path::new("env"), Some(path)).is_some());
        assert!(find_program(Path::new("no-such-program"), Some(path)).is_none());
        assert!(find_program(Path::new("env"), None).is_none());
        assert!(find_program(Path::new("/usr/bin/env"), None).is_some());
        assert!(find_program(Path::new("./nonexistent/env"), Some(path)).is_none());
    }
}
