//! CPU time and memory of this process, under the names that every Prometheus client uses.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};
use std::fmt;

/// Reads `/proc/self` when somebody asks.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let read = |path| std::fs::read_to_string(path).ok();
        if let Some(ticks) = read("/proc/self/stat").as_deref().and_then(cpu_ticks) {
            #[expect(clippy::cast_precision_loss, reason = "exact for 2^53 ticks")]
            let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
            let help = "User and system CPU time";
            let metric = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            ConstCounter::new(seconds).encode(metric)?;
        }
        if let Some(pages) = read("/proc/self/statm").as_deref().and_then(resident_pages) {
            let bytes = pages.saturating_mul(u64::try_from(rustix::param::page_size()).unwrap_or(u64::MAX));
            let help = "Resident memory";
            let metric = encoder.encode_descriptor("process_resident_memory_bytes", help, None, MetricType::Gauge)?;
            ConstGauge::new(bytes).encode(metric)?;
        }
        Ok(())
    }
}

/// Ticks of user and system time. The name before them may hold blanks and brackets, so counting starts after its last bracket.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()?.saturating_add(next()?))
}

fn resident_pages(statm: &str) -> Option<u64> {
    statm.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_brackets_misleads_nobody() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 7 8 20 0 4 0 1000 1000000 300";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("42 (a"), None);
        assert_eq!(resident_pages("1000 300 200 1 0 100 0"), Some(300));
    }
}
