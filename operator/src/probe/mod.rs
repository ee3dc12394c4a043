//! Tries whether the cluster enforces network policies.
//!
//! A pod like a sandbox's, which no policy allows anything, tries to connect; what it reached it says in its termination message. Right
//! before, the operator connects to the canary itself: where even that fails, a pod that reaches nothing shows nothing. It is tried at
//! the start, every hour, and when a policy or the set of nodes changes. What follows from a result is decided in
//! [`crate::isolation`].

mod control;
mod pod;
mod pods;

pub use pod::{LABEL, PREFIX, probe_pod};

use crate::{
    gate::{BootClock, Clock},
    isolation::{Finding, Isolation, Ledger, judge},
    leader::Leading,
    metrics::Metrics,
    network::{policy::DENY_ALL, settings::NetworkSettings},
    templates::{Announcement, announce},
};
use control::{Control, control};
use crds::Reason;
use futures_util::{StreamExt, future::BoxFuture};
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        events::{EventType, Recorder, Reporter},
        watcher,
    },
};
use pods::{Ended, remove_stale, run_pod};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

/// Between two tries when all is well.
const EVERY: Duration = Duration::from_hours(1);
/// Between two tries while something is reached, or a try showed nothing.
const SOON: Duration = Duration::from_mins(2);
/// Longest wait for the names of the nodes before the first try.
const FIRST_LIST: Duration = Duration::from_secs(10);
/// Between two tries at least, however much changes.
const AT_LEAST: Duration = Duration::from_secs(15);

/// What the probe of a namespace needs.
pub struct Deps {
    /// Client of the cluster.
    pub client: Client,
    /// Told the result.
    pub metrics: Arc<Metrics>,
    /// Says when it may begin.
    pub leading: Leading,
    /// Image that has the probe.
    pub sandboxd_image: String,
    /// Which canary.
    pub settings: NetworkSettings,
    /// Told the result.
    pub isolation: watch::Sender<Isolation>,
    /// Says that a policy changed.
    pub disturbed: Arc<Notify>,
}

/// Tries it in one namespace, again and again, until told to stop.
pub async fn run(deps: Deps, namespace: String, stop: CancellationToken) {
    let Deps { client, metrics, mut leading, sandboxd_image, settings, isolation, disturbed } = deps;
    let reporter = Reporter { controller: "codeexec-operator".to_owned(), instance: None };
    let probe = Probe {
        recorder: Recorder::new(client.clone(), reporter),
        client,
        metrics,
        sandboxd_image,
        settings,
        isolation,
        namespace,
    };
    tokio::select! {
        () = stop.cancelled() => return,
        () = leading.begun() => {}
    }
    let (told, nodes) = watch::channel(None);
    tokio::select! {
        () = probe.turn(nodes, &disturbed, &stop) => {}
        () = watch_nodes(probe.client.clone(), told) => {}
    };
}

/// Keeps the names of the nodes. It never ends.
fn watch_nodes(client: Client, told: watch::Sender<Option<BTreeSet<String>>>) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let api: Api<PartialObjectMeta<Node>> = Api::all(client);
        let mut events = watcher(api, watcher::Config::default().any_semantic()).default_backoff().boxed();
        let (mut known, mut listed) = (BTreeSet::new(), BTreeSet::new());
        let mut refused = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitApply(node)) => listed.extend(node.metadata.name),
                Ok(watcher::Event::InitDone) => known.clone_from(&listed),
                Ok(watcher::Event::Apply(node)) => known.extend(node.metadata.name),
                Ok(watcher::Event::Delete(node)) => {
                    known.remove(&node.metadata.name.unwrap_or_default());
                }
                Err(error) if !refused => {
                    refused = true;
                    tracing::warn!(%error, "the nodes cannot be watched: a new one is tried with the next hourly probe at the earliest");
                }
                Err(_) => {}
            }
            told.send_if_modified(|names| {
                let new = (!known.is_empty()).then(|| known.clone());
                let changed = *names != new;
                *names = new;
                changed
            });
        }
        std::future::pending::<()>().await;
    })
}

/// One namespace's probe.
struct Probe {
    client: Client,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    sandboxd_image: String,
    settings: NetworkSettings,
    isolation: watch::Sender<Isolation>,
    namespace: String,
}

impl Probe {
    async fn turn(
        &self,
        mut nodes: watch::Receiver<Option<BTreeSet<String>>>,
        disturbed: &Notify,
        stop: &CancellationToken,
    ) {
        let clock = BootClock;
        let mut ledger = Ledger::default();
        let mut silent = false;
        remove_stale(&self.client, &self.namespace).await;
        // A start does not try each node of a large cluster; only those that come later are tried one by one.
        if let Ok(Ok(known)) = timeout(FIRST_LIST, nodes.wait_for(Option::is_some)).await {
            known.iter().flatten().for_each(|node| ledger.aim(node));
        }
        loop {
            let began = Instant::now();
            let control = control(&self.client, self.settings.canary.as_ref()).await;
            let pause = if let Control::Unset = control {
                if !silent {
                    tracing::info!(
                        namespace = self.namespace,
                        "whether network policies are enforced is not tried: no canary is set"
                    );
                    silent = true;
                }
                EVERY
            } else {
                let all = nodes.borrow_and_update().clone();
                let finding = Box::pin(self.try_once(control, all.as_ref(), &mut ledger, &clock, stop)).await;
                let verdict = ledger.verdict(&self.namespace, clock.now());
                self.say(verdict, &finding).await;
                match finding {
                    Finding::Isolated if all.is_some_and(|all| ledger.untried(&all).is_some()) => AT_LEAST,
                    Finding::Isolated => EVERY,
                    Finding::Reached(_) | Finding::Nothing(_) => SOON,
                }
            };
            let disturbed = async {
                tokio::select! {
                    () = disturbed.notified() => {}
                    // Without the watch of the nodes nobody tells.
                    changed = nodes.changed() => if changed.is_err() { std::future::pending().await },
                }
                sleep_until(began + AT_LEAST).await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(began + pause) => {}
                () = disturbed => {}
            }
        }
    }

    /// One try, noted in the ledger.
    async fn try_once(
        &self,
        control: Control,
        nodes: Option<&BTreeSet<String>>,
        ledger: &mut Ledger,
        clock: &BootClock,
        stop: &CancellationToken,
    ) -> Finding {
        let Control::Tried { canaries, reached } = control else {
            return Finding::Nothing("the canary's addresses are not known".to_owned());
        };
        let mut prefer = None;
        if let Some(nodes) = nodes {
            ledger.keep(nodes);
            prefer = ledger.next(nodes);
            if let Some(node) = &prefer {
                ledger.aim(node);
            }
        }
        let ended = run_pod(&self.client, &self.namespace, &self.sandboxd_image, &canaries, prefer.as_deref(), stop);
        let (node, finding) = match Box::pin(ended).await {
            Ok(Ended { node, report }) => (node, judge(&reached, report)),
            Err(why) => return Finding::Nothing(why),
        };
        ledger.record(&node, &finding, clock.now());
        finding
    }

    /// Tells everybody, once for each change.
    async fn say(&self, verdict: Isolation, finding: &Finding) {
        if let Finding::Nothing(why) = finding {
            tracing::warn!(namespace = self.namespace, why, "whether network policies are enforced could not be tried");
        }
        self.metrics.network_isolated(&self.namespace, &verdict);
        let previous = self.isolation.send_replace(verdict.clone());
        let announcement = match (&previous, &verdict) {
            (Isolation::Broken(_), Isolation::Broken(_)) => None,
            (_, Isolation::Broken(sentence)) => {
                tracing::error!(namespace = self.namespace, detail = sentence, "network policies are not enforced");
                Some(announcement(EventType::Warning, Reason::NetworkNotIsolated, sentence))
            }
            (Isolation::Broken(_), Isolation::Isolated) => Some(announcement(
                EventType::Normal,
                Reason::Isolated,
                "the cluster was seen to enforce network policies",
            )),
            (Isolation::Unknown, Isolation::Isolated) => {
                tracing::info!(namespace = self.namespace, "network policies are enforced");
                None
            }
            (_, Isolation::Isolated | Isolation::Unknown) => None,
        };
        if let Some(announcement) = announcement {
            announce(&self.recorder, &self.reference(), &announcement).await;
        }
    }

    /// The Event is about the policy that denies everything.
    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("networking.k8s.io/v1".to_owned()),
            kind: Some("NetworkPolicy".to_owned()),
            name: Some(DENY_ALL.to_owned()),
            namespace: Some(self.namespace.clone()),
            ..ObjectReference::default()
        }
    }
}

fn announcement(type_: EventType, reason: Reason, message: &str) -> Announcement {
    Announcement { type_, reason: reason.as_str().to_owned(), message: message.to_owned() }
}
