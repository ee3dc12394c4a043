//! One streamed message, timed.

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The key that is sent: no secret, since everything listens on loopback alone.
pub const KEY: &str = "sk-bench";

/// Where messages are sent.
pub struct Target {
    http: reqwest::Client,
    url: String,
    tools: bool,
}

/// What came of a message.
pub struct Told {
    /// Until the first delta of text or of a call.
    pub first: Duration,
    /// Until the end.
    pub whole: Duration,
    /// Events.
    pub events: usize,
}

impl Target {
    /// `base` has no path; with `tools`, the code execution tool is offered.
    pub fn new(base: &str, tools: bool) -> Self {
        Self { http: reqwest::Client::new(), url: format!("{base}/v1/messages"), tools }
    }

    /// Sends `text`, in the container of this id if there is one.
    pub async fn send(&self, text: &str, container: Option<&str>) -> anyhow::Result<Told> {
        let (told, _) = self.exchange(text, container).await?;
        Ok(told)
    }

    /// The same; the container that was used.
    pub async fn container(&self, text: &str) -> anyhow::Result<String> {
        let (_, said) = self.exchange(text, None).await?;
        let end =
            said.lines().filter_map(|line| line.strip_prefix("data: ")).find(|data| data.contains("\"message_delta\""));
        let end: Value = serde_json::from_str(end.context("no end")?)?;
        Ok(end["delta"]["container"]["id"].as_str().context("no container")?.to_owned())
    }

    async fn exchange(&self, text: &str, container: Option<&str>) -> anyhow::Result<(Told, String)> {
        let mut body = json!({
            "model": "bench",
            "max_tokens": 1_000_000,
            "stream": true,
            "messages": [{ "role": "user", "content": text }],
        });
        if self.tools {
            body["tools"] = json!([{ "type": "code_execution_20250825", "name": "code_execution" }]);
        }
        if let Some(id) = container {
            body["container"] = id.into();
        }
        let request = self.http.post(&self.url).header("x-api-key", KEY).header("anthropic-version", "2023-06-01");
        let started = Instant::now();
        let mut response = request.json(&body).send().await.context("sending a message")?;
        let status = response.status();
        let (mut counter, mut first, mut tail) = (Counter::default(), None, Vec::new());
        while let Some(piece) = response.chunk().await.context("reading a stream")? {
            counter.read(&piece);
            if first.is_none() && counter.events > 2 {
                first = Some(started.elapsed());
            }
            keep_end(&mut tail, &piece);
        }
        let (whole, said) = (started.elapsed(), String::from_utf8_lossy(&tail).into_owned());
        ensure!(status.is_success() && said.contains("message_stop"), "{} answered {status}: {said}", self.url);
        Ok((Told { first: first.context("no events")?, whole, events: counter.events }, said))
    }
}

/// Bytes of an answer that are kept: its last events.
const END: usize = 8192;

fn keep_end(tail: &mut Vec<u8>, piece: &[u8]) {
    tail.extend_from_slice(piece);
    if tail.len() > 4 * END {
        tail.drain(..tail.len() - END);
    }
}

/// Counts events by the empty lines after them.
#[derive(Default)]
struct Counter {
    events: usize,
    /// The last byte ended a line.
    ended: bool,
}

impl Counter {
    fn read(&mut self, piece: &[u8]) {
        for byte in piece {
            match byte {
                b'\r' => {}
                b'\n' => {
                    self.events += usize::from(self.ended);
                    // An event ends once.
                    self.ended = !self.ended;
                }
                _ => self.ended = false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_however_they_are_cut() {
        let text = b"event: a\ndata: {}\n\nevent: b\r\ndata: {}\r\n\r\n";
        for size in 1..text.len() {
            let mut counter = Counter::default();
            text.chunks(size).for_each(|piece| counter.read(piece));
            assert_eq!(counter.events, 2, "in pieces of {size}");
        }
    }
}
