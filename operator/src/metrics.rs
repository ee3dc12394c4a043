//! Counters, in the text format of Prometheus. No label names an object.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
};

/// A kind of write to the API server; what bounds a cluster is how many of them a sandbox costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// A claim is made.
    CreateClaim,
    /// A pod is made.
    CreatePod,
    /// A pod is deleted.
    DeletePod,
    /// A Sandbox is deleted at the end of its life.
    DeleteSandbox,
    /// The status of a Sandbox is written.
    Status,
}

impl Write {
    const ALL: [Self; 5] = [Self::CreateClaim, Self::CreatePod, Self::DeletePod, Self::DeleteSandbox, Self::Status];

    const fn label(self) -> &'static str {
        match self {
            Self::CreateClaim => "create_claim",
            Self::CreatePod => "create_pod",
            Self::DeletePod => "delete_pod",
            Self::DeleteSandbox => "delete_sandbox",
            Self::Status => "status",
        }
    }
}

/// The operator's counters.
#[derive(Debug, Default)]
pub struct Metrics {
    passes: AtomicU64,
    failures: AtomicU64,
    watch_errors: AtomicU64,
    writes: [AtomicU64; Write::ALL.len()],
}

impl Metrics {
    /// A pass over one Sandbox began.
    pub fn passed(&self) {
        self.passes.fetch_add(1, Ordering::Relaxed);
    }

    /// A pass failed and is tried again.
    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// A watch was interrupted.
    pub fn watch_failed(&self) {
        self.watch_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// A write was sent.
    pub fn wrote(&self, write: Write) {
        if let Some(counter) = self.writes.get(write as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All counters as text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let single = [
            ("codeexec_operator_passes_total", "Passes over one Sandbox.", &self.passes),
            ("codeexec_operator_failures_total", "Passes that failed and are tried again.", &self.failures),
            ("codeexec_operator_watch_errors_total", "Interruptions of watches.", &self.watch_errors),
        ];
        for (name, help, counter) in single {
            let value = counter.load(Ordering::Relaxed);
            // Writing to a string cannot fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}\n");
        }
        let name = "codeexec_operator_writes_total";
        let _ = write!(text, "# HELP {name} Writes to the API server.\n# TYPE {name} counter\n");
        for (write, counter) in Write::ALL.iter().zip(&self.writes) {
            let _ = writeln!(text, "{name}{{kind=\"{}\"}} {}", write.label(), counter.load(Ordering::Relaxed));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_write_is_counted_under_its_name() {
        let metrics = Metrics::default();
        metrics.wrote(Write::Status);
        metrics.wrote(Write::Status);
        metrics.wrote(Write::DeleteSandbox);
        let text = metrics.render();
        for line in [
            "writes_total{kind=\"status\"} 2",
            "{kind=\"delete_sandbox\"} 1",
            "{kind=\"create_pod\"} 0",
            "passes_total 0",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
