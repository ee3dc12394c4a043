//! Creating many at once, and one at a time.

use crate::{
    audit::Writers,
    bench::{Bench, Snapshot},
    board::Sight,
    load::Subject,
    process::Usage,
    traffic::Writes,
};
use anyhow::{Context as _, ensure};
use std::time::{Duration, Instant};

/// Many of one kind, from the first request to the last Ready.
pub struct Creation {
    /// Of what.
    pub name: &'static str,
    /// How many.
    pub count: usize,
    /// From the first request to the last Ready.
    pub wall: Duration,
    /// From the request for one to the sight of its Ready, sorted.
    pub latencies: Vec<Duration>,
    /// What the API server counted meanwhile.
    pub writes: Writes,
    /// Writes that the operator counted itself.
    pub own_writes: f64,
    /// CPU of the operator.
    pub operator_cpu: Duration,
    /// CPU of the simulated kubelet, which shares the machine.
    pub kubelet_cpu: Duration,
    /// The operator at the end, with all of them there.
    pub operator: Usage,
    /// Who wrote, by the audit log.
    pub writers: Option<Writers>,
}

/// One sandbox and one bare pod after the other.
pub struct Pairs {
    /// Of the sandboxes, sorted.
    pub sandboxes: Vec<Duration>,
    /// Of the bare pods, sorted.
    pub bare: Vec<Duration>,
}

/// Creates as many as the arguments say, and waits until all are Ready.
pub async fn create(bench: &Bench, subject: &Subject) -> anyhow::Result<Creation> {
    let args = &bench.args;
    let sight = subject.sight().await?;
    let before = bench.snapshot().await?;
    let started = Instant::now();
    let begun = subject.create_many("scale", args.sandboxes, args.concurrency, |_| async { Ok(()) }).await?;
    let stall = Duration::from_secs(args.stall);
    sight
        .reaches(args.sandboxes, stall, |counts| counts.were_ready)
        .await
        .with_context(|| format!("waiting until all {} are Ready", subject.name()))?;
    let wall = begun
        .iter()
        .filter_map(|(name, _)| sight.ready_at(name))
        .max()
        .context("nothing was created")?
        .duration_since(started);
    // What they cause after their Ready is theirs too.
    tokio::time::sleep(Duration::from_secs(args.settle)).await;
    let after = bench.snapshot().await?;
    let Snapshot { operator, kubelet, writes, own_writes, audit: _ } = &after;
    Ok(Creation {
        name: subject.name(),
        count: args.sandboxes,
        wall,
        latencies: latencies(&begun, &sight)?,
        writes: writes.since(&before.writes),
        own_writes: own_writes - before.own_writes,
        operator_cpu: operator.cpu.saturating_sub(before.operator.cpu),
        kubelet_cpu: kubelet.cpu.saturating_sub(before.kubelet.cpu),
        operator: *operator,
        writers: bench.audit.writers_since(before.audit)?,
    })
}

/// Creates sandboxes and bare pods in turns, each when the one before is Ready; who comes first changes.
pub async fn one_at_a_time(bench: &Bench, sandboxes: &Subject, bare: &Subject) -> anyhow::Result<Pairs> {
    let stall = Duration::from_secs(bench.args.stall);
    let (sandbox_sight, bare_sight) = (sandboxes.sight().await?, bare.sight().await?);
    let (mut of_sandboxes, mut of_bare) = (Vec::new(), Vec::new());
    for pair in 0..bench.args.pairs {
        let mut turns = [(sandboxes, &sandbox_sight, &mut of_sandboxes), (bare, &bare_sight, &mut of_bare)];
        if pair % 2 == 1 {
            turns.reverse();
        }
        for (subject, sight, list) in turns {
            let (name, begun) = (format!("pair-{pair:05}"), Instant::now());
            subject.create(&name).await?;
            sight.reaches(pair + 1, stall, |counts| counts.were_ready).await?;
            list.extend(latencies(&[(name, begun)], sight)?);
        }
    }
    of_sandboxes.sort_unstable();
    of_bare.sort_unstable();
    Ok(Pairs { sandboxes: of_sandboxes, bare: of_bare })
}

fn latencies(begun: &[(String, Instant)], sight: &Sight) -> anyhow::Result<Vec<Duration>> {
    let mut latencies: Vec<_> =
        begun.iter().filter_map(|(name, begun)| Some(sight.ready_at(name)?.duration_since(*begun))).collect();
    ensure!(latencies.len() == begun.len(), "an object was Ready under another name");
    latencies.sort_unstable();
    Ok(latencies)
}
