//! Reads counters from the text format of Prometheus.

use std::collections::BTreeMap;

/// One line: its labels, and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Labels by name.
    pub labels: BTreeMap<String, String>,
    /// Value.
    pub value: f64,
}

impl Sample {
    /// The value of a label, empty when it is not there.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map(String::as_str).unwrap_or_default()
    }
}

/// All samples of one metric; lines that cannot be read are left out.
pub fn samples<'a>(text: &'a str, metric: &'a str) -> impl Iterator<Item = Sample> + 'a {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(metric)?;
        if let Some(rest) = rest.strip_prefix('{') {
            let (labels, rest) = labels(rest)?;
            return Some(Sample { labels, value: value(rest)? });
        }
        rest.starts_with(' ').then(|| value(rest)).flatten().map(|value| Sample { labels: BTreeMap::new(), value })
    })
}

/// A time may follow the value.
fn value(text: &str) -> Option<f64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Labels up to the closing brace, and what comes after it.
fn labels(mut text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let (content, rest) = quoted(rest)?;
        labels.insert(name.to_owned(), content);
        text = rest;
    }
}

/// A value up to its closing quote, with `\\`, `\"` and `\n` resolved.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut content, mut escaped) = (String::new(), false);
    for (at, char) in text.char_indices() {
        match (escaped, char) {
            (false, '"') => return Some((content, text.get(at + 1..)?)),
            (false, '\\') => escaped = true,
            (true, 'n') => {
                content.push('\n');
                escaped = false;
            }
            (_, other) => {
                content.push(other);
                escaped = false;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_values_are_read_and_other_metrics_left_out() {
        let text = "# HELP a_total Words {with=\"braces\"} 1\na_total{verb=\"GET\",code=\"200\"} 12\na_total 3\na_total_more{verb=\"GET\"} 9\na_total{broken 4\n";
        let found: Vec<_> = samples(text, "a_total").collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].label("verb"), found[0].label("none"), found[0].value), ("GET", "", 12.0));
        assert!(found[1].labels.is_empty());
    }

    #[test]
    fn quotes_braces_and_large_numbers_inside_are_no_trouble() {
        let found: Vec<_> = samples("m{a=\"x\\\"},y\",b=\"\"} 1.5e+06 1700000000\n", "m").collect();
        assert_eq!(found[0].label("a"), "x\"},y");
        assert!((found[0].value - 1_500_000.0).abs() < 0.1);
    }
}
