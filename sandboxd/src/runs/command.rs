//! How a command is handed to the shell. Pure, but for looking which shell there is.

use crate::{process::shim, runs::table::refusal};
use sandboxd_protocol::{ErrorBody, ErrorCode, layout};
use std::{
    collections::BTreeMap,
    ffi::{CString, OsString},
};

/// Longest command that goes into an argument; the kernel's limit for one is 128 KiB.
const LONGEST_ARGUMENT: usize = 96 * 1024;

/// Bytes of a variable, its name included, that the kernel does not take any more.
const LONGEST_VARIABLE: usize = 128 * 1024;
/// Bytes of all variables: with the longest argument less than the 2 MiB that the kernel takes at the usual limit of the stack.
const LONGEST_ENVIRONMENT: usize = 1536 * 1024;

/// A shell of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shell {
    path: &'static str,
    is_bash: bool,
}

/// Where shells are, the wanted one first.
const SHELLS: [Shell; 5] = [
    Shell { path: "/bin/bash", is_bash: true },
    Shell { path: "/usr/bin/bash", is_bash: true },
    Shell { path: "/usr/local/bin/bash", is_bash: true },
    Shell { path: "/bin/sh", is_bash: false },
    Shell { path: "/usr/bin/sh", is_bash: false },
];

impl Shell {
    /// The image's shell, by a check whether a path can be executed.
    pub(crate) fn find(executable: impl Fn(&str) -> bool) -> Result<Self, ErrorBody> {
        let missing = || refusal(ErrorCode::NotInImage, "The sandbox's image has no shell: neither bash nor sh.");
        SHELLS.into_iter().find(|shell| executable(shell.path)).ok_or_else(missing)
    }
}

/// What the shell gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Handover {
    /// Its path.
    pub(crate) program: CString,
    /// Its arguments, its name first.
    pub(crate) args: Vec<CString>,
    /// What has to be readable at [`shim::SCRIPT_FD`].
    pub(crate) script: Option<Vec<u8>>,
}

/// Short commands are the argument of `-c`. A long one is a file: bash reads it into a variable and evaluates it, which unlike
/// `bash FILE` keeps `$0`, `$-`, the line numbers, the prefix `bash: line N:` of errors and heredocs as `-c` has them, leaves
/// stdin and every descriptor alone, and fails (126) when not all of it was read: `read` succeeds only at the closing NUL.
/// Other shells have no `read -d` and source the file.
pub(crate) fn handover(shell: Shell, command: &str) -> Result<Handover, ErrorBody> {
    const BASH_LOADER: &str = r#"IFS= read -rd "" __c <&9 || exit 126; exec 9<&-; eval "unset __c; $__c""#;
    let nul = || refusal(ErrorCode::BadRequest, "the command holds a NUL byte");
    if command.bytes().any(|b| b == 0) {
        return Err(nul());
    }
    let (text, script) = match (command.len() > LONGEST_ARGUMENT, shell.is_bash) {
        (false, _) => (command.to_owned(), None),
        (true, true) => (BASH_LOADER.to_owned(), Some([command.as_bytes(), b"\0"].concat())),
        (true, false) => (format!(". /dev/fd/{}", shim::SCRIPT_FD), Some(command.as_bytes().to_vec())),
    };
    let name = if shell.is_bash { "bash" } else { "sh" };
    let args = [name, "-c", &text].into_iter().map(CString::new).collect::<Result<_, _>>().map_err(|_| nul())?;
    Ok(Handover { program: CString::new(shell.path).map_err(|_| nul())?, args, script })
}

/// How many threads numerical libraries start; unless told, as many as the machine has processors, each with a stack and buffers.
const THREADS: &str = "OMP_NUM_THREADS";

/// The container's own variables: what its image and its template set, without what Kubernetes says of the cluster.
pub(crate) fn inherited(
    vars: impl IntoIterator<Item = (OsString, OsString)>,
    processors: Option<u64>,
) -> BTreeMap<String, String> {
    let utf8 = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    let kept = |(name, _): &(String, String)| !name.starts_with("KUBERNETES_") && !name.is_empty();
    let mut all: BTreeMap<String, String> = vars.into_iter().filter_map(utf8).filter(kept).collect();
    if let Some(processors) = processors {
        all.entry(THREADS.to_owned()).or_insert_with(|| processors.to_string());
    }
    all
}

/// The whole environment: the container's own variables, the fixed ones, then the request's, then those that tell the run's
/// folders. An image's programs are found where it says, after those that the user installed.
pub(crate) fn environment(
    own: &BTreeMap<String, String>,
    requested: &BTreeMap<String, String>,
    input: &str,
    output: &str,
) -> Result<Vec<CString>, ErrorBody> {
    let mut all: BTreeMap<&str, &str> = own.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let path = own.get("PATH").map(|path| format!("{}/.local/bin:{path}", layout::HOME));
    let lang = own.get("LANG");
    all.extend(layout::environment());
    all.extend(path.as_deref().map(|path| ("PATH", path)));
    all.extend(lang.map(|lang| ("LANG", lang.as_str())));
    for (name, value) in requested {
        if name.is_empty() || name.contains('=') {
            return Err(refusal(ErrorCode::BadRequest, "a variable's name is empty or holds an equals sign"));
        }
        all.insert(name, value);
    }
    all.extend([("INPUT_DIR", input), ("OUTPUT_DIR", output)]);
    let nul = |_| refusal(ErrorCode::BadRequest, "a variable holds a NUL byte");
    let all: Vec<CString> = all
        .into_iter()
        .map(|(name, value)| CString::new(format!("{name}={value}")).map_err(nul))
        .collect::<Result<_, _>>()?;
    let too_long = all.iter().any(|variable| variable.as_bytes().len() >= LONGEST_VARIABLE)
        || all.iter().map(|variable| variable.as_bytes().len()).sum::<usize>() > LONGEST_ENVIRONMENT;
    if too_long {
        return Err(refusal(ErrorCode::BadRequest, "the environment of the command is too long"));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASH: Shell = SHELLS[0];
    const SH: Shell = SHELLS[3];

    #[test]
    fn bash_is_taken_before_sh_and_its_absence_is_named() {
        assert_eq!(Shell::find(|_| true), Ok(BASH));
        assert_eq!(Shell::find(|path| path == "/bin/sh"), Ok(SH));
        let refused = Shell::find(|_| false).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotInImage);
        assert!(refused.message.contains("no shell"), "{}", refused.message);
    }

    #[test]
    fn only_long_commands_become_a_script() {
        let short = handover(BASH, "echo 1").unwrap();
        assert_eq!((short.args.last().unwrap().to_str().unwrap(), short.script), ("echo 1", None));
        let long = "#".repeat(LONGEST_ARGUMENT + 1);
        let script = handover(BASH, &long).unwrap().script.unwrap();
        assert_eq!((script.len(), script.last()), (long.len() + 1, Some(&0)));
        assert_eq!(handover(SH, &long).unwrap().script.unwrap(), long.as_bytes());
        assert_eq!(handover(BASH, "a\0b").unwrap_err().code, ErrorCode::BadRequest);
    }

    #[test]
    fn a_request_adds_variables_and_cannot_move_the_output_folder() {
        let requested = BTreeMap::from([("A".into(), "1".into()), ("OUTPUT_DIR".into(), "/etc".into())]);
        let env = environment(&BTreeMap::new(), &requested, "/in", "/out").unwrap();
        let env: Vec<_> = env.iter().map(|v| v.to_str().unwrap()).collect();
        assert!(env.contains(&"A=1") && env.contains(&"OUTPUT_DIR=/out") && env.contains(&"HOME=/home/agent"));
        for bad in ["", "A=B"] {
            assert!(
                environment(&BTreeMap::new(), &BTreeMap::from([(bad.into(), String::new())]), "/", "/").is_err(),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn the_images_variables_are_kept_and_the_clusters_are_not() {
        let vars =
            [("PATH", "/opt/bin"), ("HOME", "/root"), ("MPLBACKEND", "Agg"), ("KUBERNETES_SERVICE_HOST", "10.0.0.1")];
        let own = inherited(vars.map(|(name, value)| (name.into(), value.into())), None);
        let env = environment(&own, &BTreeMap::new(), "/in", "/out").unwrap();
        let env: Vec<_> = env.iter().map(|v| v.to_str().unwrap()).collect();
        for kept in ["PATH=/home/agent/.local/bin:/opt/bin", "HOME=/home/agent", "MPLBACKEND=Agg"] {
            assert!(env.contains(&kept), "{kept}: {env:?}");
        }
        assert!(!env.iter().any(|variable| variable.starts_with("KUBERNETES_")), "{env:?}");
    }

    #[test]
    fn libraries_start_as_many_threads_as_there_are_processors_unless_the_image_says_otherwise() {
        assert_eq!(inherited([], Some(2)), BTreeMap::from([(THREADS.to_owned(), "2".to_owned())]));
        assert_eq!(inherited([(THREADS.into(), "7".into())], Some(2))[THREADS], "7");
        assert!(inherited([], None).is_empty());
    }
}
