//! Times beside each other.

use anyhow::Context as _;
use std::{fmt::Write as _, time::Duration};

pub(crate) struct Row {
    name: &'static str,
    times: Vec<Duration>,
}

impl Row {
    pub(crate) fn new(name: &'static str, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { name, times }
    }

    fn percentile(&self, percent: usize) -> Option<Duration> {
        self.times.get(self.times.len().checked_sub(1)? * percent / 100).copied()
    }
}

/// The rows as text, each as a multiple of the median of those that `beside` names by their places.
pub(crate) fn table(title: &str, headings: &[&str], beside: &[usize], rows: &[Row]) -> anyhow::Result<String> {
    let medians: Vec<f64> = beside
        .iter()
        .map(|place| Some(rows.get(*place)?.percentile(50)?.as_secs_f64()))
        .collect::<Option<_>>()
        .context("nothing was measured")?;
    let mut text = format!("{title:<40} {:>5} {:>9} {:>9}", "n", "p50 ms", "p95 ms");
    for heading in headings {
        write!(text, " {heading:>16}")?;
    }
    for row in rows {
        let (p50, p95) = row.percentile(50).zip(row.percentile(95)).context("nothing was measured")?;
        let (p50, p95) = (p50.as_secs_f64(), p95.as_secs_f64());
        write!(text, "\n{:<40} {:>5} {:>9.2} {:>9.2}", row.name, row.times.len(), p50 * 1e3, p95 * 1e3)?;
        for median in &medians {
            write!(text, " {:>16.3}", p50 / median)?;
        }
    }
    Ok(text)
}

/// Bytes for people.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let row = Row::new("", [5, 1, 4, 2, 3].map(Duration::from_millis).into());
        assert_eq!(row.percentile(50), Some(Duration::from_millis(3)));
        assert_eq!(row.percentile(95), Some(Duration::from_millis(4)));
        assert_eq!(Row::new("", Vec::new()).percentile(50), None);
    }
}
