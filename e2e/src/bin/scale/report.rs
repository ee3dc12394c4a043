//! The tables. Values that the project has set itself as goals stand beside the goal.

use crate::{
    audit::Writers,
    creation::{Creation, Pairs},
    rest::{Rest, Suspension},
    table::{Table, millis, number, percentile},
    traffic::{Kind, Writes},
};
use anyhow::Context as _;
use std::{collections::BTreeSet, io::Write as _};

/// Operator CPU for one sandbox, in milliseconds.
const CPU_GOAL: f64 = 30.0;
/// The operator's resident memory, in MB.
const MEMORY_GOAL: f64 = 100.0;
/// Sandboxes Ready a second, as a part of bare pods Ready a second.
const RATE_GOAL: f64 = 0.5;

/// Prints one at a time.
pub fn pairs(pairs: &Pairs) -> anyhow::Result<()> {
    let mut table = Table::new(["one at a time, create to Ready", "n", "p50 ms", "p95 ms", "x bare"]);
    let base = percentile(&pairs.bare, 50)?;
    for (name, times) in [("bare pod with a claim", &pairs.bare), ("sandbox", &pairs.sandboxes)] {
        let p50 = percentile(times, 50)?;
        table.row([
            name.to_owned(),
            times.len().to_string(),
            number(millis(p50)),
            number(millis(percentile(times, 95)?)),
            number(p50.as_secs_f64() / base.as_secs_f64()),
        ]);
    }
    print(&table.to_string())
}

/// Prints many at once: the runs in their order, sums, and writes by kind.
pub fn creations(runs: &[Creation]) -> anyhow::Result<()> {
    let mut table = Table::new(["many at once", "n", "Ready/s", "p50 s", "p95 s", "writes each", "refused each"]);
    for run in runs {
        table.row([
            run.name.to_owned(),
            run.count.to_string(),
            number(rate(run)),
            number(percentile(&run.latencies, 50)?.as_secs_f64()),
            number(percentile(&run.latencies, 95)?.as_secs_f64()),
            number(run.writes.counted() / float(run.count)),
            number(run.writes.refused.values().sum::<f64>() / float(run.count)),
        ]);
    }
    print(&table.to_string())?;
    let sandboxes = runs.iter().find(|run| run.name == "sandboxes").context("no run with sandboxes")?;
    let bare: Vec<_> = runs.iter().filter(|run| run.name != "sandboxes").collect();
    print(&goals(sandboxes, &bare).to_string())?;
    let (first, writes) = (bare.first().context("no run with bare pods")?, &sandboxes.writes);
    print(&kinds(&[("bare", &first.writes, first.count), ("sandbox", writes, sandboxes.count)]).to_string())?;
    writers("writes of one sandbox, by the audit log", sandboxes.writers.as_ref(), float(sandboxes.count))
}

fn goals(sandboxes: &Creation, bare: &[&Creation]) -> Table {
    let rates: Vec<_> = bare.iter().map(|run| rate(run)).collect();
    let mean = rates.iter().sum::<f64>() / float(rates.len());
    let each = float(sandboxes.count);
    let mut table = Table::new(["the operator", "value", "goal"]);
    let mut row = |name: &str, value: f64, goal: String| table.row([name.to_owned(), number(value), goal]);
    row("rate of sandboxes, x bare pods", rate(sandboxes) / mean, format!("> {RATE_GOAL}"));
    row("CPU ms for one sandbox", millis(sandboxes.operator_cpu) / each, format!("< {CPU_GOAL}"));
    row("memory MB with all Ready", sandboxes.operator.resident_mb, format!("< {MEMORY_GOAL}"));
    row("memory MB at most", sandboxes.operator.peak_mb, String::new());
    row("its own writes for one sandbox", sandboxes.own_writes / each, "4".to_owned());
    row("simulated kubelet, CPU ms for one", millis(sandboxes.kubelet_cpu) / each, String::new());
    table
}

/// Prints suspended ones: the way there, and the rest.
pub fn rest(suspended: &Suspension, rest: &Rest) -> anyhow::Result<()> {
    let (each, minutes) = (float(suspended.count), rest.time.as_secs_f64() / 60.0);
    let mut table = Table::new(["started, idled out, suspended", "value"]);
    let mut row = |name: &str, value: f64| table.row([name.to_owned(), number(value)]);
    row("sandboxes", each);
    row("suspended a second", each / suspended.wall.as_secs_f64());
    row("operator CPU ms for one", millis(suspended.operator_cpu) / each);
    row("the operator's own writes for one", suspended.own_writes / each);
    row("writes of everybody for one", suspended.writes.counted() / each);
    print(&table.to_string())?;

    let leases = rest.writes.of(|kind| kind.resource == "leases");
    let beats = rest.writes.of(|kind| kind.resource == "nodes/status");
    let others = rest.writes.of(|_| true) - leases - beats;
    let mut table = Table::new(["at rest", "value", "goal"]);
    let mut row = |name: &str, value: f64, goal: &str| table.row([name.to_owned(), number(value), goal.to_owned()]);
    row("minutes", minutes, "");
    row("writes a minute, without Leases and node heartbeats", others / minutes, "0");
    row("the operator's own writes a minute", rest.own_writes / minutes, "0");
    row("Leases a minute", leases / minutes, "");
    row("node heartbeats a minute", beats / minutes, "");
    row("operator CPU ms a minute", millis(rest.operator_cpu) / minutes, "");
    row("operator memory MB", rest.operator.resident_mb, "");
    print(&table.to_string())?;
    if others > 0.0 {
        let left = |kind: &Kind| !matches!(kind.resource.as_str(), "leases" | "nodes/status");
        let mut table = Table::new(["writes at rest", "n"]);
        for (kind, count) in rest.writes.done.iter().filter(|(kind, _)| left(kind)) {
            table.row([kind.to_string(), number(*count)]);
        }
        print(&table.to_string())?;
    }
    writers("writes at rest, by the audit log", rest.writers.as_ref(), 1.0)
}

/// Writes for one of each run, side by side; what is rarer than one in a hundred is left out.
fn kinds(runs: &[(&'static str, &Writes, usize)]) -> Table {
    let all: BTreeSet<&Kind> = runs.iter().flat_map(|(_, writes, _)| writes.done.keys()).collect();
    let mut table = Table::new(std::iter::once("writes of one").chain(runs.iter().map(|(name, ..)| *name)));
    for kind in all {
        let each: Vec<_> = runs
            .iter()
            .map(|(_, writes, count)| writes.done.get(kind).copied().unwrap_or_default() / float(*count))
            .collect();
        if each.iter().any(|value| *value >= 0.01) {
            table.row(std::iter::once(kind.to_string()).chain(each.into_iter().map(number)));
        }
    }
    table
}

fn writers(title: &'static str, writers: Option<&Writers>, each: f64) -> anyhow::Result<()> {
    let Some(writers) = writers.filter(|writers| !writers.is_empty()) else { return Ok(()) };
    let mut table = Table::new([title, "n"]);
    for (writer, count) in writers {
        let value = f64::from(u32::try_from(*count).unwrap_or(u32::MAX)) / each;
        if value >= 0.01 {
            table.row([writer.clone(), number(value)]);
        }
    }
    print(&table.to_string())
}

fn print(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{text}").context("writing the report")
}

fn rate(run: &Creation) -> f64 {
    float(run.count) / run.wall.as_secs_f64()
}

fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_stand_side_by_side_and_rare_ones_are_left_out() {
        let kind = |verb: &str, resource: &str| Kind { resource: resource.to_owned(), verb: verb.to_owned() };
        let of = |list: &[(&str, &str, f64)]| Writes {
            done: list.iter().map(|(verb, resource, count)| (kind(verb, resource), *count)).collect(),
            ..Writes::default()
        };
        let bare = of(&[("POST", "pods", 100.0), ("PUT", "leases", 0.5)]);
        let sandbox = of(&[("POST", "pods", 100.0), ("POST", "sandboxes", 100.0)]);
        let text = kinds(&[("bare", &bare, 100), ("sandbox", &sandbox, 100)]).to_string();
        assert_eq!(
            text,
            "writes of one   bare  sandbox\nPOST pods       1.00     1.00\nPOST sandboxes  0.00     1.00\n"
        );
    }
}
