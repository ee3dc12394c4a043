//! Tables for people: names at the left, numbers at the right; and the numbers themselves.

use anyhow::Context as _;
use std::{fmt::Write as _, time::Duration};

/// Columns as wide as their content; the first is text, the others are numbers.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With its first row.
    pub fn new(header: impl IntoIterator<Item = &'static str>) -> Self {
        Self { rows: vec![header.into_iter().map(str::to_owned).collect()] }
    }

    /// Adds one; its first cell is its name.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(line, "{cell:<width$}")?,
                    _ => write!(line, "  {cell:>width$}")?,
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// As a number with a fraction.
pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Two decimals below ten, one below a hundred, else none.
pub fn number(value: f64) -> String {
    // A sum over nothing is a negative zero.
    match (value + 0.0).abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{:.2}", value + 0.0),
    }
}

/// The value below which so many of a hundred lie.
pub fn percentile(sorted: &[Duration], percent: usize) -> anyhow::Result<Duration> {
    let last = sorted.len().checked_sub(1).context("nothing was measured")?;
    sorted.get(last * percent / 100).copied().context("nothing was measured")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_as_many_digits_as_matter() {
        let shown: Vec<_> = [-0.0, 0.004, 0.5, 9.994, 9.996, 42.26, 99.96, 1234.5].map(number).into();
        assert_eq!(shown, ["0.00", "0.00", "0.50", "9.99", "10.0", "42.3", "100", "1234"]);
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["what", "n"]);
        table.row(["a longer name".to_owned(), "7".to_owned()]);
        table.row(["b".to_owned(), "1234".to_owned()]);
        assert_eq!(table.to_string(), "what              n\na longer name     7\nb              1234\n");
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let times = [1, 2, 3, 4, 5].map(Duration::from_millis);
        assert_eq!(percentile(&times, 50).unwrap(), Duration::from_millis(3));
        assert_eq!(percentile(&times, 95).unwrap(), Duration::from_millis(4));
        assert!(percentile(&[], 50).is_err());
    }
}
