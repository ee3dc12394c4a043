use serde_json::json;

use super::*;
use crate::{
    BashOutputFile, BashResult, CacheCreation, Caller, CellOutputFile, CellResult, ErrorDetail, ErrorType, Message,
    OutputTokensDetails, ServerToolUsage, ToolErrorCode, Usage,
};

/// The answer that the contract shows.
fn message() -> Message {
    Message {
        id: "msg_01Demo".into(),
        model: "local-model".into(),
        content: vec![
            ContentBlock::Text { text: "I'll compute it.".into(), citations: Vec::new() },
            ContentBlock::ServerToolUse {
                id: "srvtoolu_01A".into(),
                name: "bash_code_execution".into(),
                input: json!({ "command": "python3 /tmp/sum.py" }),
                caller: Caller::Direct,
            },
            ContentBlock::BashCodeExecutionToolResult {
                tool_use_id: "srvtoolu_01A".into(),
                content: BashResult::Finished {
                    stdout: "42\n".into(),
                    stderr: String::new(),
                    return_code: 0,
                    content: vec![BashOutputFile { file_id: "file_01Out".into() }],
                },
            },
            ContentBlock::ToolUse {
                id: "toolu_01B".into(),
                name: "get_owner".into(),
                input: json!({}),
                caller: Caller::Direct,
            },
            ContentBlock::Raw(json!({ "type": "redacted_thinking", "data": "x" })),
        ],
        stop_reason: Some(StopReason::ToolUse),
        stop_sequence: None,
        stop_details: None,
        container: Some(ContainerInfo {
            id: "container_01Demo".into(),
            expires_at: "2026-12-01T10:28:40.590791Z".parse().unwrap(),
        }),
        usage: Usage {
            input_tokens: 2104,
            output_tokens: 188,
            server_tool_use: Some(ServerToolUsage { code_execution_requests: 1, ..ServerToolUsage::default() }),
            ..Usage::default()
        },
        interaction_stop_reason: Some(InteractionStopReason::Stop),
        errors: Vec::new(),
    }
}

#[test]
fn a_message_prints_as_the_contract_shows() {
    let expected = r#"{"id":"msg_01Demo","type":"message","role":"assistant","model":"local-model","content":[{"type":"text","text":"I'll compute it."},{"type":"server_tool_use","id":"srvtoolu_01A","name":"bash_code_execution","input":{"command":"python3 /tmp/sum.py"},"caller":{"type":"direct"}},{"type":"bash_code_execution_tool_result","tool_use_id":"srvtoolu_01A","content":{"type":"bash_code_execution_result","stdout":"42\n","stderr":"","return_code":0,"content":[{"type":"bash_code_execution_output","file_id":"file_01Out"}]}},{"type":"tool_use","id":"toolu_01B","name":"get_owner","input":{},"caller":{"type":"direct"}},{"type":"redacted_thinking","data":"x"}],"stop_reason":"tool_use","stop_sequence":null,"stop_details":null,"container":{"id":"container_01Demo","expires_at":"2026-12-01T10:28:40.590791Z"},"usage":{"input_tokens":2104,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":188,"server_tool_use":{"web_search_requests":0,"web_fetch_requests":0,"code_execution_requests":1}}}"#;
    assert_eq!(message().body(Surface::Anthropic).to_string(), expected);
}

#[test]
fn the_zylon_surface_adds_how_the_interaction_ended() {
    let mut message = message();
    message.errors = vec![ApiError::new(ErrorType::Overloaded, "Overloaded")];
    message.interaction_stop_reason = Some(InteractionStopReason::Error);
    message.stop_reason = None;
    let body = message.body(Surface::Zylon);
    assert_eq!((&body["stop_reason"], &body["interaction_stop_reason"]), (&Value::Null, &json!("error")));
    assert_eq!(
        body["errors"],
        json!([{ "type": "overloaded_error", "message": "Overloaded", "details": null,
            "detail": { "code": "overloaded_error", "explanation": "Overloaded" } }])
    );
}

#[test]
fn what_came_of_python_code_prints_as_the_contract_shows() {
    let print = |content| {
        let block = ContentBlock::CodeExecutionToolResult { tool_use_id: "srvtoolu_01E".into(), content };
        serde_json::to_string(&block).unwrap()
    };
    let finished = CellResult::Finished {
        stdout: "mean=3.5\n".into(),
        stderr: String::new(),
        return_code: 0,
        content: vec![CellOutputFile { file_id: "file_01Plot".into() }],
    };
    assert_eq!(
        print(finished),
        r#"{"type":"code_execution_tool_result","tool_use_id":"srvtoolu_01E","content":{"type":"code_execution_result","stdout":"mean=3.5\n","stderr":"","return_code":0,"content":[{"type":"code_execution_output","file_id":"file_01Plot"}]}}"#
    );
    assert_eq!(
        print(CellResult::Error { error_code: ToolErrorCode::ExecutionTimeExceeded, detail: None }),
        r#"{"type":"code_execution_tool_result","tool_use_id":"srvtoolu_01E","content":{"type":"code_execution_tool_result_error","error_code":"execution_time_exceeded"}}"#
    );
}

#[test]
fn errors_of_a_tool_have_a_detail_only_where_there_is_one() {
    let print =
        |detail| serde_json::to_string(&BashResult::Error { error_code: ToolErrorCode::Unavailable, detail }).unwrap();
    assert_eq!(print(None), r#"{"type":"bash_code_execution_tool_result_error","error_code":"unavailable"}"#);
    let detail = ErrorDetail { code: "unavailable".into(), explanation: "File not found".into() };
    assert_eq!(
        print(Some(detail)),
        r#"{"type":"bash_code_execution_tool_result_error","error_code":"unavailable","detail":{"code":"unavailable","explanation":"File not found"}}"#
    );
    for code in [
        ToolErrorCode::InvalidToolInput,
        ToolErrorCode::Unavailable,
        ToolErrorCode::TooManyRequests,
        ToolErrorCode::ExecutionTimeExceeded,
        ToolErrorCode::OutputFileTooLarge,
        ToolErrorCode::FileNotFound,
    ] {
        assert_eq!(json!(code), code.name());
    }
}

#[test]
fn every_event_names_itself_twice_and_ends_with_a_blank_line() {
    let events = [
        StreamEvent::MessageStart(Box::new(Message { content: Vec::new(), ..message() })),
        StreamEvent::BlockStart {
            index: 0,
            block: Box::new(ContentBlock::Text { text: String::new(), citations: Vec::new() }),
        },
        StreamEvent::BlockDelta { index: 0, delta: Delta::TextDelta { text: "line\nbreak".into() } },
        StreamEvent::BlockDelta { index: 0, delta: Delta::CitationsDelta { citation: json!({}) } },
        StreamEvent::BlockDelta { index: 0, delta: Delta::InputJsonDelta { partial_json: "{".into() } },
        StreamEvent::BlockDelta { index: 0, delta: Delta::ThinkingDelta { thinking: "t".into() } },
        StreamEvent::BlockDelta { index: 0, delta: Delta::SignatureDelta { signature: "s".into() } },
        StreamEvent::BlockDelta { index: 0, delta: Delta::Raw(json!({ "type": "new_delta", "b": 1, "a": 2 })) },
        StreamEvent::BlockStop { index: 0 },
        StreamEvent::MessageStop,
        StreamEvent::Ping,
        StreamEvent::Error(Box::new(ApiError::new(ErrorType::Overloaded, "Overloaded"))),
    ];
    for event in events {
        let frame = event.frame(Surface::Anthropic, "req_01S");
        let mut lines = frame.split('\n');
        assert_eq!(lines.next(), Some(format!("event: {}", event.name()).as_str()));
        let data: Value = serde_json::from_str(lines.next().unwrap().strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["type"], event.name());
        assert_eq!(lines.collect::<Vec<_>>(), ["", ""], "one line of data, then a blank one");
    }
}

#[test]
fn tokens_add_up_and_what_nobody_told_is_not_there() {
    let cache_creation = Some(CacheCreation { ephemeral_5m_input_tokens: 1, ephemeral_1h_input_tokens: 2 });
    let output_tokens_details = Some(OutputTokensDetails { thinking_tokens: 3 });
    let told = Usage { output_tokens: 5, cache_creation, output_tokens_details, ..Usage::default() };
    let mut sum = Usage::default();
    sum.add_tokens(&Usage { output_tokens: 1, ..Usage::default() });
    assert_eq!(
        json!(sum).to_string(),
        r#"{"input_tokens":0,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}"#
    );
    sum.add_tokens(&told);
    sum.add_tokens(&told);
    assert_eq!(
        json!(sum).to_string(),
        r#"{"input_tokens":0,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":11,"cache_creation":{"ephemeral_5m_input_tokens":2,"ephemeral_1h_input_tokens":4},"output_tokens_details":{"thinking_tokens":6}}"#
    );
}

#[test]
fn a_delta_of_an_unknown_type_goes_on_as_it_came() {
    let delta = Delta::Raw(json!({ "type": "new_delta", "b": 1, "a": null }));
    assert_eq!(json!(delta).to_string(), r#"{"type":"new_delta","b":1,"a":null}"#);
}

#[test]
fn an_error_event_is_the_error_body() {
    let event = StreamEvent::Error(Box::new(ApiError::new(ErrorType::Overloaded, "Overloaded")));
    assert_eq!(
        event.frame(Surface::Anthropic, "req_01S"),
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\",\"details\":null},\"request_id\":\"req_01S\"}\n\n"
    );
}

#[test]
fn stop_reasons_read_back() {
    for reason in [
        StopReason::EndTurn,
        StopReason::MaxTokens,
        StopReason::StopSequence,
        StopReason::ToolUse,
        StopReason::PauseTurn,
        StopReason::Refusal,
        StopReason::ModelContextWindowExceeded,
    ] {
        assert_eq!(StopReason::parse(reason.name()), Some(reason));
        assert_eq!(json!(reason), reason.name());
    }
    assert_eq!(StopReason::parse("tired"), None);
}
