//! One HTTP client for each upstream: sends, reads, and tells faults apart. What comes is read by the dialect's [`Reader`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::ModelEvent;
use futures_util::{StreamExt, stream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use jiff::Timestamp;
use serde_json::Value;

use crate::Sampling;
use crate::decode::{Decoder, Reader};
use crate::failure::{Fault, message_of, retry_after};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Upstreams send a `ping` or a comment while they think; who is silent for so long is gone. Bytes: several times what the longest
/// answer of one token an event has.
const LIMITS: Limits = Limits { gap: Duration::from_mins(2), bytes: 256 << 20 };
/// Of a body that is read whole, in bytes; of an error's, also in time.
const WHOLE_BODY: usize = 64 << 10;
const ERROR_TIME: Duration = Duration::from_secs(10);
/// What follows a stream's last event is a few bytes; with them read, the connection serves the next sampling.
const DRAIN: Duration = Duration::from_secs(5);

/// How much patience there is with one answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Time in which nothing comes.
    gap: Duration,
    /// Of the whole stream.
    bytes: usize,
}

/// One upstream.
pub(crate) struct Http {
    client: reqwest::Client,
    headers: HeaderMap,
    /// Never shown: keys and addresses.
    secrets: Vec<String>,
    /// For the log.
    model: String,
    limits: Limits,
}

impl Http {
    /// `headers` go with every request. The TLS of the process has to be installed.
    pub(crate) fn new(headers: HeaderMap, secrets: Vec<String>, model: String) -> Result<Self, reqwest::Error> {
        Self::with_limits(headers, secrets, model, LIMITS)
    }

    /// The same with another patience.
    pub(crate) fn with_limits(
        headers: HeaderMap,
        secrets: Vec<String>,
        model: String,
        limits: Limits,
    ) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(limits.gap)
            .tcp_keepalive(Duration::from_secs(30))
            // An upstream that points elsewhere would be given the key there.
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .build()?;
        Ok(Self { client, headers, secrets, model, limits })
    }

    fn request(&self, url: &str, body: &Value, more: Option<(HeaderName, HeaderValue)>) -> reqwest::RequestBuilder {
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("codeexec/", env!("CARGO_PKG_VERSION"))));
        headers.extend(more);
        self.client.post(url).headers(headers).body(body.to_string())
    }

    /// Sends, and answers with a success's head.
    async fn open(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, Fault> {
        let response = request.send().await.map_err(|error| self.fault(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(response.headers(), Timestamp::now());
        let body = tokio::time::timeout(ERROR_TIME, beginning(response)).await.unwrap_or_default();
        Err(Fault::Answer { status: status.as_u16(), message: message_of(&body), retry_after })
    }

    /// An answer in one piece.
    pub(crate) async fn whole(
        &self,
        url: &str,
        body: &Value,
        more: Option<(HeaderName, HeaderValue)>,
    ) -> Result<Value, Fault> {
        let response = self.open(self.request(url, body, more)).await?;
        let gap = self.limits.gap;
        let body = tokio::time::timeout(gap, beginning(response)).await.map_err(|_| Fault::Silent(gap))?;
        serde_json::from_slice(&body).map_err(|_| Fault::Malformed("the answer is not JSON"))
    }

    /// An answer in events. Nothing is sent before the first is asked for.
    pub(crate) fn stream(
        self: Arc<Self>,
        url: &str,
        body: &Value,
        more: Option<(HeaderName, HeaderValue)>,
        reader: impl Reader,
    ) -> Sampling {
        let step = Step::Send(Box::new(self.request(url, body, more)));
        let left = self.limits.bytes;
        let flow = Flow { http: self, decoder: Decoder::new(reader), step, ready: VecDeque::new(), left };
        stream::unfold(flow, Flow::next).boxed()
    }

    /// The client's failure for a fault, which is logged here: once, and without secrets.
    pub(crate) fn failure(&self, fault: &Fault) -> engine::ModelFailure {
        let failure = fault.failure(&self.secrets);
        tracing::warn!(
            model.name = self.model,
            error = fault.detail(&self.secrets),
            retryable = failure.retryable,
            "the model's upstream failed"
        );
        failure
    }

    fn fault(&self, error: &reqwest::Error) -> Fault {
        if error.is_connect() {
            Fault::Unreachable(root_cause(error))
        } else if error.is_timeout() {
            Fault::Silent(self.limits.gap)
        } else {
            Fault::Broken(root_cause(error))
        }
    }
}

/// The innermost cause: the outer ones name the address, and say nothing more.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// As much of a body as an error or a number needs.
async fn beginning(mut response: reqwest::Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(bytes)) = response.chunk().await {
        body.extend_from_slice(&bytes);
        if body.len() > WHOLE_BODY {
            break;
        }
    }
    body
}

enum Step {
    Send(Box<reqwest::RequestBuilder>),
    Read(Box<reqwest::Response>),
    Over,
}

struct Flow<R> {
    http: Arc<Http>,
    decoder: Decoder<R>,
    step: Step,
    ready: VecDeque<ModelEvent>,
    /// Bytes that may still come.
    left: usize,
}

impl<R: Reader> Flow<R> {
    async fn next(mut self) -> Option<(ModelEvent, Self)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                match event {
                    ModelEvent::End { .. } => self.finish(),
                    ModelEvent::Fail(_) => self.step = Step::Over,
                    ModelEvent::Start { .. } | ModelEvent::Open(_) | ModelEvent::Delta(_) | ModelEvent::Close => {}
                }
                return Some((event, self));
            }
            match self.advance().await {
                Ok(Some(events)) => self.ready.extend(events),
                Ok(None) => return None,
                Err(fault) => {
                    self.step = Step::Over;
                    self.ready.push_back(ModelEvent::Fail(self.http.failure(&fault)));
                }
            }
        }
    }

    /// The next events; `None` when all is over.
    async fn advance(&mut self) -> Result<Option<Vec<ModelEvent>>, Fault> {
        match &mut self.step {
            Step::Over => Ok(None),
            Step::Send(_) => {
                if let Step::Send(request) = std::mem::replace(&mut self.step, Step::Over) {
                    let response = self.http.open(*request).await?;
                    check_stream(response.headers())?;
                    self.step = Step::Read(Box::new(response));
                }
                Ok(Some(Vec::new()))
            }
            Step::Read(response) => match response.chunk().await {
                Ok(Some(bytes)) => self.read(&bytes).map(Some),
                Ok(None) => {
                    self.step = Step::Over;
                    self.decoder.at_end().map(Some)
                }
                Err(error) => Err(self.http.fault(&error)),
            },
        }
    }

    /// Events before a fault are said before it.
    fn read(&mut self, bytes: &Bytes) -> Result<Vec<ModelEvent>, Fault> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(Fault::Malformed("there is no end of the answer"))?;
        let mut events = Vec::new();
        if let Err(fault) = self.decoder.push(bytes, &mut events) {
            events.push(ModelEvent::Fail(self.http.failure(&fault)));
        }
        Ok(events)
    }

    /// Reads what is left of a good stream, so that its connection is used again.
    fn finish(&mut self) {
        self.ready.clear();
        if let Step::Read(mut response) = std::mem::replace(&mut self.step, Step::Over) {
            let rest = async move { while let Ok(Some(_)) = response.chunk().await {} };
            tokio::spawn(tokio::time::timeout(DRAIN, rest));
        }
    }
}

/// A proxy's page, or an upstream that does not stream.
fn check_stream(headers: &HeaderMap) -> Result<(), Fault> {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kind.starts_with("text/html") || kind.starts_with("application/json") {
        return Err(Fault::Malformed("the answer is no event stream"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
