//! Who of several operators works: the one that holds a Lease.
//!
//! Invariant: of all candidates at most one has an open [`Gate`]. A holder's time counts from the moment it *sent* its last
//! successful renewal, and ends a margin early; another candidate's wait counts from the moment it *received* that renewal. Both
//! are lengths on a machine's own clock, so it does not matter what time of day the machines believe it is. Each write of the Lease
//! replaces exactly the version that was seen, so of two that try at once one fails.

mod lease;
#[cfg(test)]
mod tests;

pub use lease::KubeLease;

use crate::{
    gate::{Clock, Gate},
    health::Pulse,
};
use jiff::Timestamp;
use std::{future::Future, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a lease lasts, and how often it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Another candidate takes a lease that was not renewed for so long.
    pub duration: Duration,
    /// The holder gives up when no renewal succeeded for so long.
    pub renew_deadline: Duration,
    /// Pause between two attempts.
    pub retry: Duration,
}

impl Timing {
    /// Only times that keep two candidates from leading at once.
    pub fn checked(self) -> Result<Self, String> {
        let Self { duration, renew_deadline, retry } = self;
        if duration.subsec_nanos() != 0 || duration.is_zero() || duration.as_secs() > 3600 {
            return Err(format!("the lease duration is {duration:?}; take whole seconds, at most an hour"));
        }
        if retry.is_zero() || renew_deadline <= retry {
            return Err(format!(
                "the renew deadline is {renew_deadline:?} and the retry {retry:?}; take a retry above 0 and a longer deadline"
            ));
        }
        if renew_deadline.saturating_add(self.margin()) >= duration {
            return Err(format!(
                "the renew deadline is {renew_deadline:?}; with the retry of {retry:?} it has to be shorter than the lease duration of {duration:?}"
            ));
        }
        Ok(self)
    }

    /// Writes end so long before the lease does: for clocks that run unequally fast, and for the way of a write to the server.
    fn margin(self) -> Duration {
        self.retry
    }

    /// Longest wait for one answer, so that at least two attempts fit before the deadline.
    fn answer(self) -> Duration {
        self.renew_deadline / 2
    }
}

/// What a Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it; empty when it was released.
    pub holder: String,
    /// How long it lasts after a renewal.
    pub duration: Duration,
    /// How often the holder has changed.
    pub transitions: i32,
    /// When the holder took it, by the holder's time of day.
    pub acquired: Timestamp,
    /// When the holder renewed it, by the holder's time of day: for people, no decision reads it.
    pub renewed: Timestamp,
}

/// A Lease as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it says.
    pub lease: Lease,
    /// Changes with every write, by whomever.
    pub version: String,
}

/// Why a Lease was not read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// It is no longer, or already, what the writer believed.
    #[error("somebody else wrote the lease first")]
    Outdated,
    /// No answer, or none of use. The write may have been done all the same.
    #[error("{0}")]
    Failed(String),
}

/// Where the Lease is kept.
pub trait LeaseStore: Send + Sync {
    /// The Lease, if there is one.
    fn read(&self) -> impl Future<Output = Result<Option<Found>, LeaseError>> + Send;
    /// Replaces this version, or creates it when there is none; gives the new version.
    fn write(&self, lease: &Lease, version: Option<&str>) -> impl Future<Output = Result<String, LeaseError>> + Send;
}

/// Why a holder stops.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// Somebody else holds it.
    #[error("the lease was taken by {0}")]
    Taken(String),
    /// It could not be renewed.
    #[error("the lease was not renewed within {0:?}")]
    NotRenewed(Duration),
}

/// Tells when this operator leads.
#[derive(Clone, Debug)]
pub struct Leading(watch::Receiver<bool>);

impl Leading {
    /// With what an [`Election`] tells it by.
    pub fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Waits until this operator leads. It leads until the process ends.
    pub async fn begun(&mut self) {
        if self.0.wait_for(|leads| *leads).await.is_err() {
            // The election has ended without leading, and the process ends with it.
            std::future::pending::<()>().await;
        }
    }
}

/// One candidate.
#[derive(Debug)]
pub struct Election<S> {
    /// Where the Lease is kept; not behind the gate.
    pub store: S,
    /// Its times.
    pub timing: Timing,
    /// A name that no other process has ever had.
    pub identity: String,
    /// Opened while the lease is ours.
    pub gate: Gate,
    /// Added to each wait for a lease of somebody else, so that candidates do not try in step.
    pub spread: Duration,
}

/// The lease while it is ours.
struct Held {
    lease: Lease,
    version: String,
    /// When the last renewal that succeeded was sent.
    sent: Duration,
}

/// What a candidate remembers of somebody else's lease.
struct Seen {
    holder: String,
    /// Empty once it was deleted.
    version: String,
    duration: Duration,
    /// From then on it may be taken, unless it is renewed.
    free: Duration,
}

/// What to do about a lease that is not ours.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Write it, over this version.
    Take { version: Option<String>, transitions: i32 },
    /// Look again after this.
    Wait(Duration),
}

/// Decides by what was found, and what was seen before. `now` is taken after the answer came.
fn next(seen: &mut Option<Seen>, found: Option<&Found>, me: &str, now: Duration) -> Next {
    let Some(Found { lease, version }) = found else {
        return match seen {
            // Somebody deleted it, but its holder goes on for a while.
            Some(seen) if !seen.version.is_empty() => {
                seen.version.clear();
                seen.free = now.saturating_add(seen.duration);
                Next::Wait(seen.duration)
            }
            Some(seen) if now < seen.free => Next::Wait(seen.free.saturating_sub(now)),
            Some(_) | None => Next::Take { version: None, transitions: 0 },
        };
    };
    let take = || Next::Take { version: Some(version.clone()), transitions: lease.transitions.saturating_add(1) };
    if lease.holder.is_empty() || lease.holder == me {
        return take();
    }
    match seen {
        Some(seen) if seen.version == *version && now >= seen.free => take(),
        Some(seen) if seen.version == *version => Next::Wait(seen.free.saturating_sub(now)),
        Some(_) | None => {
            let duration = lease.duration;
            let free = now.saturating_add(duration);
            *seen = Some(Seen { holder: lease.holder.clone(), version: version.clone(), duration, free });
            Next::Wait(duration)
        }
    }
}

impl<S: LeaseStore> Election<S> {
    /// Stands by, leads, and releases the lease when told to. An error means that it was lost: the process has to end.
    pub async fn run(self, leads: watch::Sender<bool>, pulse: Pulse, release: CancellationToken) -> Result<(), Lost> {
        let Some(held) = self.acquire(&pulse, &release).await else { return Ok(()) };
        tracing::info!(lease.identity = self.identity, lease.transitions = held.lease.transitions, "leads");
        leads.send_replace(true);
        let ended = self.keep(held, &pulse, &release).await;
        self.gate.close();
        leads.send_replace(false);
        match ended {
            Ok(held) => {
                self.give_back(held).await;
                Ok(())
            }
            Err(lost) => Err(lost),
        }
    }

    /// The lease, once it is ours; nothing when told to stop before.
    async fn acquire(&self, pulse: &Pulse, release: &CancellationToken) -> Option<Held> {
        let mut seen = None;
        let mut holder = None;
        while !release.is_cancelled() {
            pulse.beat();
            let wait = match self.try_to_take(&mut seen).await {
                Ok(Ok(held)) => return Some(held),
                Ok(Err(wait)) => wait.min(self.timing.retry.saturating_add(self.spread)),
                Err(LeaseError::Outdated) => self.timing.retry,
                Err(LeaseError::Failed(error)) => {
                    tracing::warn!(error, "the lease cannot be read or taken; it is tried again");
                    self.timing.retry.saturating_add(self.spread)
                }
            };
            let current = seen.as_ref().map(|seen: &Seen| seen.holder.clone());
            if current.is_some() && current != holder {
                tracing::info!(lease.identity = self.identity, lease.holder = current, "stands by");
                holder = current;
            }
            tokio::select! {
                biased;
                () = release.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        None
    }

    /// One look, and one attempt if the lease is free; otherwise how long to wait.
    async fn try_to_take(&self, seen: &mut Option<Seen>) -> Result<Result<Held, Duration>, LeaseError> {
        let found = self.read(self.timing.answer()).await?;
        let (version, transitions) = match next(seen, found.as_ref(), &self.identity, self.clock().now()) {
            Next::Wait(wait) => return Ok(Err(wait)),
            Next::Take { version, transitions } => (version, transitions),
        };
        let sent = self.clock().now();
        let now = self.clock().wall();
        let lease = Lease {
            holder: self.identity.clone(),
            duration: self.timing.duration,
            transitions,
            acquired: now,
            renewed: now,
        };
        let version = self.write(&lease, version.as_deref(), self.timing.answer()).await?;
        Ok(Ok(self.hold(lease, version, sent)))
    }

    /// Renews until told to stop.
    async fn keep(&self, mut held: Held, pulse: &Pulse, release: &CancellationToken) -> Result<Held, Lost> {
        loop {
            tokio::select! {
                biased;
                () = release.cancelled() => return Ok(held),
                () = tokio::time::sleep(self.timing.retry) => {}
            }
            pulse.beat();
            held = self.renew(held).await?;
        }
    }

    /// One attempt. A failed one is forgiven until the deadline.
    async fn renew(&self, held: Held) -> Result<Held, Lost> {
        let patience = self.patience(&held)?;
        let sent = self.clock().now();
        let lease = Lease { renewed: self.clock().wall(), ..held.lease.clone() };
        match self.write(&lease, Some(&held.version), patience).await {
            Ok(version) => Ok(self.hold(lease, version, sent)),
            Err(LeaseError::Outdated) => self.claim_again(held).await,
            Err(LeaseError::Failed(error)) => {
                tracing::warn!(error, "the lease was not renewed; it is tried again");
                Ok(held)
            }
        }
    }

    /// Somebody wrote our lease, or deleted it: it is still ours if it says so, or if there is none.
    async fn claim_again(&self, held: Held) -> Result<Held, Lost> {
        let version = match self.read(self.patience(&held)?).await {
            Ok(Some(found)) if found.lease.holder != self.identity => return Err(Lost::Taken(found.lease.holder)),
            Ok(found) => found.map(|found| found.version),
            Err(error) => {
                tracing::warn!(%error, "the lease was written by somebody and cannot be read; it is tried again");
                return Ok(held);
            }
        };
        let patience = self.patience(&held)?;
        let sent = self.clock().now();
        let lease = Lease { renewed: self.clock().wall(), ..held.lease.clone() };
        match self.write(&lease, version.as_deref(), patience).await {
            Ok(version) => Ok(self.hold(lease, version, sent)),
            Err(error) => {
                tracing::warn!(%error, "the lease was not renewed; it is tried again");
                Ok(held)
            }
        }
    }

    /// So that the next holder need not wait.
    async fn give_back(&self, held: Held) {
        let released = |lease: Lease| Lease {
            holder: String::new(),
            // The shortest that a Lease can say.
            duration: Duration::from_secs(1),
            renewed: self.clock().wall(),
            ..lease
        };
        let patience = self.timing.answer();
        let mut outcome = self.write(&released(held.lease), Some(&held.version), patience).await;
        if outcome == Err(LeaseError::Outdated) {
            // A renewal that was believed lost may have been done.
            outcome = match self.read(patience).await {
                Ok(Some(found)) if found.lease.holder == self.identity => {
                    self.write(&released(found.lease), Some(&found.version), patience).await
                }
                Ok(_) => return,
                Err(error) => Err(error),
            };
        }
        match outcome {
            Ok(_) => tracing::info!(lease.identity = self.identity, "the lease is released"),
            Err(error) => tracing::warn!(%error, "the lease was not released; it runs out by itself"),
        }
    }

    /// The lease is ours from `sent` on.
    fn hold(&self, lease: Lease, version: String, sent: Duration) -> Held {
        let Timing { duration, renew_deadline: _, retry: _ } = self.timing;
        self.gate.open_until(sent.saturating_add(duration).saturating_sub(self.timing.margin()));
        Held { lease, version, sent }
    }

    /// How long an answer may take now, as long as the deadline is not over.
    fn patience(&self, held: &Held) -> Result<Duration, Lost> {
        let deadline = held.sent.saturating_add(self.timing.renew_deadline);
        let left = deadline.saturating_sub(self.clock().now());
        if left.is_zero() {
            return Err(Lost::NotRenewed(self.timing.renew_deadline));
        }
        Ok(left.min(self.timing.answer()))
    }

    fn clock(&self) -> &dyn Clock {
        self.gate.clock()
    }

    async fn read(&self, patience: Duration) -> Result<Option<Found>, LeaseError> {
        tokio::time::timeout(patience, self.store.read()).await.unwrap_or_else(|_| Err(no_answer(patience)))
    }

    async fn write(&self, lease: &Lease, version: Option<&str>, patience: Duration) -> Result<String, LeaseError> {
        tokio::time::timeout(patience, self.store.write(lease, version))
            .await
            .unwrap_or_else(|_| Err(no_answer(patience)))
    }
}

fn no_answer(patience: Duration) -> LeaseError {
    LeaseError::Failed(format!("the API server did not answer within {patience:?}"))
}
