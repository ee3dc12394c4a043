//! A cluster of one sandbox, in memory: what the API server, the kubelet and the provisioner would do.

use crate::{
    clock::Now,
    decide::{Act, Plan, decide},
    fixture,
    history::History,
    observe::{ClaimOwner, ClaimPhase, ClaimSeen, Observed},
    pod_state::{PodSeen, PodState},
    status::{ready_words, says_something_new, suspended_reason, with_trouble},
    trouble::Trouble,
    validate::{ValidSandbox, WantedWorkspace, validate},
};
use crds::{Phase, Reason, Sandbox, SandboxStatus, SandboxTemplate, WhenDeleted, keys};
use jiff::SignedDuration;

/// The sandbox and all that exists of it, and what the operator has seen of that.
pub(super) struct World {
    pub(super) sandbox: Option<Sandbox>,
    pub(super) template: Option<SandboxTemplate>,
    pub(super) seen: Observed,
    pub(super) history: History,
    pub(super) now: Now,
    /// What the API server says to a pod that is made.
    pub(super) refuse: Option<Trouble>,
    pods_made: u32,
    versions: u32,
    /// What the watches have brought.
    cache: (Option<Sandbox>, Observed),
    last_activity: Now,
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
            now: Now { time: fixture::time(1), uptime: SignedDuration::from_secs(1) },
            refuse: None,
            pods_made: 0,
            versions: 1,
            cache: (None, Observed::default()),
            last_activity: Now { time: fixture::time(0), uptime: SignedDuration::ZERO },
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

    /// The watches bring everything.
    pub(super) fn refresh(&mut self) {
        self.cache = (self.sandbox.clone(), self.seen.clone());
    }

    pub(super) fn plan(&mut self) -> Plan {
        self.refresh();
        self.plan_on_cache().unwrap()
    }

    fn plan_on_cache(&self) -> Option<Plan> {
        let (sandbox, seen) = &self.cache;
        let valid = validate(sandbox.as_ref()?, self.template.as_ref().map(Ok)).unwrap();
        Some(decide(&valid, seen, &self.history, self.now))
    }

    /// One pass on all that there is; whether it wrote anything.
    pub(super) fn pass(&mut self) -> bool {
        self.refresh();
        self.pass_on_cache(usize::MAX)
    }

    /// One pass on what the watches have brought, of which only so many writes are sent before the process dies.
    pub(super) fn pass_on_cache(&mut self, writes: usize) -> bool {
        let (Some(plan), Some(seen_sandbox)) = (self.plan_on_cache(), self.cache.0.clone()) else { return false };
        let previous = seen_sandbox.status.clone().unwrap_or_default();
        let Plan { identity, act, mut status, history, requeue: _, question: _ } = plan;
        self.history = history;
        if act != Act::Nothing && writes == 0 {
            self.restart();
            return true;
        }
        if matches!(act, Act::DeletePod { .. }) && self.cache.1.pod != self.seen.pod {
            // The pod has another version by now.
            return true;
        }
        match self.act(&act, &identity.resource_version) {
            None => {
                if let Act::Start { .. } = act {
                    self.history.trouble = None;
                }
            }
            Some(trouble) if matches!(act, Act::Grow(..)) => {
                if let Act::Grow(_, size) = &act {
                    self.history.resize_refused = Some((size.clone(), trouble));
                }
            }
            Some(trouble) => {
                status = with_trouble(status, &previous, &trouble, self.now.time);
                self.history = self.history.failed(trouble);
            }
        }
        let news = says_something_new(&previous, &status);
        if news && writes <= usize::from(act != Act::Nothing) {
            self.restart();
            return true;
        }
        let outdated = self.version().as_ref() != Some(&identity.resource_version);
        if news && !outdated {
            self.write_status(status);
        }
        news || act != Act::Nothing
    }

    /// Everything that is remembered is lost.
    pub(super) fn restart(&mut self) {
        self.history = History::default();
    }

    fn version(&self) -> Option<String> {
        self.sandbox.as_ref().and_then(|sandbox| sandbox.metadata.resource_version.clone())
    }

    fn new_version(&mut self) {
        self.versions += 1;
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.metadata.resource_version = Some(self.versions.to_string());
        }
    }

    fn write_status(&mut self, status: SandboxStatus) {
        let stops = |phase| matches!(phase, Some(Phase::Suspending | Phase::Suspended));
        if stops(status.phase) && !stops(self.phase()) && suspended_reason(&status) == Some(Reason::Idle) {
            let unused = self.now.uptime - self.last_activity.uptime;
            assert!(Some(unused) >= self.valid().idle_timeout, "suspended after {unused:?}");
            assert_eq!(status.suspended_activity, Some(self.valid().activity.unwrap_or_default()));
        }
        let holds = |kind: &str| status.conditions.iter().any(|known| known.type_ == kind && known.status == "True");
        assert!(!(holds("Ready") && holds("Suspended")), "both Ready and Suspended");
        self.sandbox.as_mut().unwrap().status = Some(status);
        self.new_version();
        self.writes.push("status");
    }

    /// What the API server does with it: objects that exist are not made again, and what is deleted must be what was decided on.
    fn act(&mut self, act: &Act, version: &str) -> Option<Trouble> {
        self.sandbox.as_ref()?;
        match act {
            Act::Nothing => None,
            Act::Start { new_claim } => {
                if *new_claim && self.seen.claim.is_none() {
                    self.writes.push("claim");
                    self.seen.claim = Some(self.new_claim());
                }
                if self.seen.pod.is_some() {
                    return None;
                }
                self.writes.push("pod");
                if let Some(refusal) = &self.refuse {
                    return Some(refusal.clone());
                }
                self.pods_made += 1;
                self.seen.pod = Some(PodSeen {
                    name: self.valid().child.to_string(),
                    uid: format!("pod-{}", self.pods_made),
                    resource_version: String::new(),
                    ours: true,
                    template_hash: self.valid().source.ok().map(|source| source.hash),
                    created: Some(self.now.time),
                    node: None,
                    ips: Vec::new(),
                    state: PodState::Waiting { trouble: None, since: None },
                });
                None
            }
            Act::TakeBack(claim) => {
                if !self.seen.left_behind.contains(claim) {
                    return None;
                }
                self.writes.push("take back");
                self.seen.left_behind.clear();
                self.seen.claim = Some(ClaimSeen { owner: ClaimOwner::Retained, ..claim.clone() });
                None
            }
            Act::Grow(claim, size) => {
                self.writes.push("grow");
                if let Some(refusal) = &self.refuse {
                    return Some(refusal.clone());
                }
                self.seen.claim = Some(ClaimSeen { requested: Some(size.clone()), ..claim.clone() });
                None
            }
            Act::DeletePod { name: _, uid, resource_version: _ } => {
                self.writes.push("delete pod");
                let until = self.now.time;
                let broken = self.valid().replace_pod.as_ref() == Some(uid);
                let phase = self.phase();
                if let Some(pod) = self.seen.pod.as_mut().filter(|pod| &pod.uid == uid) {
                    assert!(pod.ours, "a pod that is not ours");
                    assert!(pod.state != PodState::Ready || broken || phase == Some(Phase::Suspending), "a pod in use");
                    pod.state = PodState::Terminating { until };
                }
                None
            }
            Act::DeleteSandbox => {
                if self.version().as_deref() != Some(version) {
                    return None;
                }
                self.writes.push("delete sandbox");
                (self.sandbox, self.seen) = (None, Observed::default());
                None
            }
        }
    }

    /// A claim as the API server makes it.
    pub(super) fn new_claim(&self) -> ClaimSeen {
        let (requested, owner) = match self.valid().workspace {
            WantedWorkspace::Own { size, when_deleted: WhenDeleted::Delete, .. } => (Some(size), ClaimOwner::Owned),
            WantedWorkspace::Own { size, when_deleted: WhenDeleted::Retain, .. } => (Some(size), ClaimOwner::Retained),
            WantedWorkspace::Existing(_) => (None, ClaimOwner::Mountable),
        };
        ClaimSeen {
            name: self.valid().child.to_string(),
            uid: "claim-1".to_owned(),
            resource_version: "7".to_owned(),
            owner,
            phase: ClaimPhase::Pending,
            deleting: false,
            created: Some(self.now.time),
            class: None,
            capacity: requested.clone(),
            requested,
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
        self.new_version();
    }

    pub(super) fn annotate(&mut self, key: &str, value: &str) {
        let annotations = self.sandbox.as_mut().unwrap().metadata.annotations.get_or_insert_default();
        let known = annotations.insert(key.to_owned(), value.to_owned());
        if key == keys::ACTIVITY && known.as_deref() != Some(value) {
            self.last_activity = self.now;
        }
        self.new_version();
    }

    pub(super) fn touch(&mut self, token: &str) {
        self.annotate(keys::ACTIVITY, token);
    }

    /// The spec gets these fields.
    pub(super) fn edit(&mut self, spec: &serde_json::Value) {
        let sandbox = self.sandbox.as_mut().unwrap();
        sandbox.spec = serde_json::from_value(spec.clone()).unwrap();
        sandbox.metadata.generation = sandbox.metadata.generation.map(|generation| generation + 1);
        self.new_version();
    }

    pub(super) fn condition(&self, kind: &str) -> Option<(String, String)> {
        let status = self.status();
        let found = status.conditions.iter().find(|condition| condition.type_ == kind)?;
        Some((found.status.clone(), found.reason.clone()))
    }

    pub(super) fn later(&mut self, seconds: i64) {
        let passed = SignedDuration::from_secs(seconds);
        self.now = Now { time: self.now.time + passed, uptime: self.now.uptime + passed };
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
