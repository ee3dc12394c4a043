#![expect(clippy::needless_pass_by_value, reason = "JSON is written where it is passed")]

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wire::Surface;

use super::*;
use crate::testing::{DATED, code_tool, facts, history, read};

fn body(messages: Value) -> Value {
    json!({ "model": "m", "max_tokens": 64, "tools": [code_tool(DATED)], "messages": messages })
}

fn user(content: Value) -> Value {
    json!({ "role": "user", "content": content })
}

fn assistant(content: Value) -> Value {
    json!({ "role": "assistant", "content": content })
}

fn call(id: &str) -> Value {
    json!({ "type": "tool_use", "id": id, "name": "f", "input": {} })
}

fn answer(id: &str) -> Value {
    json!({ "type": "tool_result", "tool_use_id": id, "content": "r" })
}

fn bash(id: &str) -> Value {
    json!({ "type": "server_tool_use", "id": id, "name": "bash_code_execution", "input": { "command": "ls" }, "caller": { "type": "direct" } })
}

fn ran(id: &str, stdout: &str) -> Value {
    json!({ "type": "bash_code_execution_tool_result", "tool_use_id": id, "content": {
        "type": "bash_code_execution_result", "stdout": stdout, "stderr": "", "return_code": 0, "content": [] } })
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn refusal(messages: Value) -> String {
    match history(&body(messages.clone())) {
        Ok(_) => panic!("accepted: {messages}"),
        Err(error) => error.message,
    }
}

const NEEDS_RESULT: &str = "Each `tool_use` block must have a corresponding `tool_result` block in the next message.";
const NEEDS_USE: &str = "Each `tool_result` block must have a corresponding `tool_use` block in the previous message.";
const PREFILL: &str =
    "This model does not support assistant message prefill. The conversation must end with a user message.";
const UNRESOLVED: &str = "`bash_code_execution` tool use with id `srvtoolu_1` was found without a corresponding `bash_code_execution_tool_result` block";

#[test]
fn broken_histories_are_refused_in_the_contracts_words() {
    let without = |path: &str, ids: &str| {
        format!(
            "{path}: `tool_use` ids were found without `tool_result` blocks immediately after: {ids}. {NEEDS_RESULT}"
        )
    };
    let unexpected = |path: &str, id: &str| {
        format!("{path}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. {NEEDS_USE}")
    };
    let hi = || user(json!("hi"));
    for (name, messages, message) in [
        ("no results", json!([hi(), assistant(json!([call("a")])), user(json!("go on"))]), without("messages.1", "a")),
        ("no results at the end", json!([hi(), assistant(json!([call("a")]))]), without("messages.1", "a")),
        (
            "one of three",
            json!([hi(), assistant(json!([call("a"), call("b"), call("c")])), user(json!([answer("b")]))]),
            without("messages.1", "a, c"),
        ),
        (
            "too late",
            json!([hi(), assistant(json!([call("a")])), user(json!("x")), assistant(json!("y")), user(json!([answer("a")]))]),
            without("messages.1", "a"),
        ),
        ("no call", json!([user(json!([text("x"), answer("a")]))]), unexpected("messages.0.content.1", "a")),
        (
            "another's id",
            json!([hi(), assistant(json!([call("a")])), user(json!([answer("a"), answer("b")]))]),
            unexpected("messages.2.content.1", "b"),
        ),
        (
            "twice",
            json!([hi(), assistant(json!([call("a")])), user(json!([answer("a"), answer("a")]))]),
            "messages.2.content.1: each `tool_use` must have a single result. Found multiple `tool_result` blocks with id: a".into(),
        ),
        (
            "a client id used again",
            json!([hi(), assistant(json!([call("a")])), user(json!([answer("a")])), assistant(json!([call("a")])), user(json!([answer("a")]))]),
            "messages.3: `tool_use` ids must be unique: a".into(),
        ),
        ("prefill", json!([hi(), assistant(json!("Well"))]), PREFILL.into()),
        ("prefill after a result", json!([hi(), assistant(json!([bash("srvtoolu_1"), ran("srvtoolu_1", ""), text("So")]))]), PREFILL.into()),
        ("system last", json!([hi(), { "role": "system", "content": "x" }]), PREFILL.into()),
        ("closed by the user", json!([hi(), assistant(json!([bash("srvtoolu_1")])), user(json!("stop that"))]), UNRESOLVED.into()),
        (
            "closed long ago",
            json!([hi(), assistant(json!([bash("srvtoolu_1")])), user(json!("x")), assistant(json!("y")), user(json!("z"))]),
            UNRESOLVED.into(),
        ),
        (
            "results and more",
            json!([hi(), assistant(json!([bash("srvtoolu_1"), call("a")])), user(json!([answer("a"), text("x")]))]),
            UNRESOLVED.into(),
        ),
        (
            "foreign call",
            json!([hi(), assistant(json!([{ "type": "server_tool_use", "id": "srvtoolu_1", "name": "web_fetch", "input": {} }]))]),
            "`web_fetch` tool use with id `srvtoolu_1` was found without a corresponding `web_fetch_tool_result` block, but no `web_fetch` tool was provided".into(),
        ),
        (
            "result of nothing",
            json!([hi(), assistant(json!([ran("srvtoolu_9", "")])), user(json!("x"))]),
            "messages.1.content.0: unexpected `tool_use_id` found in `bash_code_execution_tool_result` blocks: srvtoolu_9. Each `bash_code_execution_tool_result` block must have a corresponding `server_tool_use` block before it.".into(),
        ),
        (
            "a server id used again",
            json!([hi(), assistant(json!([bash("srvtoolu_1"), ran("srvtoolu_1", ""), bash("srvtoolu_1")]))]),
            "messages.1.content.2: `server_tool_use` ids must be unique: srvtoolu_1".into(),
        ),
        (
            "code that is gone",
            json!([hi(), assistant(json!([{ "type": "tool_use", "id": "toolu_Y", "name": "f", "input": {},
                "caller": { "type": "code_execution_20260120", "tool_id": "srvtoolu_X" } }])), user(json!([answer("toolu_Y")]))]),
            "source tool `srvtoolu_X` not found for tool use block `toolu_Y`".into(),
        ),
    ] {
        assert_eq!(refusal(messages), message, "{name}");
    }
}

#[test]
fn uploads_need_the_tool() {
    let upload = json!([user(json!([text("x"), { "type": "container_upload", "file_id": "file_1" }]))]);
    let mut request = body(upload);
    assert!(history(&request).is_ok());
    request["tools"] = json!([]);
    let message = history(&request).unwrap_err().message;
    assert_eq!(message, "messages.0.content.1: `container_upload` blocks need a code execution tool in `tools`");
}

#[test]
fn an_upload_is_told_by_the_path_that_code_sees() {
    let request = body(json!([user(json!([text("Chart it."), { "type": "container_upload", "file_id": "file_1" }]))]));
    let request = read(&request, Surface::Anthropic).unwrap();
    let uploads = BTreeMap::from([("file_1".to_owned(), "/mnt/user-data/uploads/a.csv".to_owned())]);
    let history = History::read(&request, ToolProfile::of(&request, &facts()).as_ref(), &uploads).unwrap();
    assert_eq!(
        history.messages[0].content[1]["text"],
        "(A file was uploaded to the sandbox: /mnt/user-data/uploads/a.csv)"
    );
}

#[test]
fn the_prompt_holds_our_calls_as_client_tools() {
    let thinking = json!({ "type": "thinking", "thinking": "t", "signature": "s" });
    let messages = json!([
        user(json!("hi")),
        assistant(json!([
            thinking,
            text("I look."),
            text(""),
            bash("srvtoolu_1"),
            bash("srvtoolu_2"),
            ran("srvtoolu_1", "a\n"),
            ran("srvtoolu_2", ""),
            text("Done.")
        ])),
        user(json!([{ "type": "text", "text": "more", "citations": null }])),
        user(json!("and more")),
    ]);
    let prompt = history(&body(messages)).unwrap().messages;
    let roles: Vec<_> = prompt.iter().map(|message| message.role.name()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
    let tool_use =
        |id: &str| json!({ "type": "tool_use", "id": id, "name": "bash_code_execution", "input": { "command": "ls" } });
    assert_eq!(prompt[1].content, [thinking, text("I look."), tool_use("srvtoolu_1"), tool_use("srvtoolu_2")]);
    assert_eq!(
        prompt[2].content,
        [
            json!({ "type": "tool_result", "tool_use_id": "srvtoolu_1", "content": "exit_code: 0\n\nstdout:\na\n" }),
            json!({ "type": "tool_result", "tool_use_id": "srvtoolu_2", "content": "exit_code: 0" }),
        ]
    );
    assert_eq!(prompt[3].content, [text("Done.")]);
    assert_eq!(prompt[4].content, [text("more"), text("and more")], "one message of one speaker");
}

#[test]
fn results_come_first_in_the_prompt_wherever_the_client_puts_them() {
    let messages = json!([user(json!("hi")), assistant(json!([call("a")])), user(json!([text("look:"), answer("a")]))]);
    let prompt = history(&body(messages)).unwrap().messages;
    assert_eq!(prompt[2].content, [answer("a"), text("look:")]);
}

#[test]
fn finished_calls_from_code_are_not_the_models_business() {
    let from_code = json!({ "type": "tool_use", "id": "toolu_1", "name": "f", "input": {},
        "caller": { "type": "code_execution_20260120", "tool_id": "srvtoolu_1" } });
    let cell =
        json!({ "type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": { "code": "x" } });
    let done = json!({ "type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": {
        "type": "code_execution_result", "stdout": "7\n", "stderr": "", "return_code": 0, "content": [] } });
    let messages = json!([
        user(json!("hi")),
        assistant(json!([cell, from_code])),
        user(json!([answer("toolu_1")])),
        assistant(json!([done, text("Seven.")])),
        user(json!("thanks")),
    ]);
    let prompt = history(&body(messages)).unwrap().messages;
    let kinds: Vec<Vec<_>> =
        prompt.iter().map(|message| message.content.iter().map(|block| block["type"].clone()).collect()).collect();
    assert_eq!(kinds, [["text"], ["tool_use"], ["tool_result"], ["text"], ["text"]]);
}

#[test]
fn only_an_open_turn_has_a_container_of_its_own() {
    let hi = || user(json!("hi"));
    for (name, messages, open, container, deferred) in [
        ("new", json!([hi()]), false, None, 0),
        (
            "finished",
            json!([hi(), assistant(json!([bash("srvtoolu_1"), ran("srvtoolu_1", ""), text("x")])), hi()]),
            false,
            None,
            0,
        ),
        (
            "paused",
            json!([hi(), assistant(json!([bash("srvtoolu_1"), ran("srvtoolu_1", "")]))]),
            true,
            Some("container_1"),
            0,
        ),
        ("paused before the run", json!([hi(), assistant(json!([bash("srvtoolu_1")]))]), true, Some("container_1"), 1),
        (
            "deferred after a run of the same turn",
            json!([
                hi(),
                assistant(json!([bash("srvtoolu_0"), ran("srvtoolu_0", ""), text("old")])),
                hi(),
                assistant(json!([bash("srvtoolu_1"), ran("srvtoolu_1", ""), call("a")])),
                user(json!([answer("a")])),
                assistant(json!([bash("srvtoolu_2"), call("b")])),
                user(json!([answer("b")])),
            ]),
            true,
            Some("container_1"),
            1,
        ),
        ("client tools only", json!([hi(), assistant(json!([call("a")])), user(json!([answer("a")]))]), false, None, 0),
    ] {
        let history = history(&body(messages)).unwrap();
        assert_eq!(history.open_turn, open, "{name}");
        assert_eq!(history.turn_container.as_deref(), container, "{name}");
        assert_eq!(history.deferred.len(), deferred, "{name}");
    }
}
