//! Sandboxes that were Ready once, idled out, and now cost nothing but their objects.

use crate::{
    audit::Writers,
    bench::{Bench, wait_until},
    load::Subject,
    process::Usage,
    traffic::Writes,
};
use anyhow::{Context as _, ensure};
use kube::api::ListParams;
use std::time::{Duration, Instant};

/// How they came to rest.
pub struct Suspension {
    /// How many.
    pub count: usize,
    /// From the first request to the last one suspended.
    pub wall: Duration,
    /// CPU of the operator for start and suspend.
    pub operator_cpu: Duration,
    /// What the API server counted meanwhile.
    pub writes: Writes,
    /// Writes that the operator counted itself.
    pub own_writes: f64,
}

/// A stretch of time in which nobody uses any.
pub struct Rest {
    /// How long.
    pub time: Duration,
    /// What the API server counted meanwhile.
    pub writes: Writes,
    /// Writes that the operator counted itself.
    pub own_writes: f64,
    /// CPU of the operator.
    pub operator_cpu: Duration,
    /// The operator at the end.
    pub operator: Usage,
    /// Who wrote, by the audit log.
    pub writers: Option<Writers>,
}

/// Creates them, a limited number running at once, and waits until all are suspended and have no pod.
pub async fn suspend(bench: &Bench, subject: &Subject) -> anyhow::Result<Suspension> {
    let args = &bench.args;
    let (stall, window) = (Duration::from_secs(args.stall + args.idle), args.window);
    let sight = subject.sight().await?;
    let before = bench.snapshot().await?;
    let started = Instant::now();
    let turn = |number: usize| {
        // So many may be on their way that the window is never passed.
        let at_rest = (number + 1).saturating_sub(window);
        let sight = &sight;
        async move { sight.reaches(at_rest, stall, |counts| counts.suspended).await }
    };
    subject
        .create_many("idle", args.suspended, args.concurrency, turn)
        .await
        .with_context(|| format!("creating sandboxes that idle out; they stand at {:?}", sight.counts()))?;
    sight
        .reaches(args.suspended, stall, |counts| counts.suspended)
        .await
        .context("waiting until all are suspended, each after its Ready")?;
    let wall = started.elapsed();
    let pods = bench.pods(&bench.namespace);
    wait_until("the end of the last pods", || async {
        Ok(pods.list_metadata(&ListParams::default()).await?.items.is_empty())
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(args.settle)).await;
    let after = bench.snapshot().await?;
    let counts = sight.counts();
    ensure!(counts.suspended == args.suspended, "not all stayed suspended: {counts:?}");
    Ok(Suspension {
        count: args.suspended,
        wall,
        operator_cpu: after.operator.cpu.saturating_sub(before.operator.cpu),
        writes: after.writes.since(&before.writes),
        own_writes: after.own_writes - before.own_writes,
    })
}

/// Counts for so long what happens when nobody does anything.
pub async fn watch(bench: &Bench, time: Duration) -> anyhow::Result<Rest> {
    let before = bench.snapshot().await?;
    let started = Instant::now();
    tokio::time::sleep(time).await;
    let after = bench.snapshot().await?;
    Ok(Rest {
        time: started.elapsed(),
        writes: after.writes.since(&before.writes),
        own_writes: after.own_writes - before.own_writes,
        operator_cpu: after.operator.cpu.saturating_sub(before.operator.cpu),
        operator: after.operator,
        writers: bench.audit.writers_since(before.audit)?,
    })
}
