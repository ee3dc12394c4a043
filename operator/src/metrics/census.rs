//! How many sandboxes there are, counted when somebody asks.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// Templates with a label of their own.
const MOST_TEMPLATES: usize = 100;
/// Stands for all further templates.
const OTHER: &str = "other";

type Source = Box<dyn Fn(&mut Tally) + Send + Sync>;

/// The namespaces' ways to count. Clones are one census.
#[derive(Clone, Default)]
pub(super) struct Census {
    sources: Arc<Mutex<BTreeMap<String, Source>>>,
}

impl Census {
    /// Counts a namespace by this from now on.
    pub(super) fn add(&self, namespace: &str, source: impl Fn(&mut Tally) + Send + Sync + 'static) {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.insert(namespace.to_owned(), Box::new(source));
    }

    fn count(&self) -> Tally {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tally = Tally::default();
        for source in sources.values() {
            source(&mut tally);
        }
        tally.bounded()
    }
}

impl fmt::Debug for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Census").finish_non_exhaustive()
    }
}

impl Collector for Census {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let help = "Sandboxes by template and phase";
        let mut family = encoder.encode_descriptor("sandboxes", help, None, MetricType::Gauge)?;
        for ((template, phase), count) in &self.count().sandboxes {
            let labels = [("template", template.as_str()), ("phase", phase)];
            ConstGauge::new(*count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Sandboxes of one template in one phase.
#[derive(Debug, Default)]
pub struct Tally {
    sandboxes: BTreeMap<(String, &'static str), u64>,
}

impl Tally {
    /// One more.
    pub fn count(&mut self, template: &str, phase: &'static str) {
        *self.sandboxes.entry((template.to_owned(), phase)).or_default() += 1;
    }

    /// The first templates by name keep their label, so that a series does not come and go with numbers.
    fn bounded(self) -> Self {
        let templates: BTreeSet<&str> = self.sandboxes.keys().map(|(template, _)| template.as_str()).collect();
        let Some(first_other) = templates.into_iter().nth(MOST_TEMPLATES).map(str::to_owned) else { return self };
        let mut bounded = Self::default();
        for ((template, phase), count) in self.sandboxes {
            let label = if template < first_other { template } else { OTHER.to_owned() };
            *bounded.sandboxes.entry((label, phase)).or_default() += count;
        }
        bounded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_beyond_the_bound_are_counted_together() {
        let mut tally = Tally::default();
        for template in 0..MOST_TEMPLATES + 20 {
            tally.count(&format!("t{template:04}"), "Ready");
        }
        let bounded = tally.bounded().sandboxes;
        assert_eq!(bounded.len(), MOST_TEMPLATES + 1);
        assert_eq!(bounded.get(&(OTHER.to_owned(), "Ready")), Some(&20));
        assert_eq!(bounded.values().sum::<u64>(), 120);
    }

    #[test]
    fn a_namespace_that_is_counted_anew_is_not_counted_twice() {
        let census = Census::default();
        census.add("a", |tally| tally.count("t", "Ready"));
        census.add("a", |tally| tally.count("t", "Ready"));
        census.add("b", |tally| tally.count("t", "Ready"));
        assert_eq!(census.count().sandboxes.get(&("t".to_owned(), "Ready")), Some(&2));
    }
}
