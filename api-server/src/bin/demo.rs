//! The main job once, on a real file: a CSV goes in, code computes from it, the result comes out and is saved.

use anyhow::{Context as _, bail, ensure};
use api_server::{
    Server,
    config::{Config, LogFormat},
    logging,
};
use clap::Parser;
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::{io::Write, path::PathBuf, process::ExitCode};

const CSV: &str = include_str!("../../../docs/examples/sales.csv");
/// Revenue by region, largest first.
const COMMAND: &str = r#"awk -F, 'NR > 1 { sum[$2] += $4 * $5 } END { for (region in sum) printf "%s,%.2f\n", region, sum[region] }' "$INPUT_DIR/sales.csv" |
  sort -t, -k2,2nr | sed '1i region,revenue' | tee "$OUTPUT_DIR/revenue.csv"
ls "$OUTPUT_DIR""#;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A sentence for the person at the terminal; nobody to tell when it cannot be written.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<()> {
    logging::init(LogFormat::Text, "warn");
    // A free port: the demo must not mind what else runs here.
    let mut config = Config::parse_from(["demo", "--listen", "127.0.0.1:0"]);
    config.data_dir = config.data_dir.join("demo");
    let server = Server::start(&config).await?;
    let outcome = main_job(&server, &config).await;
    server.stop().await;
    say(&format!("result: {}", outcome?.display()))?;
    say(NEXT_STEPS)
}

const NEXT_STEPS: &str = r#"
To go on, type `make run`: the server stays on 127.0.0.1:8080. Then, from another terminal in this folder, with curl:

curl -sS http://127.0.0.1:8080/v1/messages -H "x-api-key: $(cat target/run/api-key)" -H 'anthropic-version: 2023-06-01' -H 'content-type: application/json' -d '{"model": "demo", "max_tokens": 1024, "messages": [{"role": "user", "content": "```bash\nuname -sr\n```"}], "tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}'

or with the Python SDK (pip install anthropic):

import anthropic
client = anthropic.Anthropic(base_url="http://127.0.0.1:8080", api_key=open("target/run/api-key").read().strip())
tools = [{"type": "code_execution_20250825", "name": "code_execution"}]
print(client.messages.create(model="demo", max_tokens=1024, tools=tools, messages=[{"role": "user", "content": "```bash\nuname -sr\n```"}]))"#;

fn say(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{line}").context("writing to the terminal")
}

struct Client {
    http: reqwest::Client,
    base: String,
    key: String,
}

impl Client {
    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        request.header("x-api-key", &self.key).header("anthropic-version", "2023-06-01")
    }

    async fn send(request: reqwest::RequestBuilder) -> anyhow::Result<reqwest::Response> {
        let response = request.send().await.context("calling the server")?;
        let status = response.status();
        if status.is_success() {
            Ok(response)
        } else {
            bail!("the server answered {status}: {}", response.text().await?)
        }
    }
}

async fn main_job(server: &Server, config: &Config) -> anyhow::Result<PathBuf> {
    let key =
        server.own_key.clone().context("the demo makes its own key; unset CODEEXEC_KEYS_FILE and CODEEXEC_AUTH")?;
    let client = Client { http: reqwest::Client::new(), base: format!("http://{}", server.address), key };
    say(&format!("the server listens on {}, commands run under bubblewrap on this machine", client.base))?;

    say("\n1. upload docs/examples/sales.csv:  POST /v1/files")?;
    let part = reqwest::multipart::Part::text(CSV).file_name("sales.csv").mime_str("text/csv")?;
    let form = reqwest::multipart::Form::new().part("file", part);
    let file: Value =
        Client::send(client.request(reqwest::Method::POST, "/v1/files").multipart(form)).await?.json().await?;
    let file_id = file["id"].as_str().context("the upload has no id")?;
    say(&format!("   {file_id}, {} bytes", file["size_bytes"]))?;

    say("\n2. one streaming message whose code reads it:  POST /v1/messages")?;
    let output = stream_message(&client, file_id).await?;

    say(&format!("\n3. download what the code left in $OUTPUT_DIR:  GET /v1/files/{output}/content"))?;
    let content = Client::send(client.request(reqwest::Method::GET, &format!("/v1/files/{output}/content"))).await?;
    let path = std::path::absolute(config.data_dir.join("revenue.csv"))?;
    std::fs::write(&path, content.bytes().await?).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Sends the message, shows its events, and returns the id of the one file that the code left.
async fn stream_message(client: &Client, file_id: &str) -> anyhow::Result<String> {
    let prompt = format!(
        "What is the revenue by region?\n````bash\n{COMMAND}\n````\n```text\nThat is the revenue by region, largest first.\n```"
    );
    let body = json!({
        "model": "demo",
        "max_tokens": 4096,
        "stream": true,
        "tools": [{"type": "code_execution_20250825", "name": "code_execution"}],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": prompt},
            {"type": "container_upload", "file_id": file_id},
        ]}],
    });
    let response = Client::send(client.request(reqwest::Method::POST, "/v1/messages").json(&body)).await?;
    let (mut pieces, mut text, mut output) = (response.bytes_stream(), Vec::new(), None);
    while let Some(piece) = pieces.next().await {
        text.extend_from_slice(&piece.context("reading the events")?);
        while let Some(end) = text.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = text.drain(..end + 2).collect();
            let data =
                String::from_utf8_lossy(&event).lines().find_map(|line| line.strip_prefix("data: ").map(str::to_owned));
            let event: Value = serde_json::from_str(&data.context("an event without data")?)?;
            show(&event)?;
            let block = &event["content_block"]["content"];
            if let Some(id) = block["content"][0]["file_id"].as_str() {
                ensure!(block["return_code"] == 0, "the command failed: {block}");
                output = Some(id.to_owned());
            }
        }
    }
    output.context("the command left no file")
}

fn show(event: &Value) -> anyhow::Result<()> {
    let kind = event["type"].as_str().unwrap_or_default();
    let (block, delta) = (&event["content_block"], &event["delta"]);
    let detail = match kind {
        "content_block_start" => match block["content"]["stdout"].as_str() {
            Some(stdout) => format!("{}\n{}", text(&block["type"]), indented(stdout)),
            None => text(&block["type"]),
        },
        "content_block_delta" => format!("{}{}", text(&delta["partial_json"]), text(&delta["text"])),
        "message_delta" => {
            format!("stop_reason {}, container {}", text(&delta["stop_reason"]), text(&delta["container"]["id"]))
        }
        "error" => event["error"].to_string(),
        _ => String::new(),
    };
    say(&format!("   {kind:<20} {detail}"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("{:24}{line}", "")).collect::<Vec<_>>().join("\n")
}
