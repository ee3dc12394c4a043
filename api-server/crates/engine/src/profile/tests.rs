use proptest::prelude::*;
use serde_json::json;

use super::{bash::text_of, *};
use crate::outcome::{Captured, Exit, ToolFailure};
use crate::testing::{DATED, V1, ask, facts, read};
use wire::Surface;

pub(super) fn profile(kind: &str) -> ToolProfile {
    ToolProfile::of(&read(&ask(kind, "x"), Surface::Zylon).unwrap(), &facts()).unwrap()
}

fn finished(stdout: &[u8], stderr: &[u8], exit: Exit) -> ToolOutcome {
    let captured = |bytes: &[u8]| Captured { bytes: bytes.to_vec(), truncated: false };
    ToolOutcome::Finished { stdout: captured(stdout), stderr: captured(stderr), exit, outputs: Vec::new() }
}

fn block(profile: &ToolProfile, outcome: &ToolOutcome) -> Value {
    serde_json::to_value(profile.result(SubTool::Bash, "srvtoolu_1", outcome)).unwrap()
}

fn cut(bytes: &[u8]) -> String {
    text_of(&Captured { bytes: bytes.to_vec(), truncated: true })
}

#[test]
fn results_print_as_the_published_examples() {
    let outcome = finished(b"total 24\n", b"", Exit::Code(0));
    assert_eq!(
        block(&profile(DATED), &outcome).to_string(),
        r#"{"type":"bash_code_execution_tool_result","tool_use_id":"srvtoolu_1","content":{"type":"bash_code_execution_result","stdout":"total 24\n","stderr":"","return_code":0,"content":[]}}"#
    );
    let gone =
        ToolOutcome::Failed(ToolFailure { kind: FailureKind::Unavailable, explanation: "No node has room.".into() });
    assert_eq!(
        block(&profile(DATED), &gone).to_string(),
        r#"{"type":"bash_code_execution_tool_result","tool_use_id":"srvtoolu_1","content":{"type":"bash_code_execution_tool_result_error","error_code":"unavailable"}}"#
    );
    assert_eq!(
        block(&profile(V1), &gone).to_string(),
        r#"{"type":"bash_code_execution_tool_result","tool_use_id":"srvtoolu_1","content":{"type":"bash_code_execution_tool_result_error","error_code":"unavailable","detail":{"code":"unavailable","explanation":"No node has room."}}}"#
    );
}

#[test]
fn a_time_out_is_an_error_or_a_result() {
    let outcome = finished(b"part\n", b"warning", Exit::TimedOut(Duration::from_secs(2)));
    let dated = block(&profile(DATED), &outcome);
    assert_eq!(
        dated["content"],
        json!({ "type": "bash_code_execution_tool_result_error", "error_code": "execution_time_exceeded" })
    );
    let v1 = block(&profile(V1), &outcome);
    assert_eq!(v1["content"]["return_code"], 124);
    assert_eq!(v1["content"]["stdout"], "part\n");
    assert_eq!(v1["content"]["stderr"], "warning\nCommand timed out after 2s.");
    let quiet = finished(b"", b"", Exit::TimedOut(Duration::from_millis(59_200)));
    assert_eq!(block(&profile(V1), &quiet)["content"]["stderr"], "Command timed out after 60s.");
}

#[test]
fn failures_have_codes_in_one_dialect_and_reasons_in_the_other() {
    for (kind, code) in [
        (FailureKind::InvalidInput, "invalid_tool_input"),
        (FailureKind::Unavailable, "unavailable"),
        (FailureKind::TooManyRequests, "too_many_requests"),
        (FailureKind::TimedOut, "execution_time_exceeded"),
        (FailureKind::OutputFileTooLarge, "output_file_too_large"),
    ] {
        let outcome = ToolOutcome::Failed(ToolFailure { kind, explanation: "why".into() });
        let dated = &block(&profile(DATED), &outcome)["content"];
        assert_eq!(*dated, json!({ "type": "bash_code_execution_tool_result_error", "error_code": code }));
        let v1 = &block(&profile(V1), &outcome)["content"];
        assert_eq!((&v1["error_code"], &v1["detail"]["explanation"]), (&json!("unavailable"), &json!("why")));
    }
}

#[test]
fn the_zylon_extension_turns_a_dated_tool_into_its_dialect() {
    let mut body = ask(DATED, "x");
    body["system"] = json!([{ "text": "x", "extensions": ["zylon"] }]);
    let extended = ToolProfile::of(&read(&body, Surface::Zylon).unwrap(), &facts()).unwrap();
    assert!(extended.parse_bash(&json!({ "command": "ls", "timeout": 5 })).is_ok());
    assert!(
        ToolProfile::of(
            &read(&json!({ "messages": [{ "role": "user", "content": "x" }] }), Surface::Zylon).unwrap(),
            &facts()
        )
        .is_none()
    );
}

#[test]
fn output_is_text_whatever_its_bytes_are() {
    let text = |bytes: &[u8]| text_of(&Captured { bytes: bytes.to_vec(), truncated: false });
    assert_eq!(text(b"\xff\xfeok"), "\u{fffd}\u{fffd}ok");
    assert_eq!(text(b"a\0b"), "a\0b");
    assert_eq!(text("a\u{20ac}".as_bytes()), "a\u{20ac}");
    assert_eq!(text(&"a\u{20ac}".as_bytes()[..3]), "a\u{fffd}", "an end that is the command's own is shown as it is");
}

#[test]
fn a_cut_never_makes_a_replacement_character() {
    let mixed = format!("{}{}", "a".repeat(1_023), "\u{20ac}".repeat(5_000));
    for end in 1_000..1_100 {
        let shown = cut(&mixed.as_bytes()[..end]);
        assert!(!shown.contains('\u{fffd}'), "{end}");
        assert!(shown.ends_with("...[truncated]"));
    }
    for (bytes, expected) in [
        (&b"ab"[..], "ab"),
        (&"a\u{1f600}".as_bytes()[..4], "a"),
        (&"a\u{1f600}".as_bytes()[..2], "a"),
        ("a\u{1f600}".as_bytes(), "a\u{1f600}"),
        (b"a\xff", "a\u{fffd}"),
        (b"\x80\x80\x80\x80", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}"),
        (b"", ""),
    ] {
        assert_eq!(cut(bytes), format!("{expected}\n...[truncated]"), "{bytes:?}");
    }
}

#[test]
fn inputs_are_read_strictly_but_for_how_models_write_numbers() {
    let dated = profile(DATED);
    let v1 = profile(V1);
    let read = |profile: &ToolProfile, input: Value| profile.parse_bash(&input).map_err(|invalid| invalid.0);
    let ls = |timeout| Ok(BashInput { command: "ls".into(), timeout, restart: false });
    assert_eq!(read(&dated, json!({ "command": "ls" })), ls(None));
    for (timeout, seconds) in [(json!(5), Some(5)), (json!("7"), Some(7)), (json!(0), None), (json!(null), None)] {
        assert_eq!(read(&v1, json!({ "command": "ls", "timeout": timeout, "restart": false })), ls(seconds));
    }
    let afresh = BashInput { command: "ls".into(), timeout: None, restart: true };
    assert_eq!(read(&v1, json!({ "command": "ls", "restart": true })), Ok(afresh));
    for (profile, input, reason) in [
        (&dated, json!({}), "bash_code_execution requires the command parameter."),
        (&dated, json!({ "command": 1 }), "`command` must be a string"),
        (&dated, json!({ "command": "a\0b" }), "`command` must not contain NUL characters"),
        (
            &dated,
            json!({ "command": "ls", "timeout": 5 }),
            "bash_code_execution has no parameter `timeout`; it takes command",
        ),
        (&dated, json!([]), "the input of bash_code_execution must be a JSON object with a `command`"),
        (&v1, json!({ "restart": true }), "bash_code_execution requires the command parameter."),
        (&v1, json!({ "command": "ls", "restart": "yes" }), "`restart` must be a boolean"),
        (&v1, json!({ "command": "ls", "timeout": -1 }), "`timeout` must be a whole number of seconds, 1 or more"),
        (&v1, json!({ "command": "ls", "timeout": 1.5 }), "`timeout` must be a whole number of seconds, 1 or more"),
        (
            &v1,
            json!({ "command": "ls", "cwd": "/" }),
            "bash_code_execution has no parameter `cwd`; it takes command, timeout, restart",
        ),
    ] {
        assert_eq!(read(profile, input.clone()), Err(reason.to_owned()), "{input}");
    }
}

#[test]
fn definitions_say_what_the_sandbox_is() {
    let mut body = ask(DATED, "x");
    body["tools"][0]["cache_control"] = json!({ "type": "ephemeral" });
    let profile = ToolProfile::of(&read(&body, Surface::Anthropic).unwrap(), &facts()).unwrap();
    let [definition, editor] = profile.definitions(&facts()).try_into().unwrap();
    assert_eq!((&definition["name"], &editor["name"]), (&json!(BASH), &json!(EDITOR)));
    assert_eq!(definition.get("cache_control"), None);
    assert_eq!(editor["cache_control"], json!({ "type": "ephemeral" }), "it moves to the last");
    assert_eq!(definition["input_schema"]["properties"].as_object().unwrap().len(), 1);
    let description = definition["description"].as_str().unwrap();
    for fact in [
        "Debian 12",
        "Installed: pandas 2.3.3, unzip.",
        "/home/agent/workspace",
        "300 seconds",
        "1048576 bytes",
        "no network",
        "$OUTPUT_DIR",
    ] {
        assert!(description.contains(fact), "{fact}: {description}");
    }
    let [v1, _] = self::profile(V1).definitions(&facts()).try_into().unwrap();
    assert!(v1["description"].as_str().unwrap().contains("/mnt/user-data/outputs/"));
    assert!(v1["input_schema"]["properties"]["timeout"]["description"].as_str().unwrap().contains("at most 480"));
    assert_eq!(v1["input_schema"]["properties"]["restart"]["type"], "boolean");
}

#[test]
fn what_is_installed_is_told_once_and_nothing_where_nothing_is_known() {
    for (kind, told) in [(DATED, 1), ("code_execution_20250522", 1), ("code_execution_20260120", 1), (V1, 1)] {
        for (libraries, absent, sentence, times) in [
            (vec!["bc".to_owned()], vec![], "Installed: bc.", told),
            (vec![], vec!["pandas".to_owned(), "numpy".to_owned()], "Not installed: pandas, numpy.", told),
            (vec![], vec![], "nstalled:", 0),
        ] {
            let facts = SandboxFacts { libraries, absent, ..facts() };
            let definitions = profile(kind).definitions(&facts);
            let count =
                definitions.iter().filter(|one| one["description"].as_str().unwrap().contains(sentence)).count();
            assert_eq!(count, times, "{kind}: {sentence}");
        }
    }
}

#[test]
fn the_model_reads_long_output_as_head_and_tail() {
    let long = format!("HEAD{}TAIL", "\u{20ac}".repeat(100_000));
    let content =
        json!({ "type": "bash_code_execution_result", "stdout": long, "stderr": "e", "return_code": 1, "content": [] });
    let (view, is_error) = model_view(&content);
    let text = view.as_str().unwrap();
    assert!(!is_error);
    assert!(text.starts_with("exit_code: 1\n\nstdout:\nHEAD"));
    assert!(text.ends_with("TAIL\n\nstderr:\ne"));
    assert!(text.contains("...[60008 characters omitted]..."));
    let error = json!({ "type": "bash_code_execution_tool_result_error", "error_code": "unavailable", "detail": { "explanation": "why" } });
    assert_eq!(model_view(&error), (json!("error: unavailable: why"), true));
}

proptest! {
    #[test]
    fn cutting_valid_text_keeps_a_prefix_of_it(text in "\\PC{0,40}", at in 0usize..200) {
        let end = at.min(text.len());
        let shown = cut(&text.as_bytes()[..end]);
        let kept = shown.strip_suffix("\n...[truncated]").unwrap();
        prop_assert!(text.starts_with(kept));
        prop_assert!(end - kept.len() <= 3);
    }

    #[test]
    fn any_bytes_are_shown(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!(cut(&bytes).ends_with("...[truncated]"));
    }
}
