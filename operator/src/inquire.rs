//! Answers the questions of a plan, only when it matters. What many Sandboxes ask at the same time is asked once for all of them: an Event
//! is found by reading every Event of the namespace, whatever the request names.

use crate::{
    apply::request,
    observe::{Facts, Question, Warning},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Event, Node},
    storage::v1::StorageClass,
};
use kube::{Api, Client, api::ListParams};
use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

/// An answer serves everybody who asks the same within this time.
const ANSWER_LASTS: Duration = Duration::from_secs(2);
/// Events of one page.
const PAGE: u32 = 500;

/// Asks for all Sandboxes of one namespace.
pub struct Inquirer {
    client: Client,
    namespace: String,
    classes: Answers<String, Option<bool>>,
    nodes: Answers<String, Option<String>>,
    /// The last warning about each object, by its UID.
    warnings: Answers<(), HashMap<String, Warning>>,
}

impl Inquirer {
    /// Asks this cluster about this namespace.
    pub fn new(client: Client, namespace: String) -> Self {
        let (classes, nodes, warnings) = (Answers::default(), Answers::default(), Answers::default());
        Self { client, namespace, classes, nodes, warnings }
    }

    /// The facts with the answer to this question. Where nobody answers, nothing is taken to be wrong.
    pub async fn inquire(&self, question: Question, facts: Facts) -> Facts {
        match question {
            Question::StorageClass(name) => {
                let exists = |found: &Option<bool>| Some(found.unwrap_or(true));
                let storage_class_exists = self.classes.get(name.clone(), self.class_exists(&name), exists).await;
                Facts { storage_class_exists, ..facts }
            }
            Question::Node(name) => {
                let node_trouble = Some(self.nodes.get(name.clone(), self.node_trouble(&name), Clone::clone).await);
                Facts { node_trouble, ..facts }
            }
            Question::PodWarning(uid) => Facts { pod_warning: Some(self.last_warning(&uid).await), ..facts },
            Question::ClaimWarning(uid) => Facts { claim_warning: Some(self.last_warning(&uid).await), ..facts },
        }
    }

    async fn class_exists(&self, name: &str) -> Option<bool> {
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        let found = request("reading storage class", name, classes.get_opt(name)).await;
        Some(found.ok()?.ok()?.is_some())
    }

    async fn node_trouble(&self, name: &str) -> Option<String> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        match request("reading node", name, nodes.get_opt(name)).await.ok()?.ok()? {
            Some(node) => node_trouble(&node),
            None => Some("it does not exist any more".to_owned()),
        }
    }

    async fn last_warning(&self, uid: &str) -> Option<Warning> {
        self.warnings.get((), self.all_warnings(), |all| all.get(uid).cloned()).await
    }

    /// Page by page, keeping only the last of each object. A page that cannot be read ends it.
    async fn all_warnings(&self) -> HashMap<String, Warning> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut latest = Latest::default();
        let mut params = ListParams::default().fields("type=Warning").limit(PAGE);
        while let Ok(Ok(page)) = request("reading the events of", &self.namespace, events.list(&params)).await {
            page.items.into_iter().for_each(|event| latest.add(event));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => break,
            }
        }
        latest.warnings()
    }
}

/// Answers by what was asked. Whoever asks while the same is being asked waits for that answer.
struct Answers<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K, V> Default for Answers<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq, V> Answers<K, V> {
    /// What is wanted of a recent answer, or of a new one.
    async fn get<T>(&self, key: K, ask: impl Future<Output = V>, wanted: impl FnOnce(&V) -> T) -> T {
        let mut known = self.0.lock().await;
        known.retain(|_, (_, at)| at.elapsed() < ANSWER_LASTS);
        if let Some((answer, _)) = known.get(&key) {
            return wanted(answer);
        }
        let answer = ask.await;
        let result = wanted(&answer);
        known.insert(key, (answer, Instant::now()));
        result
    }
}

/// What the control plane says of a node that is not well.
fn node_trouble(node: &Node) -> Option<String> {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready")?;
    let words =
        || ready.message.clone().or_else(|| ready.reason.clone()).unwrap_or_else(|| "it is not ready".to_owned());
    (ready.status != "True").then(words)
}

/// The last warning about each object.
#[derive(Default)]
struct Latest(HashMap<String, (Option<Timestamp>, Warning)>);

impl Latest {
    fn add(&mut self, event: Event) {
        let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        let time = series.or(last).or_else(|| event.event_time.as_ref().map(|time| time.0));
        let (Some(uid), Some(reason), Some(message)) = (event.involved_object.uid, event.reason, event.message) else {
            return;
        };
        if self.0.get(&uid).is_none_or(|(known, _)| *known <= time) {
            self.0.insert(uid, (time, Warning { reason, message }));
        }
    }

    fn warnings(self) -> HashMap<String, Warning> {
        self.0.into_iter().map(|(uid, (_, warning))| (uid, warning)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn event(uid: &str, reason: &str, times: &Value) -> Event {
        let mut event =
            json!({ "metadata": {}, "involvedObject": { "uid": uid }, "reason": reason, "message": "words" });
        event.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
        serde_json::from_value(event).unwrap()
    }

    #[test]
    fn the_last_event_of_each_object_counts_however_its_time_is_written() {
        let mut latest = Latest::default();
        for event in [
            event("a", "Old", &json!({ "lastTimestamp": "2026-01-01T00:00:00Z" })),
            event(
                "a",
                "Repeated",
                &json!({ "eventTime": "2025-01-01T00:00:00.000000Z", "series": { "count": 3, "lastObservedTime": "2026-01-01T00:00:09.000000Z" } }),
            ),
            event("a", "New", &json!({ "eventTime": "2026-01-01T00:00:05.000000Z" })),
            event("b", "Other", &json!({})),
        ] {
            latest.add(event);
        }
        let warnings = latest.warnings();
        assert_eq!((warnings["a"].reason.as_str(), warnings["b"].reason.as_str()), ("Repeated", "Other"));
        assert_eq!(warnings.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn many_who_ask_the_same_at_once_are_answered_by_one_request() {
        let (answers, asked) = (Answers::<&str, u32>::default(), std::sync::atomic::AtomicU32::new(0));
        let ask = || async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        };
        let all = futures_util::future::join_all((0..50).map(|_| answers.get("one", ask(), |answer| *answer))).await;
        assert_eq!((all, asked.load(std::sync::atomic::Ordering::Relaxed)), (vec![0; 50], 1));
        assert_eq!(answers.get("other", ask(), |answer| *answer).await, 1);
    }

    #[test]
    fn a_node_is_in_trouble_when_its_ready_condition_is_not_true() {
        let node = |status: &str| -> Node {
            serde_json::from_value(json!({ "metadata": {}, "status": { "conditions": [
                { "type": "MemoryPressure", "status": "False" },
                { "type": "Ready", "status": status, "message": "Kubelet stopped posting node status." },
            ] } }))
            .unwrap()
        };
        assert_eq!(node_trouble(&node("True")), None);
        assert_eq!(node_trouble(&node("Unknown")).unwrap(), "Kubelet stopped posting node status.");
    }
}
