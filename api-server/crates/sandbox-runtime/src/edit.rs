//! Edits: the outcome of such a run as a type. What the sandbox sent is believed to be nothing more than its word.

use crate::{Edit, EditOutcome, RunError, RunKind, RunOutcome, RunRequest, Sandbox};
use sandboxd_protocol::{Limits, MAX_EDIT_OUTCOME};
use std::{collections::BTreeMap, time::Duration};

/// Longest refusal, in bytes of JSON: it names a path or two.
const MAX_REFUSAL: usize = 64 * 1024;

impl Sandbox {
    /// Edits a file, as [`Sandbox::run`] runs a command. That the edit was refused is an outcome.
    pub async fn edit(&self, id: &str, edit: Edit, limit: Duration) -> Result<EditOutcome, RunError> {
        let fits = fitting(&edit);
        let limits =
            Limits { timeout_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), output_bytes: MAX_EDIT_OUTCOME };
        let request = RunRequest { run: RunKind::Edit(edit), env: BTreeMap::new(), limits };
        read(fits, &self.run(id, &request).await?)
    }
}

/// Which outcomes an edit can have.
fn fitting(edit: &Edit) -> fn(&EditOutcome) -> bool {
    match edit {
        Edit::View { .. } => |outcome| {
            matches!(outcome, EditOutcome::Text { .. } | EditOutcome::Media { .. } | EditOutcome::Folder { .. })
        },
        Edit::Create { .. } => |outcome| matches!(outcome, EditOutcome::Created { .. }),
        Edit::StrReplace { .. } | Edit::Insert { .. } => |outcome| matches!(outcome, EditOutcome::Changed { .. }),
    }
}

fn read(fits: impl Fn(&EditOutcome) -> bool, run: &RunOutcome) -> Result<EditOutcome, RunError> {
    let RunOutcome { stdout, exit, .. } = run;
    if exit.code != 0 || exit.stdout_truncated {
        return Err(RunError::Unknown(format!("the edit did not come to an end: {exit:?}")));
    }
    let malformed = |why: String| RunError::Unknown(format!("the sandbox sent no outcome of an edit: {why}"));
    let outcome: EditOutcome = serde_json::from_slice(stdout).map_err(|e| malformed(e.to_string()))?;
    let is_legal = match &outcome {
        EditOutcome::Refused { .. } => stdout.len() <= MAX_REFUSAL,
        EditOutcome::Media { data, .. } => is_base64(data),
        EditOutcome::Text { .. }
        | EditOutcome::Folder { .. }
        | EditOutcome::Created { .. }
        | EditOutcome::Changed { .. } => true,
    };
    let is_refusal = matches!(outcome, EditOutcome::Refused { .. });
    if is_legal && (is_refusal || fits(&outcome)) {
        Ok(outcome)
    } else {
        Err(malformed("not one that this edit can have".to_owned()))
    }
}

/// Its form only: a model that is given anything else refuses the whole conversation.
fn is_base64(text: &str) -> bool {
    let digits = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    !digits.is_empty() && text.len().is_multiple_of(4) && digits.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandboxd_protocol::{EditRefusal, Exit, MediaFormat};

    fn ran(stdout: &str, exit: Exit) -> RunOutcome {
        RunOutcome { stdout: stdout.to_owned().into(), stderr: bytes::Bytes::new(), exit }
    }

    fn view() -> fn(&EditOutcome) -> bool {
        fitting(&Edit::View { path: "a".into(), view_range: None })
    }

    #[test]
    fn an_outcome_is_read_when_it_fits_its_edit() {
        let text = r#"{"outcome":"text","content":"a","start_line":1,"num_lines":1,"total_lines":1}"#;
        let shown = EditOutcome::Text { content: "a".into(), start_line: 1, num_lines: 1, total_lines: 1 };
        assert_eq!(read(view(), &ran(text, Exit::default())), Ok(shown));
        let refused = r#"{"outcome":"refused","why":{"kind":"no_match"}}"#;
        let no_match = EditOutcome::Refused { why: EditRefusal::NoMatch };
        assert_eq!(read(view(), &ran(refused, Exit::default())), Ok(no_match));
        let image = r#"{"outcome":"media","format":"png","data":"iVBORw0KGgo="}"#;
        let media = EditOutcome::Media { format: MediaFormat::Png, data: "iVBORw0KGgo=".into() };
        assert_eq!(read(view(), &ran(image, Exit::default())), Ok(media));
    }

    #[test]
    fn what_a_hostile_sandbox_sends_is_an_error() {
        let long = format!(r#"{{"outcome":"refused","why":{{"kind":"not_found","path":"{}"}}}}"#, "x".repeat(70_000));
        for stdout in [
            "",
            "no JSON",
            "{}",
            r#"{"outcome":"other"}"#,
            r#"{"outcome":"created","is_file_update":true}"#,
            r#"{"outcome":"text","content":"a","start_line":-1,"num_lines":1,"total_lines":1}"#,
            r#"{"outcome":"media","format":"png","data":"\n"}"#,
            r#"{"outcome":"media","format":"svg","data":"AAAA"}"#,
            &long,
        ] {
            let read = read(view(), &ran(stdout, Exit::default()));
            assert!(matches!(read, Err(RunError::Unknown(_))), "{stdout:?}: {read:?}");
        }
    }

    #[test]
    fn an_edit_without_an_end_has_no_outcome() {
        let created = r#"{"outcome":"created","is_file_update":true}"#;
        let fits = fitting(&Edit::Create { path: "a".into(), file_text: String::new() });
        assert!(read(fits, &ran(created, Exit::default())).is_ok());
        for exit in [
            Exit { code: 124, timed_out: true, ..Exit::default() },
            Exit { code: 137, abandoned: true, ..Exit::default() },
            Exit { stdout_truncated: true, ..Exit::default() },
        ] {
            assert!(matches!(read(fits, &ran(created, exit)), Err(RunError::Unknown(_))));
        }
    }
}
