//! Who wrote, by the API server's audit log. The log is read from the place where a measurement began.

use anyhow::Context as _;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead as _, BufReader, Seek as _, SeekFrom},
    path::PathBuf,
};

/// Number of writes by program and kind.
pub type Writers = BTreeMap<String, u64>;

/// The log, where there is one.
pub struct AuditLog {
    path: Option<PathBuf>,
}

impl AuditLog {
    /// Of this file.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path }
    }

    /// The end of the log at this moment.
    pub fn place(&self) -> u64 {
        self.path.as_ref().and_then(|path| path.metadata().ok()).map_or(0, |metadata| metadata.len())
    }

    /// Who wrote since that place; nothing without a log, or when the log has been begun anew meanwhile.
    pub fn writers_since(&self, place: u64) -> anyhow::Result<Option<Writers>> {
        let Some(path) = self.path.as_ref().filter(|_| self.place() >= place) else { return Ok(None) };
        let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        file.seek(SeekFrom::Start(place))?;
        let mut writers = Writers::new();
        for line in BufReader::new(file).lines() {
            if let Some(writer) = writer(&line?) {
                *writers.entry(writer).or_default() += 1;
            }
        }
        Ok(Some(writers))
    }
}

/// Program, verb and resource of a line, when it is a write that was done.
fn writer(line: &str) -> Option<String> {
    let event: Value = serde_json::from_str(line).ok()?;
    let verb = event["verb"].as_str()?;
    let writes = matches!(verb, "create" | "update" | "patch" | "delete" | "deletecollection");
    let code = event["responseStatus"]["code"].as_u64()?;
    let resource = event["objectRef"]["resource"].as_str()?;
    if !writes || event["stage"] != "ResponseComplete" || code >= 300 || resource.ends_with("reviews") {
        return None;
    }
    let name = match event["userAgent"].as_str() {
        // The operator's client does not name itself.
        None | Some("") => "no name",
        Some(agent) => agent.split(['/', ' ']).next().unwrap_or(agent),
    };
    let subresource = event["objectRef"]["subresource"].as_str().map(|name| format!("/{name}")).unwrap_or_default();
    Some(format!("{name}: {verb} {resource}{subresource}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::Write as _;

    fn line(agent: &str, verb: &str, code: u16) -> String {
        json!({
            "stage": "ResponseComplete", "verb": verb, "userAgent": agent, "responseStatus": {"code": code},
            "objectRef": {"resource": "pods", "subresource": "status"},
        })
        .to_string()
    }

    #[test]
    fn only_writes_that_were_done_count_under_the_program() {
        assert_eq!(
            writer(&line("kube-scheduler/v1.36 (linux)", "patch", 200)).unwrap(),
            "kube-scheduler: patch pods/status"
        );
        assert_eq!(writer(&line("", "create", 201)).unwrap(), "no name: create pods/status");
        assert_eq!(writer(&line("x", "patch", 409)), None);
        assert_eq!(writer(&line("x", "get", 200)), None);
        assert_eq!(writer("cut off in the midd"), None);
    }

    #[test]
    fn what_was_written_before_the_place_does_not_count() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{}", line("before", "patch", 200)).unwrap();
        let log = AuditLog::new(Some(file.path().to_owned()));
        let place = log.place();
        writeln!(file, "{}", line("after", "patch", 200)).unwrap();
        assert_eq!(
            log.writers_since(place).unwrap().unwrap(),
            Writers::from([("after: patch pods/status".to_owned(), 1)])
        );
        assert_eq!(AuditLog::new(None).writers_since(0).unwrap(), None);
    }
}
