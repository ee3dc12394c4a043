//! A model upstream of the Messages API that thinks nothing and says as much as it is asked to: as fast as it is read, or at a pace.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::{convert::Infallible, net::SocketAddr, time::Duration};
use tokio::net::TcpListener;

/// Time between the words of a stream that has a pace.
pub const PACE: Duration = Duration::from_millis(4);
/// What a prompt says after the number of words that are to have a pace.
pub const PACED: &str = " paced";

/// What the upstream answers to a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// So many deltas of text.
    Words(usize),
    /// As many, each by itself, with [`PACE`] between them.
    Paced(usize),
    /// One command.
    Command,
}

/// Starts it on a free port of loopback.
pub async fn start() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen")?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            // What is said at once arrives at once.
            let _ = connection.set_nodelay(true);
            let serving = http1::Builder::new()
                .serve_connection(TokioIo::new(connection), service_fn(async |request| answer(request).await));
            tokio::spawn(serving);
        }
    });
    Ok(address)
}

async fn answer(
    request: Request<Incoming>,
) -> Result<Response<StreamBody<impl Stream<Item = Result<Frame<Bytes>, Infallible>>>>> {
    let body: Value = serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?;
    let response = Response::builder().header(header::CONTENT_TYPE, "text/event-stream");
    Ok(response.body(StreamBody::new(events(asked(&body)).map(|event| Ok(Frame::data(event)))))?)
}

/// Prompts ask in their last block: for a number of words, or for a command; what a command has said is answered with few words.
fn asked(body: &Value) -> Answer {
    let last = |value: &Value| value.as_array().and_then(|list| list.last()).cloned().unwrap_or_default();
    let content = last(&body["messages"])["content"].clone();
    let text =
        content.as_str().map_or_else(|| last(&content)["text"].as_str().unwrap_or_default().to_owned(), str::to_owned);
    match text.as_str() {
        "run" => Answer::Command,
        text => match text.strip_suffix(PACED).map(str::parse) {
            Some(Ok(count)) => Answer::Paced(count),
            _ => Answer::Words(text.parse().unwrap_or(4)),
        },
    }
}

fn events(answer: Answer) -> impl Stream<Item = Bytes> {
    let (block, delta, count, reason) = match answer {
        Answer::Words(count) | Answer::Paced(count) => {
            let delta = json!({ "type": "text_delta", "text": "as many words as one " });
            (json!({ "type": "text", "text": "" }), delta, count, "end_turn")
        }
        Answer::Command => {
            let delta = json!({ "type": "input_json_delta", "partial_json": r#"{"command": "true"}"# });
            (
                json!({ "type": "tool_use", "id": "toolu_1", "name": "bash_code_execution", "input": {} }),
                delta,
                1,
                "tool_use",
            )
        }
    };
    let usage = json!({ "input_tokens": 10, "output_tokens": 1 });
    let message = json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "bench", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": usage });
    let begin = [
        frame(&json!({ "type": "message_start", "message": message })),
        frame(&json!({ "type": "content_block_start", "index": 0, "content_block": block })),
    ];
    let delta = frame(&json!({ "type": "content_block_delta", "index": 0, "delta": delta }));
    let end = [
        frame(&json!({ "type": "content_block_stop", "index": 0 })),
        frame(&json!({ "type": "message_delta", "delta": { "stop_reason": reason, "stop_sequence": null },
            "usage": { "input_tokens": 10, "output_tokens": count } })),
        frame(&json!({ "type": "message_stop" })),
    ];
    let paced = matches!(answer, Answer::Paced(_));
    let words = stream::iter(std::iter::repeat_n(delta, count)).then(move |delta| async move {
        if paced {
            tokio::time::sleep(PACE).await;
        }
        delta
    });
    stream::iter(begin).chain(words).chain(stream::iter(end))
}

fn frame(event: &Value) -> Bytes {
    format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_answered_as_they_ask() {
        let prompt = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
        for (content, answer) in [
            (json!("7"), Answer::Words(7)),
            (json!([{ "type": "text", "text": "7" }]), Answer::Words(7)),
            (json!("7 paced"), Answer::Paced(7)),
            (json!([{ "type": "text", "text": "run" }]), Answer::Command),
            (json!([{ "type": "tool_result", "tool_use_id": "toolu_1", "content": "" }]), Answer::Words(4)),
        ] {
            assert_eq!(asked(&prompt(content.clone())), answer, "{content}");
        }
    }
}
