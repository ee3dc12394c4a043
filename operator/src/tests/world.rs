//! A cluster of one sandbox, in memory: what the API server, the kubelet and the provisioner would do.

use crate::{
    decide::{Act, Plan, decide},
    fixture,
    history::History,
    observe::{ClaimPhase, ClaimSeen, Observed},
    pod_state::{PodSeen, PodState},
    status::{ready_words, says_something_new, with_trouble},
    trouble::Trouble,
    validate::{ValidSandbox, validate},
};
use crds::{Phase, Sandbox, SandboxStatus, SandboxTemplate};
use jiff::Timestamp;

/// The sandbox and all that exists of it.
pub(super) struct World {
    pub(super) sandbox: Option<Sandbox>,
    pub(super) template: Option<SandboxTemplate>,
    pub(super) seen: Observed,
    pub(super) history: History,
    pub(super) now: Timestamp,
    /// What the API server says to a pod that is made.
    pub(super) refuse: Option<Trouble>,
    pods_made: u32,
    /// Every write, in order.
    pub(super) writes: Vec<&'static str>,
}

impl World {
    pub(super) fn new(spec: &serde_json::Value) -> Self {
        Self {
            sandbox: Some(fixture::sandbox(spec)),
            template: Some(fixture::template(&serde_json::json!({ "image": "python:3" }))),
            seen: Observed::default(),
            history: History::default(),
            now: fixture::time(1),
            refuse: None,
            pods_made: 0,
            writes: Vec::new(),
        }
    }

    pub(super) fn valid(&self) -> ValidSandbox {
        validate(self.sandbox.as_ref().unwrap(), self.template.as_ref().map(Ok)).unwrap()
    }

    pub(super) fn status(&self) -> SandboxStatus {
        self.sandbox.as_ref().and_then(|sandbox| sandbox.status.clone()).unwrap_or_default()
    }

    pub(super) fn phase(&self) -> Option<Phase> {
        self.status().phase
    }

    pub(super) fn reason(&self) -> String {
        ready_words(&self.status()).map(|(reason, _)| reason.to_owned()).unwrap_or_default()
    }

    pub(super) fn plan(&self) -> Plan {
        decide(&self.valid(), &self.seen, &self.history, self.now)
    }

    /// One pass; whether it wrote anything.
    pub(super) fn pass(&mut self) -> bool {
        if self.sandbox.is_none() {
            return false;
        }
        let previous = self.status();
        let Plan { identity: _, act, mut status, history, requeue: _ } = self.plan();
        self.history = history;
        match self.act(&act) {
            None => {
                if let Act::Start { .. } = act {
                    self.history.trouble = None;
                }
            }
            Some(trouble) => {
                status = with_trouble(status, &previous, &trouble, self.now);
                self.history = self.history.failed(trouble);
            }
        }
        let news = says_something_new(&previous, &status);
        if let (Some(sandbox), true) = (&mut self.sandbox, news) {
            sandbox.status = Some(status);
            self.writes.push("status");
        }
        news || act != Act::Nothing
    }

    fn act(&mut self, act: &Act) -> Option<Trouble> {
        match act {
            Act::Nothing => None,
            Act::Start { new_claim } => {
                assert!(self.seen.pod.is_none(), "a second pod");
                if *new_claim {
                    self.writes.push("claim");
                    self.seen.claim =
                        Some(ClaimSeen { ours: true, phase: ClaimPhase::Pending, deleting: false, class: None });
                }
                self.writes.push("pod");
                if let Some(refusal) = &self.refuse {
                    return Some(refusal.clone());
                }
                self.pods_made += 1;
                self.seen.pod = Some(PodSeen {
                    uid: format!("pod-{}", self.pods_made),
                    ours: true,
                    template_hash: self.template.as_ref().map(|template| template.spec.pod_hash()),
                    created: Some(self.now),
                    node: None,
                    ips: Vec::new(),
                    state: PodState::Waiting { trouble: None, since: None },
                });
                None
            }
            Act::DeletePod { uid } => {
                self.writes.push("delete pod");
                let until = self.now;
                let found = self.seen.pod.as_mut().filter(|pod| pod.ours && &pod.uid == uid);
                let found = found.map(|pod| pod.state = PodState::Terminating { until });
                assert_eq!(found, Some(()), "a pod that is not ours");
                None
            }
            Act::DeleteSandbox => {
                self.writes.push("delete sandbox");
                (self.sandbox, self.seen) = (None, Observed::default());
                None
            }
        }
    }

    /// Passes until nothing is left to do.
    pub(super) fn settle(&mut self) {
        for _ in 0..20 {
            if !self.pass() {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", self.writes);
    }

    /// The kubelet and the provisioner do their work.
    pub(super) fn pod_runs(&mut self) {
        if let Some(claim) = &mut self.seen.claim {
            claim.phase = ClaimPhase::Bound;
        }
        self.pod_is(PodState::Ready);
    }

    pub(super) fn pod_is(&mut self, state: PodState) {
        self.seen.pod.as_mut().expect("a pod").state = state;
    }

    /// The kubelet confirms a deletion.
    pub(super) fn pod_is_gone(&mut self) {
        self.seen.pod = None;
    }

    pub(super) fn scale(&mut self, replicas: i32) {
        let sandbox = self.sandbox.as_mut().unwrap();
        sandbox.spec.replicas = replicas;
        sandbox.metadata.generation = sandbox.metadata.generation.map(|generation| generation + 1);
    }

    pub(super) fn annotate(&mut self, key: &str, value: &str) {
        let annotations = self.sandbox.as_mut().unwrap().metadata.annotations.get_or_insert_default();
        annotations.insert(key.to_owned(), value.to_owned());
    }

    pub(super) fn later(&mut self, seconds: i64) {
        self.now += jiff::SignedDuration::from_secs(seconds);
    }

    /// A sandbox that is Ready.
    pub(super) fn ready(spec: &serde_json::Value) -> Self {
        let mut world = Self::new(spec);
        world.settle();
        world.pod_runs();
        world.settle();
        assert_eq!(world.phase(), Some(Phase::Ready));
        world
    }

    pub(super) fn writes_of(&mut self, what: impl FnOnce(&mut Self)) -> Vec<&'static str> {
        self.writes.clear();
        what(self);
        std::mem::take(&mut self.writes)
    }
}
