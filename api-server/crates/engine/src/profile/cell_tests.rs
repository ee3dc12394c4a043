use serde_json::json;

use super::super::*;
use super::*;
use crate::testing::{DATED, LEGACY, REPL, V1, ask, facts, read};
use wire::Surface;

const EARLIER: &str = "code_execution_20260120";

fn profile_of(kind: &str, zylon: bool, repl: bool) -> ToolProfile {
    let mut body = ask(kind, "x");
    if zylon {
        body["system"] = json!([{ "text": "x", "extensions": ["zylon"] }]);
    }
    ToolProfile::of(&read(&body, Surface::Zylon).unwrap(), &SandboxFacts { repl, ..facts() }).unwrap()
}

fn profile(kind: &str) -> ToolProfile {
    profile_of(kind, false, true)
}

fn names(profile: &ToolProfile) -> Vec<String> {
    profile.definitions(&facts()).iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

fn content(profile: &ToolProfile, outcome: &ToolOutcome) -> Value {
    let block = serde_json::to_value(profile.result(SubTool::Cell, "srvtoolu_1", outcome)).unwrap();
    assert_eq!((&block["type"], &block["tool_use_id"]), (&json!("code_execution_tool_result"), &json!("srvtoolu_1")));
    block["content"].clone()
}

fn finished(stderr: &str, exit: Exit, outputs: &[&str]) -> ToolOutcome {
    let captured = |text: &str| Captured { bytes: text.into(), truncated: false };
    ToolOutcome::Finished {
        stdout: captured("out\n"),
        stderr: captured(stderr),
        exit,
        outputs: outputs.iter().map(|id| (*id).to_owned()).collect(),
    }
}

#[test]
fn each_version_offers_its_sub_tools() {
    let shell = vec![BASH, EDITOR];
    for (kind, with_python, without) in [
        (LEGACY, vec![CELL], vec![CELL]),
        (DATED, shell.clone(), shell.clone()),
        (EARLIER, vec![BASH, EDITOR, CELL], shell.clone()),
        (REPL, vec![BASH, EDITOR, CELL], shell.clone()),
        (V1, shell.clone(), shell.clone()),
    ] {
        for (repl, expected) in [(true, with_python), (false, without)] {
            let profile = profile_of(kind, false, repl);
            assert_eq!(names(&profile), expected, "{kind} with Python: {repl}");
            for name in [BASH, EDITOR, CELL, "python"] {
                assert_eq!(profile.offered(name).is_some(), expected.contains(&name), "{kind} {name}");
            }
            assert_eq!(profile.main_tool().name(), expected[0]);
        }
    }
}

#[test]
fn the_definition_says_what_the_interpreter_is() {
    let describe = |profile: &ToolProfile| {
        let definition = profile.cell_definition(&facts());
        assert_eq!(definition["input_schema"]["required"], json!(["code"]));
        definition["description"].as_str().unwrap().to_owned()
    };
    let latest = describe(&profile(REPL));
    for fact in ["variables", "/home/agent/workspace", "1048576 bytes", "no network", "OUTPUT_DIR", "90 seconds", BASH]
    {
        assert!(latest.contains(fact), "{fact}: {latest}");
    }
    assert!(!describe(&profile(EARLIER)).contains("90 seconds"));
    let alone = describe(&profile(LEGACY));
    assert!(alone.contains("Debian 12") && !alone.contains(BASH), "{alone}");
    assert!(describe(&profile_of(REPL, true, true)).contains("/mnt/user-data/outputs/"));
}

#[test]
fn its_cache_control_is_the_last_sub_tools() {
    let mut body = ask(REPL, "x");
    body["tools"][0]["cache_control"] = json!({ "type": "ephemeral" });
    let profile = ToolProfile::of(&read(&body, Surface::Anthropic).unwrap(), &facts()).unwrap();
    let with: Vec<_> = profile.definitions(&facts()).iter().map(|tool| tool.get("cache_control").is_some()).collect();
    assert_eq!(with, [false, false, true]);
}

#[test]
fn inputs_are_code_and_nothing_else() {
    let read = |input: Value| ToolProfile::parse_cell(&input).map_err(|invalid| invalid.0);
    assert_eq!(read(json!({ "code": "1 + 1" })), Ok("1 + 1".to_owned()));
    for (input, reason) in [
        (json!([]), "code_execution: the input must be a JSON object with `code`"),
        (json!({}), "code_execution requires the code parameter."),
        (json!({ "code": null }), "code_execution requires the code parameter."),
        (json!({ "code": 1 }), "code_execution: `code` must be a string"),
        (json!({ "code": "1", "timeout": 1 }), "code_execution has no parameter `timeout`; it takes code"),
    ] {
        assert_eq!(read(input.clone()), Err(reason.to_owned()), "{input}");
    }
}

#[test]
fn results_name_their_files_and_a_failing_cell_is_a_result() {
    assert_eq!(
        content(&profile(REPL), &finished("Traceback\n", Exit::Code(1), &["file_1"])),
        json!({
            "type": "code_execution_result", "stdout": "out\n", "stderr": "Traceback\n", "return_code": 1,
            "content": [{ "type": "code_execution_output", "file_id": "file_1" }],
        })
    );
}

#[test]
fn a_time_out_is_a_result_but_for_the_tool_that_remembers_by_chance() {
    let outcome = finished("KeyboardInterrupt", Exit::TimedOut(Duration::from_secs(90)), &[]);
    for profile in [profile(EARLIER), profile(REPL), profile_of(REPL, true, true), profile_of(LEGACY, true, true)] {
        let content = content(&profile, &outcome);
        assert_eq!((&content["return_code"], &content["stdout"]), (&json!(124), &json!("out\n")), "{profile:?}");
        let told = "KeyboardInterrupt\ndetection_timeout: the cell was interrupted after 90s.";
        assert_eq!(content["stderr"], told, "{profile:?}");
    }
    assert_eq!(
        content(&profile(LEGACY), &outcome),
        json!({ "type": "code_execution_tool_result_error", "error_code": "execution_time_exceeded" })
    );
}

#[test]
fn failures_have_the_codes_of_the_contract() {
    for (kind, code) in [
        (FailureKind::InvalidInput, "invalid_tool_input"),
        (FailureKind::Unavailable, "unavailable"),
        (FailureKind::TooManyRequests, "too_many_requests"),
        (FailureKind::TimedOut, "execution_time_exceeded"),
        (FailureKind::OutputFileTooLarge, "unavailable"),
    ] {
        let outcome = ToolOutcome::Failed(ToolFailure { kind, explanation: "why".into() });
        let error = json!({ "type": "code_execution_tool_result_error", "error_code": code });
        assert_eq!(content(&profile(REPL), &outcome), error);
        let detailed = content(&profile_of(REPL, true, true), &outcome);
        assert_eq!(
            (&detailed["error_code"], &detailed["detail"]["explanation"]),
            (&json!("unavailable"), &json!("why"))
        );
    }
}
