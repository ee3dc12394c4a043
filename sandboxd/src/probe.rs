//! `probe`: says what a pod can reach.
//!
//! A network plugin may take a moment until its rules hold, so what counts is the last of several rounds. Only a connection that was
//! made counts: a refusal may come from the rules themselves.

use serde::Serialize;
use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};
use tokio::{net::TcpStream, task::JoinSet, time};

/// Time that the rules are given before the first round.
pub(crate) const SETTLE: Duration = Duration::from_secs(3);
/// Time of one round; a connection that takes longer is not made.
pub(crate) const ROUND: Duration = Duration::from_secs(1);
/// Rounds at least, so that a network that comes up late is not taken for a closed one.
const LEAST_ROUNDS: usize = 4;
/// Rounds at most, while something is still reached.
const MOST_ROUNDS: usize = 20;
/// A report must fit into a termination message.
const MOST_ADDRESSES: usize = 20;

/// What to try, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) targets: Vec<Target>,
    /// Where the report goes; without it, standard output.
    pub(crate) report: Option<PathBuf>,
    pub(crate) settle: Duration,
    pub(crate) round: Duration,
}

/// `NAME=ADDRESS[,ADDRESS...]:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    name: String,
    addresses: Vec<SocketAddr>,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("--target is NAME=ADDRESS[,ADDRESS...]:PORT, not {text:?}");
        let (name, place) = text.split_once('=').ok_or_else(wrong)?;
        let (hosts, port) = place.rsplit_once(':').ok_or_else(wrong)?;
        let port: u16 = port.parse().map_err(|_| wrong())?;
        let address = |host: &str| -> Result<SocketAddr, String> {
            let bare = host.trim().trim_start_matches('[').trim_end_matches(']');
            let ip: IpAddr = bare.parse().map_err(|_| wrong())?;
            Ok(SocketAddr::new(ip, port))
        };
        let addresses = hosts.split(',').map(address).collect::<Result<_, _>>()?;
        Ok(Self { name: name.to_owned(), addresses })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Place {
    name: String,
    address: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Report {
    tried: Vec<Place>,
    reached: Vec<Place>,
}

pub(crate) fn run(probe: &Probe) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(try_all(probe));
    let text = serde_json::to_string(&report)?;
    match &probe.report {
        Some(path) => write_report(path, &text),
        None => writeln!(io::stdout(), "{text}"),
    }
}

/// The file is there: the kubelet made it.
fn write_report(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).truncate(true).open(path)?.write_all(text.as_bytes())
}

async fn try_all(probe: &Probe) -> Report {
    let places: Vec<(Place, SocketAddr)> = probe
        .targets
        .iter()
        .flat_map(|target| target.addresses.iter().map(|address| (place(target, *address), *address)))
        .take(MOST_ADDRESSES)
        .collect();
    time::sleep(probe.settle).await;
    let mut rounds = time::interval(probe.round);
    let mut reached = Vec::new();
    for round in 1..=MOST_ROUNDS {
        rounds.tick().await;
        reached = try_round(&places, probe.round).await;
        if enough(round, reached.is_empty()) {
            break;
        }
    }
    Report { tried: places.into_iter().map(|(place, _)| place).collect(), reached }
}

fn place(target: &Target, address: SocketAddr) -> Place {
    Place { name: target.name.clone(), address: address.to_string() }
}

/// Rules may still come while something is reached.
const fn enough(rounds: usize, nothing_reached: bool) -> bool {
    rounds >= MOST_ROUNDS || (rounds >= LEAST_ROUNDS && nothing_reached)
}

/// All at once, in the order of the places.
async fn try_round(places: &[(Place, SocketAddr)], patience: Duration) -> Vec<Place> {
    let mut attempts = JoinSet::new();
    for (index, (_, address)) in places.iter().enumerate() {
        let address = *address;
        attempts.spawn(async move {
            let connected = time::timeout(patience, TcpStream::connect(address)).await;
            (index, matches!(connected, Ok(Ok(_))))
        });
    }
    let mut reached: Vec<usize> = Vec::new();
    while let Some(ended) = attempts.join_next().await {
        if let Ok((index, true)) = ended {
            reached.push(index);
        }
    }
    reached.sort_unstable();
    reached.into_iter().filter_map(|index| places.get(index)).map(|(place, _)| place.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn probe(targets: &[String]) -> Probe {
        Probe {
            targets: targets.iter().map(|target| target.parse().unwrap()).collect(),
            report: None,
            settle: Duration::ZERO,
            round: Duration::from_millis(30),
        }
    }

    async fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    fn names(places: &[Place]) -> Vec<&str> {
        places.iter().map(|place| place.name.as_str()).collect()
    }

    #[test]
    fn a_target_has_a_name_addresses_of_both_families_and_a_port() {
        let target: Target = "kubelet=10.0.0.1,fd00::1:10250".parse().unwrap();
        let addresses: Vec<String> = target.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1:10250", "[fd00::1]:10250"]);
        assert_eq!("a=[fd00::2]:80".parse::<Target>().unwrap().addresses[0].to_string(), "[fd00::2]:80");
        for wrong in [
            "",
            "a",
            "a=10.0.0.1",
            "a=10.0.0.1:http",
            "a=:80",
            "a=$(NODE_IPS):80",
            "a=example.com:80",
            "a=10.0.0.1,:80",
        ] {
            assert!(wrong.parse::<Target>().unwrap_err().contains("NAME=ADDRESS"), "{wrong}");
        }
    }

    #[test]
    fn it_ends_early_only_when_nothing_is_reached_and_not_at_once() {
        let rows = [
            (1, true, false),
            (3, true, false),
            (4, true, true),
            (4, false, false),
            (19, false, false),
            (20, false, true),
        ];
        for (rounds, nothing, ends) in rows {
            assert_eq!(enough(rounds, nothing), ends, "{rounds} {nothing}");
        }
    }

    #[tokio::test]
    async fn only_a_connection_that_was_made_counts() {
        let (open, open_port) = listener().await;
        let (closed, closed_port) = listener().await;
        drop(closed);
        let probe = probe(&[format!("open=127.0.0.1:{open_port}"), format!("closed=127.0.0.1:{closed_port}")]);
        let report = try_all(&probe).await;
        assert_eq!(names(&report.tried), ["open", "closed"]);
        assert_eq!(names(&report.reached), ["open"]);
        assert_eq!(report.reached[0].address, open.local_addr().unwrap().to_string());
    }

    #[tokio::test]
    async fn what_is_blocked_in_the_end_was_not_reached() {
        let (open, port) = listener().await;
        let probe = probe(&[format!("open=127.0.0.1:{port}")]);
        let closing = async move {
            open.accept().await.unwrap();
            drop(open);
        };
        let (report, ()) = tokio::join!(try_all(&probe), closing);
        assert_eq!(report.reached, []);
        assert_eq!(names(&report.tried), ["open"]);
    }

    #[test]
    fn the_report_goes_to_the_file_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("message");
        let probe = Probe { report: Some(path.clone()), ..probe(&["down=127.0.0.1:9".to_owned()]) };
        assert_eq!(run(&probe).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, "of old, and longer than what is written now, so that a rest of it would be seen")
            .unwrap();
        run(&probe).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, r#"{"tried":[{"name":"down","address":"127.0.0.1:9"}],"reached":[]}"#);
    }
}
