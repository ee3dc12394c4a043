//! The command line.

use crate::{attach, init, limits::CGROUP_ROOT, probe, process::shim, serve};
use sandboxd_protocol::{ABANDONED_AFTER, CALL_TIMEOUT, layout};
use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

const USAGE: &str = "\
usage: sandboxd init --binary-to PATH --claim DIR
       sandboxd serve --half main|files [--socket PATH | --connection-fd N] [--claim DIR]
       sandboxd attach [--socket PATH]
       sandboxd probe --target NAME=ADDRESS[,ADDRESS...]:PORT [--target ...] [--report FILE]";

/// The option that may be given more than once.
const REPEATED: &str = "--target";

/// Which of the two containers this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Main,
    Files,
}

/// Where connections come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// A pathname socket.
    Socket(PathBuf),
    /// One connection, inherited by number; the process lives as long as it.
    Inherited(i32),
}

/// Options of `serve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    pub(crate) half: Half,
    pub(crate) transport: Transport,
    /// Folder of the claim. The `main` half sees its parts as mounts unless it is given.
    pub(crate) claim: Option<PathBuf>,
    /// For tests: [`ABANDONED_AFTER`] otherwise.
    pub(crate) abandoned_after: Duration,
    /// Folder of the container's control group; tests have one of plain files.
    pub(crate) cgroup: PathBuf,
    /// For tests: [`CALL_TIMEOUT`] otherwise.
    pub(crate) call_timeout: Duration,
}

impl Serve {
    pub(crate) fn claim(&self) -> &Path {
        self.claim.as_deref().unwrap_or_else(|| Path::new(layout::CLAIM))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Command {
    Init { binary: PathBuf, claim: PathBuf },
    Serve(Serve),
    Attach { socket: PathBuf, server_pid: i32 },
    Probe(probe::Probe),
}

/// Runs the subcommand that the process was started with.
pub fn run_from_arguments() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let subcommand = args.next().unwrap_or_default();
    if subcommand == shim::SUBCOMMAND {
        return shim::run();
    }
    let failed = |what: &str, e: &dyn std::error::Error| Err((format!("{what}: {e}"), 1));
    let result = match parse(&subcommand, args) {
        Ok(Command::Init { binary, claim }) => {
            init::run(&binary, &claim).map_err(|e| (format!("init: {e}"), e.exit_status()))
        }
        Ok(Command::Serve(options)) => serve::run(&options).or_else(|e| failed("serve", &e)),
        Ok(Command::Attach { socket, server_pid }) => {
            attach::run(&socket, server_pid).or_else(|e| failed("attach", &e))
        }
        Ok(Command::Probe(options)) => probe::run(&options).or_else(|e| failed("probe", &e)),
        Err(wrong) => Err((format!("{wrong}\n{USAGE}"), 1)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err((message, status)) => {
            // Nobody is left to tell when stderr is closed.
            let _ = writeln!(io::stderr(), "sandboxd {message}");
            ExitCode::from(status)
        }
    }
}

/// Options as they come, each at most once but [`REPEATED`].
struct Options(Vec<(String, OsString)>);

impl Options {
    fn read(mut args: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut options: Vec<(String, OsString)> = Vec::new();
        while let Some(name) = args.next() {
            let name = name.to_string_lossy().into_owned();
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            if name != REPEATED && options.iter().any(|(known, _)| *known == name) {
                return Err(format!("{name} is given twice"));
            }
            options.push((name, value));
        }
        Ok(Self(options))
    }

    fn take(&mut self, name: &str) -> Option<OsString> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Every value of the option that may be repeated, in order.
    fn take_repeated(&mut self) -> Vec<OsString> {
        let (taken, left) = std::mem::take(&mut self.0).into_iter().partition(|(name, _)| name == REPEATED);
        self.0 = left;
        taken.into_iter().map(|(_, value): (_, OsString)| value).collect()
    }

    fn need(&mut self, name: &str) -> Result<PathBuf, String> {
        self.take(name).map(PathBuf::from).ok_or_else(|| format!("{name} is missing"))
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str) -> Result<Option<T>, String> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.to_str().and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(|| format!("{name} needs a number"))
    }

    fn done(self) -> Result<(), String> {
        self.0.first().map_or(Ok(()), |(name, _)| Err(format!("{name} is not known here")))
    }
}

fn parse(subcommand: &OsString, args: impl Iterator<Item = OsString>) -> Result<Command, String> {
    let mut options = Options::read(args)?;
    let command = match subcommand.to_str() {
        Some("init") => Command::Init { binary: options.need("--binary-to")?, claim: options.need("--claim")? },
        Some("attach") => Command::Attach {
            socket: options.take("--socket").map_or_else(|| layout::SOCKET.into(), PathBuf::from),
            // For tests, where the server is not PID 1.
            server_pid: options.number("--server-pid")?.unwrap_or(1),
        },
        Some("serve") => Command::Serve(parse_serve(&mut options)?),
        Some("probe") => Command::Probe(parse_probe(&mut options)?),
        _ => return Err("unknown subcommand".into()),
    };
    options.done()?;
    Ok(command)
}

fn parse_serve(options: &mut Options) -> Result<Serve, String> {
    let half = match options.need("--half")?.to_str() {
        Some("main") => Half::Main,
        Some("files") => Half::Files,
        _ => return Err("--half is main or files".into()),
    };
    let transport = match (options.take("--socket"), options.number("--connection-fd")?) {
        (Some(_), Some(_)) => return Err("--socket and --connection-fd exclude each other".into()),
        (None, Some(number)) => Transport::Inherited(number),
        (socket, None) => Transport::Socket(socket.map_or_else(|| layout::SOCKET.into(), PathBuf::from)),
    };
    let claim = options.take("--claim").map(PathBuf::from);
    let abandoned_after = options.number("--abandoned-after-ms")?.map_or(ABANDONED_AFTER, Duration::from_millis);
    let cgroup = options.take("--cgroup").map_or_else(|| CGROUP_ROOT.into(), PathBuf::from);
    let call_timeout = options.number("--call-timeout-ms")?.map_or(CALL_TIMEOUT, Duration::from_millis);
    Ok(Serve { half, transport, claim, abandoned_after, cgroup, call_timeout })
}

fn parse_probe(options: &mut Options) -> Result<probe::Probe, String> {
    let targets = options.take_repeated();
    if targets.is_empty() {
        return Err(format!("{REPEATED} is missing"));
    }
    Ok(probe::Probe {
        targets: targets.iter().map(|target| target.to_string_lossy().parse()).collect::<Result<_, _>>()?,
        report: options.take("--report").map(PathBuf::from),
        settle: options.number("--settle-ms")?.map_or(probe::SETTLE, Duration::from_millis),
        round: options.number("--round-ms")?.map_or(probe::ROUND, Duration::from_millis),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        let mut words = line.split_whitespace().map(OsString::from);
        parse(&words.next().unwrap_or_default(), words)
    }

    #[test]
    fn serve_defaults_to_the_pathname_socket() {
        let expected = Serve {
            half: Half::Main,
            transport: Transport::Socket(layout::SOCKET.into()),
            claim: None,
            abandoned_after: ABANDONED_AFTER,
            cgroup: CGROUP_ROOT.into(),
            call_timeout: CALL_TIMEOUT,
        };
        assert_eq!(parsed("serve --half main"), Ok(Command::Serve(expected)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, named) in [
            ("", "subcommand"),
            ("init --claim /c", "--binary-to"),
            ("serve", "--half"),
            ("serve --half other", "--half"),
            ("serve --half main --socket /s --connection-fd 3", "exclude"),
            ("serve --half main --connection-fd x", "--connection-fd"),
            ("serve --half main --half main", "twice"),
            ("attach --what", "--what"),
            ("attach --what 1", "--what"),
            ("probe", "--target"),
            ("probe --target x", "NAME=ADDRESS"),
            ("probe --target a=10.0.0.1:80 --report /a --report /b", "twice"),
            ("serve --half main --target a=10.0.0.1:80", "--target"),
        ] {
            assert!(parsed(line).unwrap_err().contains(named), "{line}");
        }
    }
}
