//! The calls of one cell for the client's tools: each made once, and answered once. No IO.
//!
//! What a call says comes from hostile code: it is kept as text, which is bounded, and never as a tree, which can be many
//! times as large.

use crate::{repl::message::NewCall, runs::table::refusal};
use bytes::Bytes;
use sandboxd_protocol::{
    CallResult, ErrorBody, ErrorCode, MAX_CALL_BYTES, MAX_CALLS, MAX_FRAME_PAYLOAD, MAX_PENDING_CALLS, MAX_RUN_BODY,
    ToolCall,
};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// The brackets of a list.
const BRACKETS: usize = 2;

/// How a call stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Pending,
    /// The code no longer waits for it.
    Closed,
    /// By the digest of its result.
    Given([u8; 32]),
}

#[derive(Debug)]
struct Made {
    /// A [`ToolCall`] as JSON.
    text: Bytes,
    answer: Answer,
}

/// All calls of a cell.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    made: Vec<Made>,
    bytes: usize,
    /// Results that the interpreter has not got.
    undelivered: Vec<CallResult>,
    undelivered_bytes: usize,
}

impl Calls {
    /// Bytes that are kept.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.bytes
    }

    /// Takes calls that the interpreter says its code makes, all or none; what is wrong with them otherwise.
    pub(crate) fn add(&mut self, offered: &BTreeSet<String>, calls: Vec<NewCall>) -> Result<(), &'static str> {
        let before = self.made.len();
        let added = self.add_all(offered, calls);
        if added.is_err() {
            self.made.truncate(before);
        }
        self.bytes = self.made.iter().map(|made| made.text.len()).sum();
        added
    }

    fn add_all(&mut self, offered: &BTreeSet<String>, calls: Vec<NewCall>) -> Result<(), &'static str> {
        let mut bytes = self.bytes;
        for NewCall { name, input } in calls {
            if !offered.contains(&name) {
                return Err("it called a tool that was not offered");
            }
            let id = self.made.len();
            // A name always serialises.
            let name = serde_json::to_string(&name).unwrap_or_default();
            let text = Bytes::from(format!("{{\"call_id\":{id},\"name\":{name},\"input\":{input}}}"));
            // Also how deep it is, and that it is an object.
            if serde_json::from_slice::<ToolCall>(&text).is_err() {
                return Err("its call cannot be read");
            }
            bytes += text.len();
            self.made.push(Made { text, answer: Answer::Pending });
            if self.made.len() > MAX_CALLS || bytes > MAX_CALL_BYTES {
                return Err("it made more calls than a cell may");
            }
        }
        let (count, bytes) = self.pending().fold((0, BRACKETS), |(n, sum), text| (n + 1, sum + text.len() + 1));
        if count > MAX_PENDING_CALLS || bytes > MAX_FRAME_PAYLOAD {
            return Err("more of its calls wait for results than may");
        }
        Ok(())
    }

    /// Notes that nobody waits for these any more.
    pub(crate) fn close(&mut self, ids: &[u32]) {
        for id in ids {
            if let Some(made) = self.get_mut(*id).filter(|made| made.answer == Answer::Pending) {
                made.answer = Answer::Closed;
            }
        }
    }

    /// Takes results, all or none. Again the same changes nothing.
    pub(crate) fn answer(&mut self, results: Vec<CallResult>) -> Result<(), ErrorBody> {
        let mut new: BTreeMap<u32, ([u8; 32], CallResult)> = BTreeMap::new();
        for result in results {
            let digest = digest(&result);
            let known = match self.get_mut(result.call_id).map(|made| &made.answer) {
                None => {
                    let message = format!("the run made no call {}", result.call_id);
                    return Err(refusal(ErrorCode::NotFound, message));
                }
                // It came too late to be of use, which is nobody's mistake.
                Some(Answer::Closed) => Some(digest),
                Some(Answer::Given(given)) => Some(*given),
                Some(Answer::Pending) => new.get(&result.call_id).map(|(given, _)| *given),
            };
            match known {
                Some(given) if given == digest => {}
                Some(_) => {
                    let message = format!("call {} has another result already", result.call_id);
                    return Err(refusal(ErrorCode::Conflict, message));
                }
                None => drop(new.insert(result.call_id, (digest, result))),
            }
        }
        let bytes: usize = new.values().map(|(_, result)| result.content.len()).sum();
        if self.undelivered_bytes + bytes > MAX_RUN_BODY {
            return Err(refusal(ErrorCode::TooLarge, "the cell has not taken its earlier results; send these later"));
        }
        self.undelivered_bytes += bytes;
        for (id, (digest, result)) in new {
            if let Some(made) = self.get_mut(id) {
                made.answer = Answer::Given(digest);
            }
            self.undelivered.push(result);
        }
        Ok(())
    }

    /// The results that the interpreter has to get.
    pub(crate) fn take_answers(&mut self) -> Vec<CallResult> {
        self.undelivered_bytes = 0;
        std::mem::take(&mut self.undelivered)
    }

    /// Whether some wait for results.
    pub(crate) fn is_any_pending(&self) -> bool {
        self.pending().next().is_some()
    }

    /// The calls that wait for results.
    pub(crate) fn pending_calls(&self) -> Vec<ToolCall> {
        // Made by us, so that all of them can be read.
        self.pending().filter_map(|text| serde_json::from_slice(text).ok()).collect()
    }

    /// What follows the first `from` calls, as a list that fits one frame, and how many those are.
    pub(crate) fn after(&self, from: usize) -> (usize, Vec<u8>) {
        let mut list = vec![b'['];
        let mut count = 0;
        for made in self.made.get(from..).unwrap_or_default() {
            if count > 0 && list.len() + made.text.len() + BRACKETS > MAX_FRAME_PAYLOAD {
                break;
            }
            if count > 0 {
                list.push(b',');
            }
            list.extend_from_slice(&made.text);
            count += 1;
        }
        list.push(b']');
        (count, list)
    }

    fn pending(&self) -> impl Iterator<Item = &Bytes> {
        self.made.iter().filter(|made| made.answer == Answer::Pending).map(|made| &made.text)
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut Made> {
        self.made.get_mut(usize::try_from(id).ok()?)
    }
}

fn digest(result: &CallResult) -> [u8; 32] {
    Sha256::new().chain_update([u8::from(result.is_error)]).chain_update(&result.content).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;

    fn new(name: &str, input: &str) -> NewCall {
        NewCall { name: name.into(), input: RawValue::from_string(input.into()).unwrap() }
    }

    fn calls(n: usize) -> Calls {
        let mut calls = Calls::default();
        calls.add(&BTreeSet::from(["t".into()]), (0..n).map(|_| new("t", "{}")).collect()).unwrap();
        calls
    }

    fn result(call_id: u32, content: &str) -> CallResult {
        CallResult { call_id, content: content.into(), is_error: false }
    }

    fn code(answer: Result<(), ErrorBody>) -> ErrorCode {
        answer.unwrap_err().code
    }

    #[test]
    fn a_result_counts_once_and_another_is_a_conflict() {
        let mut calls = calls(2);
        calls.answer(vec![result(1, "a")]).unwrap();
        calls.answer(vec![result(1, "a")]).unwrap();
        assert_eq!(calls.take_answers(), [result(1, "a")]);
        assert_eq!(code(calls.answer(vec![result(1, "b")])), ErrorCode::Conflict);
        assert_eq!(code(calls.answer(vec![CallResult { is_error: true, ..result(1, "a") }])), ErrorCode::Conflict);
        assert_eq!(code(calls.answer(vec![result(2, "a")])), ErrorCode::NotFound);
        assert_eq!(calls.pending_calls().iter().map(|call| call.call_id).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn results_are_taken_all_or_none() {
        let mut calls = calls(2);
        assert_eq!(code(calls.answer(vec![result(0, "a"), result(9, "a")])), ErrorCode::NotFound);
        assert_eq!(code(calls.answer(vec![result(0, "a"), result(0, "b")])), ErrorCode::Conflict);
        assert_eq!((calls.take_answers(), calls.pending_calls().len()), (vec![], 2));
    }

    #[test]
    fn a_late_result_changes_nothing() {
        let mut calls = calls(1);
        calls.close(&[0, 7]);
        calls.answer(vec![result(0, "late")]).unwrap();
        assert_eq!((calls.take_answers(), calls.is_any_pending()), (vec![], false));
    }

    #[test]
    fn calls_are_bounded_and_of_offered_tools() {
        let offered = BTreeSet::from(["t".into()]);
        let text = |length: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(length));
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
        for bad in [new("other", "{}"), new("t", "[]"), new("t", &deep), new("t", &text(MAX_FRAME_PAYLOAD))] {
            assert!(Calls::default().add(&offered, vec![bad]).is_err());
        }
        assert!(Calls::default().add(&offered, (0..=MAX_PENDING_CALLS).map(|_| new("t", "{}")).collect()).is_err());
        let mut calls = Calls::default();
        let large = text(60_000);
        let taken = (0..1000).take_while(|id| {
            let taken = calls.add(&offered, vec![new("t", &large)]).is_ok();
            calls.close(&[*id]);
            taken
        });
        assert_eq!(taken.count(), MAX_CALL_BYTES / 60_040);
    }

    #[test]
    fn numbers_of_any_length_stay_as_they_are_written() {
        let mut calls = Calls::default();
        let long = "{\"n\":123456789012345678901234567890}";
        calls.add(&BTreeSet::from(["t".into()]), vec![new("t", long)]).unwrap();
        let (_, list) = calls.after(0);
        assert_eq!(String::from_utf8(list).unwrap(), format!("[{{\"call_id\":0,\"name\":\"t\",\"input\":{long}}}]"));
    }

    #[test]
    fn a_joiner_gets_the_calls_after_its_own() {
        let calls = calls(3);
        let (count, list) = calls.after(1);
        let ids: Vec<_> = ToolCall::parse_list(&list).unwrap().iter().map(|call| call.call_id).collect();
        assert_eq!((count, ids), (2, vec![1, 2]));
        assert_eq!(calls.after(3).0, 0);
    }
}
