use super::*;
use crate::outcome::{FailureKind, ToolFailure, ToolOutcome};
use crate::profile::{SubTool, model_view, tests::profile};
use crate::testing::{DATED, V1, facts};

fn parse(kind: &str, input: &Value) -> Result<Edit, String> {
    profile(kind).parse_edit(input).map_err(|invalid| invalid.0)
}

/// The public block's content.
fn content(kind: &str, outcome: EditOutcome) -> Value {
    let block = profile(kind).result(SubTool::Editor, "srvtoolu_1", &ToolOutcome::Edited(outcome));
    let block = serde_json::to_value(block).unwrap();
    assert_eq!(block["type"], "text_editor_code_execution_tool_result");
    assert_eq!(block["tool_use_id"], "srvtoolu_1");
    block["content"].clone()
}

fn refused(kind: &str, why: EditRefusal) -> Value {
    content(kind, EditOutcome::Refused { why })
}

fn view(range: Option<[i64; 2]>) -> Edit {
    Edit::View { path: "a".into(), view_range: range }
}

#[test]
fn results_print_as_the_published_examples() {
    let debug = "{\n  \"setting\": \"value\",\n  \"debug\": true\n}";
    let viewed = EditOutcome::Text { content: debug.into(), start_line: 1, num_lines: 4, total_lines: 4 };
    let lines = Some(vec!["-  \"debug\": true".into(), "+  \"debug\": false".into()]);
    let changed = EditOutcome::Changed { start_line: 3, old_lines: 1, new_lines: 1, lines };
    for (outcome, expected) in [
        (
            viewed,
            r#"{"type":"text_editor_code_execution_view_result","file_type":"text","content":"{\n  \"setting\": \"value\",\n  \"debug\": true\n}","num_lines":4,"start_line":1,"total_lines":4}"#,
        ),
        (
            EditOutcome::Created { is_file_update: false },
            r#"{"type":"text_editor_code_execution_create_result","is_file_update":false}"#,
        ),
        (
            changed,
            r#"{"type":"text_editor_code_execution_str_replace_result","old_start":3,"old_lines":1,"new_start":3,"new_lines":1,"lines":["-  \"debug\": true","+  \"debug\": false"]}"#,
        ),
    ] {
        for kind in [DATED, V1] {
            assert_eq!(content(kind, outcome.clone()).to_string(), expected);
        }
    }
}

#[test]
fn refusals_have_codes_and_messages_in_one_dialect_and_details_in_the_other() {
    let missing = || EditRefusal::NotFound { path: "/home/agent/workspace/missing.txt".into() };
    assert_eq!(
        refused(DATED, missing()).to_string(),
        r#"{"type":"text_editor_code_execution_tool_result_error","error_code":"file_not_found","error_message":"File not found: /home/agent/workspace/missing.txt"}"#
    );
    assert_eq!(
        refused(V1, missing()).to_string(),
        r#"{"type":"text_editor_code_execution_tool_result_error","error_code":"unavailable","detail":{"code":"unavailable","explanation":"File not found: /home/agent/workspace/missing.txt"}}"#
    );
    let path = || "/p".to_owned();
    for (why, code, words) in [
        (EditRefusal::NoMatch, "invalid_tool_input", "old_str was not found in the file."),
        (EditRefusal::EmptyOldStr, "invalid_tool_input", "old_str must not be empty."),
        (
            EditRefusal::Ambiguous { count: 3, lines: vec![1, 2, 9] },
            "invalid_tool_input",
            "old_str appears more than once in the file. It appears 3 times, at lines 1, 2, 9: ",
        ),
        (
            EditRefusal::Ambiguous { count: 30, lines: vec![1, 2] },
            "invalid_tool_input",
            "old_str appears more than once in the file. It appears 30 times, at lines 1, 2, ...: ",
        ),
        (
            EditRefusal::LineOutOfRange { insert_line: 9, total_lines: 3 },
            "invalid_tool_input",
            "insert_line 9 is out of range. ",
        ),
        (
            EditRefusal::ReadOnly { path: path(), mount: "/m".into() },
            "invalid_tool_input",
            "Path '/p' is in a read-only mount ('/m').",
        ),
        (EditRefusal::NoMount { path: path() }, "invalid_tool_input", "Path '/p' does not match any session mount."),
        (EditRefusal::BadRange { start: 0, end: 1, total_lines: 3 }, "invalid_tool_input", "view_range [0, 1] "),
        (EditRefusal::TooLarge { path: path(), size: 9, limit: 8 }, "invalid_tool_input", "File '/p' is too large: 9 "),
        (EditRefusal::NoSpace, "unavailable", "The sandbox's disk is full."),
        (EditRefusal::Failed { path: path(), os_error: 5 }, "unavailable", "The sandbox's system refused"),
    ] {
        let dated = refused(DATED, why.clone());
        assert_eq!(dated["error_code"], code, "{why:?}");
        assert!(dated["error_message"].as_str().unwrap().starts_with(words), "{dated}");
        let v1 = refused(V1, why);
        assert_eq!((&v1["error_code"], &v1["detail"]["explanation"]), (&json!("unavailable"), &dated["error_message"]));
        assert_eq!(v1.get("error_message"), None);
    }
}

#[test]
fn a_failure_is_told_as_the_editors() {
    let failure = ToolFailure { kind: FailureKind::TooManyRequests, explanation: "why".into() };
    let outcome = ToolOutcome::Failed(failure);
    let block = |kind| serde_json::to_value(profile(kind).result(SubTool::Editor, "x", &outcome)).unwrap();
    let dated = block(DATED);
    assert_eq!(dated["type"], "text_editor_code_execution_tool_result");
    assert_eq!(
        dated["content"],
        json!({ "type": "text_editor_code_execution_tool_result_error", "error_code": "too_many_requests", "error_message": "why" })
    );
    assert_eq!(block(V1)["content"]["detail"]["explanation"], "why");
}

#[test]
fn a_folder_is_a_listing_or_an_error() {
    let entry = |name: &str, is_folder| FolderEntry { name: name.into(), is_folder };
    let folder = |cut| EditOutcome::Folder {
        path: "/home/agent/workspace".into(),
        entries: vec![entry(".git", true), entry("a\n[dir] b", false)],
        cut,
    };
    assert_eq!(
        content(V1, folder(false)),
        json!({ "type": "text_editor_code_execution_view_result", "file_type": "text",
            "content": "[dir] .git\n[file] a\u{fffd}[dir] b", "num_lines": 2, "start_line": 1, "total_lines": 2 })
    );
    assert!(content(V1, folder(true))["content"].as_str().unwrap().contains("\n... and more"));
    let dated = content(DATED, folder(false));
    assert_eq!(dated["error_code"], "invalid_tool_input");
    assert!(dated["error_message"].as_str().unwrap().starts_with("/home/agent/workspace is a directory."));
}

#[test]
fn inputs_are_read_strictly_but_for_how_models_write_numbers() {
    assert_eq!(parse(DATED, &json!({ "command": "view", "path": "a" })), Ok(view(None)));
    for range in [json!([2, -1]), json!(["2", "-1"]), json!([2, " -1 "])] {
        let input = json!({ "command": "view", "path": "a", "view_range": range, "old_str": null, "file_text": null });
        assert_eq!(parse(V1, &input), Ok(view(Some([2, -1]))));
    }
    let create = Edit::Create { path: "a".into(), file_text: String::new() };
    assert_eq!(parse(DATED, &json!({ "command": "create", "path": "a", "file_text": "" })), Ok(create));
    let delete = Edit::StrReplace { path: "a".into(), old_str: "x".into(), new_str: String::new() };
    assert_eq!(parse(DATED, &json!({ "command": "str_replace", "path": "a", "old_str": "x" })), Ok(delete));
    let insert = Edit::Insert { path: "a".into(), insert_line: 5, insert_text: "x".into() };
    for (key, line) in [("insert_text", json!(5)), ("new_str", json!("5"))] {
        let input = json!({ "command": "insert", "path": "a", "insert_line": line, key: "x" });
        assert_eq!(parse(V1, &input), Ok(insert.clone()), "{key}");
    }
}

#[test]
fn inputs_that_are_not_valid_are_told_in_the_contracts_words() {
    for (kind, input, words) in [
        (V1, json!({ "command": "view" }), "text_editor_code_execution requires the path parameter."),
        (V1, json!({ "command": "view", "path": "" }), "text_editor_code_execution requires the path parameter."),
        (V1, json!({ "path": "a" }), "text_editor_code_execution requires the command parameter."),
        (V1, json!({ "command": "create", "path": "a" }), "create requires the file_text parameter."),
        (V1, json!({ "command": "str_replace", "path": "a" }), "str_replace requires the old_str parameter."),
        (V1, json!({ "command": "insert", "path": "a" }), "insert requires the insert_line parameter."),
        (
            V1,
            json!({ "command": "insert", "path": "a", "insert_line": 1 }),
            "insert requires the insert_text parameter (the text to insert).",
        ),
        (
            V1,
            json!({ "command": "undo_edit", "path": "a" }),
            "Unknown text_editor command: 'undo_edit'. Expected one of: view, str_replace, create, insert",
        ),
        (
            DATED,
            json!({ "command": "insert", "path": "a" }),
            "Unknown text_editor command: 'insert'. Expected one of: view, str_replace, create",
        ),
        (
            DATED,
            json!({ "command": "view", "path": "a", "insert_line": 1 }),
            "text_editor_code_execution has no parameter `insert_line`; it takes command, path, view_range, file_text, old_str, new_str",
        ),
        (V1, json!({ "command": "create", "path": "a", "file_text": 1 }), "`file_text` must be a string"),
        (V1, json!({ "command": "view", "path": "a\0" }), "`path` must not contain NUL characters"),
        (
            V1,
            json!("view"),
            "the input of text_editor_code_execution must be a JSON object with a `command` and a `path`",
        ),
    ] {
        assert_eq!(parse(kind, &input), Err(words.to_owned()), "{input}");
    }
    for range in [json!([1]), json!([1, 2, 3]), json!([1, 2.5]), json!(["a", 1]), json!("1-2"), json!([])] {
        let input = json!({ "command": "view", "path": "a", "view_range": range });
        assert_eq!(parse(V1, &input), Err("view_range must contain exactly two integers".to_owned()), "{range}");
    }
}

#[test]
fn definitions_offer_what_the_dialect_knows() {
    let properties = |kind| {
        let definition = profile(kind).editor_definition(&facts());
        assert!(definition["description"].as_str().unwrap().contains("/home/agent/workspace"));
        definition["input_schema"]["properties"].clone()
    };
    let (dated, v1) = (properties(DATED), properties(V1));
    assert_eq!(dated["command"]["enum"], json!(["view", "str_replace", "create"]));
    assert_eq!(v1["command"]["enum"], json!(["view", "str_replace", "create", "insert"]));
    assert_eq!((dated.as_object().unwrap().len(), v1.as_object().unwrap().len()), (6, 8));
}

#[test]
fn the_model_reads_what_was_shown_and_done() {
    let read = |outcome| model_view(&content(V1, outcome));
    let text = |content: &str, start_line, num_lines, total_lines| EditOutcome::Text {
        content: content.into(),
        start_line,
        num_lines,
        total_lines,
    };
    let changed =
        |lines: Option<Vec<String>>| EditOutcome::Changed { start_line: 3, old_lines: 1, new_lines: 2, lines };
    for (outcome, expected) in [
        (text("a\nb", 1, 2, 2), "a\nb"),
        (text("b\nc", 2, 2, 9), "[lines 2-3 / 9]\nb\nc"),
        (text("", 1, 0, 0), "(empty)"),
        (EditOutcome::Created { is_file_update: false }, "File created."),
        (EditOutcome::Created { is_file_update: true }, "File overwritten."),
        (changed(Some(vec!["-a".into(), "+b".into(), "+c".into()])), "Applied at line 3 (-1 +2):\n-a\n+b\n+c"),
        (changed(None), "Applied at line 3 (-1 +2)."),
    ] {
        assert_eq!(read(outcome), (json!(expected), false));
    }
    let why = EditRefusal::NoMatch;
    let refused = (json!("error: unavailable: old_str was not found in the file."), true);
    assert_eq!(read(EditOutcome::Refused { why }), refused);
    let long = read(text(&"x".repeat(100_000), 1, 1, 1)).0;
    assert!(long.as_str().unwrap().contains("characters omitted"));
}

#[test]
fn the_model_gets_an_image_as_an_image() {
    for (format, data, kind, media_type) in [
        (MediaFormat::Png, "iVBORw0KGgoAAAANSUhEUg==", "image", "image/png"),
        (MediaFormat::Jpeg, "/9j/4AAQ", "image", "image/jpeg"),
        (MediaFormat::Pdf, "JVBERi0xLjcK", "document", "application/pdf"),
    ] {
        let public = content(DATED, EditOutcome::Media { format, data: data.into() });
        let file_type = if kind == "image" { "image" } else { "pdf" };
        assert_eq!(
            public,
            json!({ "type": "text_editor_code_execution_view_result", "file_type": file_type, "content": data,
                "num_lines": null, "start_line": null, "total_lines": null })
        );
        let (view, is_error) = model_view(&public);
        assert!(!is_error);
        let source = json!({ "type": "base64", "media_type": media_type, "data": data });
        assert_eq!(view[1], json!({ "type": kind, "source": source }));
    }
    let forged = json!({ "type": "text_editor_code_execution_view_result", "file_type": "image", "content": "AAAA" });
    assert_eq!(model_view(&forged), (json!("(a file of the type image)"), false));
}
