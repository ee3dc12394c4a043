#![expect(clippy::needless_pass_by_value, reason = "JSON is written where it is passed")]
#![expect(clippy::too_many_lines, reason = "a table of cases")]

use serde_json::{Value, json};

use super::*;
use crate::{CodeToolVersion, SUPPORTED_SERVER_TOOLS, Tool};

const ANTHROPIC: Rules = Rules { surface: Surface::Anthropic, version: ApiVersion::Current, default_max_tokens: None };
const ZYLON: Rules = Rules { surface: Surface::Zylon, version: ApiVersion::Previous, default_max_tokens: Some(4_096) };

fn request(changes: Value) -> Value {
    let mut body =
        json!({ "model": "local-model", "max_tokens": 64, "messages": [{ "role": "user", "content": "hi" }] });
    for (key, value) in changes.as_object().unwrap() {
        if value == "ABSENT" {
            body.as_object_mut().unwrap().shift_remove(key);
        } else {
            body[key] = value.clone();
        }
    }
    body
}

fn user(block: Value) -> Value {
    json!({ "messages": [{ "role": "user", "content": [block] }] })
}

fn assistant(block: Value) -> Value {
    json!({ "messages": [{ "role": "user", "content": "hi" }, { "role": "assistant", "content": [block] }] })
}

fn refusal(changes: Value, rules: &Rules) -> String {
    match MessagesRequest::from_value(&request(changes.clone()), rules) {
        Ok(_) => panic!("accepted: {changes}"),
        Err(error) => {
            assert_eq!(error.kind, crate::ErrorType::InvalidRequest);
            error.message
        }
    }
}

#[test]
fn refusals_name_the_path_and_the_reason() {
    let tool = |entry: Value| json!({ "tools": [entry] });
    for (changes, message) in [
        (json!({ "max_tokens": "ABSENT" }), "max_tokens: Field required"),
        (json!({ "max_tokens": 0 }), "max_tokens: Input should be greater than or equal to 1"),
        (json!({ "max_tokens": -5 }), "max_tokens: Input should be greater than or equal to 1"),
        (json!({ "max_tokens": "many" }), "max_tokens: Input should be a valid integer"),
        (json!({ "max_tokens": null }), "max_tokens: Input should be a valid integer"),
        (json!({ "model": "ABSENT" }), "model: Field required"),
        (json!({ "messages": "ABSENT" }), "messages: Field required"),
        (json!({ "messages": [] }), "messages: at least one message is required"),
        (json!({ "messages": [{ "content": "x" }] }), "messages.0.role: Field required"),
        (
            json!({ "messages": [{ "role": "tool", "content": "x" }] }),
            "messages.0.role: Input should be 'user', 'assistant' or 'system'",
        ),
        (json!({ "messages": [{ "role": "user" }] }), "messages.0.content: Field required"),
        (
            json!({ "messages": [{ "role": "user", "content": "" }] }),
            "messages.0: user messages must have non-empty content",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": [] }] }),
            "messages.0: user messages must have non-empty content",
        ),
        (json!({ "bogus": 1 }), "bogus: Extra inputs are not permitted"),
        (json!({ "temperature": 0.5 }), "temperature: Extra inputs are not permitted"),
        (json!({ "top_p": null }), "top_p: Extra inputs are not permitted"),
        (json!({ "top_k": 1 }), "top_k: Extra inputs are not permitted"),
        (json!({ "container": 5 }), "container: Input should be a valid string or an object with `id`"),
        (json!({ "container": { "id": 5 } }), "container.id: Input should be a valid string"),
        (json!({ "container": { "idd": "x" } }), "container.idd: Extra inputs are not permitted"),
        (
            json!({ "container": { "skills": [{ "type": "anthropic", "skill_id": "xlsx" }] } }),
            "container.skills: skills are not supported by this server",
        ),
        (json!({ "stream": "yes" }), "stream: Input should be a valid boolean"),
        (json!({ "stop_sequences": [" "] }), "stop_sequences.0: each stop sequence must contain non-whitespace"),
        (
            json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } }),
            "`max_tokens` must be greater than `thinking.budget_tokens`",
        ),
        (json!({ "mcp_servers": [{}] }), "mcp_servers: not supported by this server"),
        (
            tool(json!({ "type": "code_execution_20250825", "name": "other" })),
            "tools.0.name: Input should be 'code_execution'",
        ),
        (tool(json!({ "type": "code_execution_20250825" })), "tools.0.name: Field required"),
        (
            tool(json!({ "type": "code_execution_20250825", "name": "code_execution", "x": 1 })),
            "tools.0.x: Extra inputs are not permitted",
        ),
        (tool(json!({ "name": "f" })), "tools.0.input_schema: Field required"),
        (
            tool(json!({ "name": "f g", "input_schema": {} })),
            "tools.0.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'",
        ),
        (
            tool(json!({ "name": "f", "input_schema": {}, "allowed_callers": ["code_execution_20260120"] })),
            "tools.0.allowed_callers: calls from code need `code_execution_20260120` or `code_execution_20260521` in `tools`",
        ),
        (
            json!({ "tool_choice": { "type": "tool", "name": "f" } }),
            "tool_choice: Tool 'f' not found in provided tools",
        ),
        (user(json!({ "type": "text" })), "messages.0.content.0.text: Field required"),
        (user(json!({ "type": "container_upload" })), "messages.0.content.0.file_id: Field required"),
        (
            user(json!({ "type": "nonsense" })),
            "messages.0.content.0: Input tag 'nonsense' found using 'type' does not match any of the expected tags",
        ),
        (
            user(json!({ "type": "text", "text": "x", "citations": [{}] })),
            "messages.0.content.0.citations: Extra inputs are not permitted",
        ),
        (
            user(json!({ "type": "server_tool_use", "id": "srvtoolu_1", "name": "x", "input": {} })),
            "messages.0.content.0: `server_tool_use` blocks are not permitted in `user` messages",
        ),
        (
            user(json!({ "type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": {} })),
            "messages.0.content.0: `bash_code_execution_tool_result` blocks are not permitted in `user` messages",
        ),
        (
            assistant(json!({ "type": "document", "source": {} })),
            "messages.1.content.0: `document` blocks are not permitted in assistant messages",
        ),
        (
            assistant(json!({ "type": "server_tool_use", "id": "srvtoolu_a-b", "name": "x", "input": {} })),
            "messages.1.content.0.id: String should match pattern '^srvtoolu_[a-zA-Z0-9_]+$'",
        ),
        (
            assistant(json!({ "type": "tool_use", "id": "toolu_1", "name": "x", "input": "{" })),
            "messages.1.content.0.input: Input should be a valid dictionary",
        ),
        (
            assistant(json!({ "type": "container_upload", "file_id": "file_1" })),
            "messages.1.content.0: `container_upload` blocks are not permitted in `assistant` messages",
        ),
    ] {
        assert_eq!(refusal(changes, &ANTHROPIC), message);
    }
}

#[test]
fn unsupported_server_tools_are_refused_with_the_types_that_are() {
    for kind in [
        "code_execution_20991231",
        "code_execution_2025082",
        "web_search_20250305",
        "web_fetch_20260309",
        "tool_search_tool_regex",
        "browser_toolset_20260801",
        "computer_toolset_20260801",
        "bash_code_execution_v1",
        "text_editor_v1",
        "bash_v1",
        "advisor_20260301",
    ] {
        for rules in [ANTHROPIC, ZYLON] {
            let message = refusal(json!({ "tools": [{ "type": kind, "name": "code_execution" }] }), &rules);
            assert!(message.starts_with(&format!("tools.0.type: `{kind}` is not supported")), "{message}");
            for supported in SUPPORTED_SERVER_TOOLS {
                assert!(message.contains(&format!("`{supported}`")), "{message}");
            }
        }
    }
}

#[test]
fn each_code_execution_type_is_a_version_with_the_same_fields() {
    let versions: Vec<_> = SUPPORTED_SERVER_TOOLS
        .into_iter()
        .map(|kind| {
            let tool = json!({ "type": kind, "name": "code_execution", "cache_control": { "type": "ephemeral" }, "strict": null });
            let read = MessagesRequest::from_value(&request(json!({ "tools": [tool] })), &ANTHROPIC).unwrap();
            let Tool::Code(code) = &read.tools[0] else { panic!("{kind} is a client tool") };
            assert!(code.cache_control.is_some(), "{kind}");
            for (field, value, at) in [
                ("name", json!("python"), "tools.0.name: "),
                ("x", json!(1), "tools.0.x: "),
                ("defer_loading", json!(true), "tools.0.defer_loading: "),
                ("allowed_callers", json!(["code_execution_20260120"]), "tools.0.allowed_callers: "),
            ] {
                let mut tool = json!({ "type": kind, "name": "code_execution" });
                tool[field] = value;
                let message = refusal(json!({ "tools": [tool] }), &ANTHROPIC);
                assert!(message.starts_with(at), "{kind} {message}");
            }
            code.version
        })
        .collect();
    let expected = [
        CodeToolVersion::Dated20250522,
        CodeToolVersion::Dated20250825,
        CodeToolVersion::Dated20260120,
        CodeToolVersion::Dated20260521,
        CodeToolVersion::V1,
    ];
    assert_eq!(versions, expected);
}

#[test]
fn the_clients_tools_say_who_calls_them() {
    let code = json!({ "type": "code_execution_20260521", "name": "code_execution" });
    let client =
        |callers: Value| json!({ "name": "f", "input_schema": { "type": "object" }, "allowed_callers": callers });
    for (callers, direct, from_code) in [
        (json!(null), true, false),
        (json!([]), true, false),
        (json!(["direct"]), true, false),
        (json!(["code_execution_20250825"]), true, false),
        (json!(["code_execution_20260120"]), false, true),
        (json!(["direct", "code_execution_20260521"]), true, true),
    ] {
        let body = request(json!({ "tools": [client(callers.clone()), code] }));
        let read = MessagesRequest::from_value(&body, &ANTHROPIC).unwrap();
        let Tool::Client(tool) = &read.tools[0] else { panic!("not the client's") };
        assert_eq!((tool.callers.direct, tool.callers.code), (direct, from_code), "{callers}");
        assert_eq!(tool.definition.get("allowed_callers"), None);
    }
    let from_code = client(json!(["code_execution_20260120"]));
    let changed = |key: &str, value: Value| {
        let mut tool = from_code.clone();
        tool[key] = value;
        json!({ "tools": [tool, code] })
    };
    let chosen = |choice: Value| json!({ "tools": [from_code, code], "tool_choice": choice });
    for (changes, starts) in [
        (
            changed("allowed_callers", json!(["code_execution_20991231"])),
            "tools.0.allowed_callers: Input should be 'direct', ",
        ),
        (changed("allowed_callers", json!("direct")), "tools.0.allowed_callers: Input should be a valid list"),
        (changed("strict", json!(true)), "tools.0.strict: "),
        (changed("input_schema", json!({ "$ref": "#" })), "tools.0.input_schema: Circular $ref detected"),
        (changed("type", json!("bash_20250124")), "tools.0.allowed_callers: only tools of the type `custom`"),
        (chosen(json!({ "type": "tool", "name": "f" })), "tool_choice: Tool 'f' is called from code only"),
        (
            chosen(json!({ "type": "auto", "disable_parallel_tool_use": true })),
            "tool_choice.disable_parallel_tool_use: ",
        ),
        (
            json!({ "tools": [from_code, { "type": "code_execution_20250522", "name": "code_execution" }] }),
            "tools.0.allowed_callers: calls from code need",
        ),
    ] {
        let message = refusal(changes, &ANTHROPIC);
        assert!(message.starts_with(starts), "{message}");
    }
}

#[test]
fn tool_names_are_unique() {
    let client = |name: &str| json!({ "name": name, "input_schema": { "type": "object" } });
    let code = json!({ "type": "code_execution_20250825", "name": "code_execution" });
    for tools in [
        json!([client("f"), client("f")]),
        json!([code, code]),
        json!([code, client("code_execution")]),
        json!([client("bash_code_execution"), code]),
    ] {
        let error = MessagesRequest::from_value(&request(json!({ "tools": tools })), &ANTHROPIC).unwrap_err();
        assert_eq!(error.error_code, Some("tool_name_conflict"), "{tools}");
    }
    assert!(
        MessagesRequest::from_value(&request(json!({ "tools": [client("bash_code_execution")] })), &ANTHROPIC).is_ok()
    );
}

#[test]
fn a_thread_is_refused_with_the_code_that_the_tool_runners_look_for() {
    for rules in [ANTHROPIC, ZYLON] {
        let body = json!({ "thread": { "type": "create" }, "model": "m" });
        let error = MessagesRequest::from_value(&body, &rules).unwrap_err();
        assert_eq!((error.status(), error.error_code), (400, Some("thread_unsupported_request")));
    }
    assert!(MessagesRequest::from_value(&request(json!({ "thread": null })), &ANTHROPIC).is_ok());
}

#[test]
fn the_previous_version_takes_sampling_parameters_and_old_block_places() {
    let previous = Rules { version: ApiVersion::Previous, ..ANTHROPIC };
    let read = MessagesRequest::from_value(&request(json!({ "temperature": 0.5, "top_k": 3 })), &previous).unwrap();
    assert_eq!(read.options["temperature"], 0.5);
    for changes in [
        user(json!({ "type": "text", "text": "x", "citations": [{}] })),
        assistant(json!({ "type": "document", "source": {} })),
    ] {
        assert!(MessagesRequest::from_value(&request(changes), &previous).is_ok());
    }
}

#[test]
fn the_zylon_surface_is_lenient() {
    let body = json!({
        "messages": [{ "role": "user", "content": "hi", "id": "x" }],
        "bogus": 1, "temperature": 0.1, "context_management": { "edits": [{}] },
        "system": { "text": "be brief", "extensions": ["zylon"], "prompt": { "tools": true } },
        "tools": [{ "type": "code_execution_v1", "context": {} }, { "name": "f", "inputSchema": { "type": "object" } }],
        "tool_choice": { "type": "auto", "validation_mode": "lazy" },
        "container": "sales-analysis-2026-q3",
    });
    let read = MessagesRequest::from_value(&body, &ZYLON).unwrap();
    assert_eq!((read.model.as_str(), read.max_tokens), ("default", 4_096));
    assert!(read.zylon_extension);
    assert_eq!(read.system, [json!({ "type": "text", "text": "be brief" })]);
    assert_eq!(read.container.as_deref(), Some("sales-analysis-2026-q3"));
    assert_eq!(read.tool_choice, Some(json!({ "type": "auto" })));
    assert!(!read.options.contains_key("bogus"));
    assert!(matches!(&read.tools[0], Tool::Code(tool) if tool.version == CodeToolVersion::V1));
    assert!(matches!(&read.tools[1], Tool::Client(tool) if tool.definition["input_schema"]["type"] == "object"));
    let no_limit = MessagesRequest::from_value(&request(json!({ "max_tokens": 0 })), &ZYLON).unwrap();
    assert_eq!(no_limit.max_tokens, 4_096);
}

#[test]
fn explicit_nulls_stand_for_absent_fields() {
    let nulls = json!({
        "container": null, "system": null, "tools": null, "tool_choice": null, "stream": null, "stop_sequences": null,
        "metadata": null, "thinking": null, "output_config": null, "thread": null, "context_management": null,
        "mcp_servers": [], "diagnostics": { "previous_message_id": null },
    });
    let read = MessagesRequest::from_value(&request(nulls), &ANTHROPIC).unwrap();
    assert!(read.options.is_empty());
    assert_eq!(read, MessagesRequest::from_value(&request(json!({})), &ANTHROPIC).unwrap());
}

#[test]
fn containers_are_read_in_every_form() {
    for (container, expected) in [
        (json!("container_01Demo"), Some("container_01Demo")),
        (json!({ "id": "container_01Demo" }), Some("container_01Demo")),
        (json!({ "id": "container_01Demo", "skills": null }), Some("container_01Demo")),
        (json!({ "skills": [] }), None),
        (json!({}), None),
        (json!({ "id": null }), None),
        (json!(""), None),
    ] {
        let read = MessagesRequest::from_value(&request(json!({ "container": container })), &ANTHROPIC).unwrap();
        assert_eq!(read.container.as_deref(), expected, "{container}");
    }
    let long = "a".repeat(129);
    for id in ["../..", "..", ".", "a b", "日本", "a/b", "a\nb", long.as_str()] {
        for rules in [ANTHROPIC, ZYLON] {
            let message = refusal(json!({ "container": id }), &rules);
            assert!(message.starts_with("container: an id has 1 to 128 characters"), "{message}");
        }
    }
    for id in ["Sales_2026-Q3", "1abc", "-x-", "UPPER", &"a".repeat(128)] {
        assert!(MessagesRequest::from_value(&request(json!({ "container": id })), &ZYLON).is_ok(), "{id}");
    }
}

#[test]
fn tools_of_the_client_reach_the_upstream_without_our_fields() {
    let tools = json!([
        { "type": "custom", "name": "f", "description": "d", "input_schema": { "type": "object" }, "strict": null,
          "allowed_callers": ["direct"], "cache_control": { "type": "ephemeral" } },
        { "type": "bash_20250124", "name": "bash" },
        { "type": "code_execution_20250825", "name": "code_execution", "cache_control": { "type": "ephemeral" } },
    ]);
    let read = MessagesRequest::from_value(&request(json!({ "tools": tools })), &ANTHROPIC).unwrap();
    let Tool::Client(custom) = &read.tools[0] else { panic!("not a client tool") };
    assert_eq!(
        custom.definition.to_string(),
        r#"{"name":"f","description":"d","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}}"#
    );
    assert!(matches!(&read.tools[1], Tool::Client(tool) if tool.definition["type"] == "bash_20250124"));
    assert!(matches!(&read.tools[2], Tool::Code(tool) if tool.cache_control.is_some()));
}

#[test]
fn foreign_blocks_keep_their_keys_and_their_order() {
    let block = r#"{"type":"thinking","thinking":"t","zeta":1,"signature":"c2ln","alpha":null}"#;
    let body = format!(
        r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","content":[{block}]}}]}}"#
    );
    let read = MessagesRequest::parse(body.as_bytes(), &ANTHROPIC).unwrap();
    assert_eq!(read.messages[1].content[0].value().to_string(), block);
}

#[test]
fn a_body_that_is_not_json_is_refused() {
    for body in ["", "{", "[]", "null", "\"x\""] {
        let error = MessagesRequest::parse(body.as_bytes(), &ANTHROPIC).unwrap_err();
        assert!(error.message.starts_with("The request body is not valid JSON"), "{body}: {}", error.message);
    }
}

mod arbitrary {
    use proptest::prelude::*;

    use super::*;

    fn json_value() -> impl Strategy<Value = Value> {
        let keys = prop::sample::select(vec![
            "type",
            "role",
            "content",
            "text",
            "id",
            "name",
            "input",
            "model",
            "messages",
            "max_tokens",
            "tools",
            "system",
            "container",
            "tool_choice",
            "skills",
            "tool_use_id",
        ]);
        let words = prop::sample::select(vec![
            "user",
            "assistant",
            "text",
            "tool_use",
            "tool_result",
            "server_tool_use",
            "custom",
            "code_execution_v1",
            "",
        ]);
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            words.prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 64, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((keys.clone(), inner), 0..6).prop_map(|pairs| Value::Object(
                    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
                )),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_request_makes_the_parser_panic(body in json_value(), messages in json_value(), tools in json_value()) {
            for rules in [ANTHROPIC, ZYLON] {
                let _ = MessagesRequest::from_value(&body, &rules);
                let _ = MessagesRequest::from_value(&request(json!({ "messages": messages, "tools": tools })), &rules);
            }
        }
    }
}
