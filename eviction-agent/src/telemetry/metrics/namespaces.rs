//! Namespaces as labels of counters that outlive their pods: so many, and no more.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use eviction_core::oom::MismatchKind;
use eviction_core::signal::Signal;

use super::{EvictionLabels, Metrics, MismatchLabels, OomLabels, TerminationLabels, UnattributedLabels};

/// Namespaces with series of their own. A node sees more only where they come and go all day.
const MOST: usize = 512;

/// Stands for all others: no namespace can be called so.
const OTHERS: &str = "_other";

/// Those that have been counted.
#[derive(Debug, Default)]
pub(super) struct Namespaces(BTreeSet<Box<str>>);

impl Namespaces {
    /// What a namespace is counted under; the empty name is that of what is in none.
    fn label(&mut self, name: &str) -> String {
        let known = name.is_empty() || self.0.contains(name);
        if !known {
            if self.0.len() >= MOST {
                return OTHERS.to_owned();
            }
            self.0.insert(name.into());
        }
        name.to_owned()
    }
}

impl Metrics {
    /// The label of a namespace; the empty name is that of pods that are not known.
    pub fn namespace(&self, name: &str) -> String {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).label(name)
    }

    /// Begins the counters of a namespace at 0: `increase()` does not see a series that begins with 1.
    pub fn begin_namespace(&self, name: &str) {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !name.is_empty() && !namespaces.0.contains(name);
        let namespace = namespaces.label(name);
        drop(namespaces);
        if is_new {
            self.begin(&namespace);
        }
    }

    /// The series that most likely get their first event: others begin with theirs.
    pub(super) fn begin(&self, namespace: &str) {
        let namespace = || namespace.to_owned();
        for eviction_signal in Signal::ALL.map(Signal::name) {
            self.evictions.get_or_create(&EvictionLabels { eviction_signal, namespace: namespace() });
        }
        for limit_scope in ["container", "pod", "qos", "kubepods", "node"] {
            self.oom_kills.get_or_create(&OomLabels { limit_scope, namespace: namespace() });
        }
        for detected_by in ["memory.oom_control", "memory.events", "vmstat"] {
            let labels = UnattributedLabels { detected_by, namespace: namespace() };
            self.oom_kills_unattributed.get_or_create(&labels);
        }
        for (cause, limit_scope) in [
            ("evicted_by_agent", ""),
            ("evicted_by_kubelet", ""),
            ("oom_killed", "container"),
            ("oom_killed", "pod"),
            ("other", ""),
        ] {
            let labels = TerminationLabels { cause, contributing: "", limit_scope, namespace: namespace() };
            self.container_terminations.get_or_create(&labels);
        }
        for difference in MismatchKind::ALL.map(MismatchKind::name) {
            let labels = MismatchLabels { difference, namespace: namespace() };
            self.container_status_mismatches.get_or_create(&labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_came_first_are_counted_by_name_for_ever() {
        let mut namespaces = Namespaces::default();
        for nth in 0..MOST {
            assert_eq!(namespaces.label(&format!("n{nth}")), format!("n{nth}"));
        }
        assert_eq!(namespaces.label("late"), OTHERS);
        assert_eq!((namespaces.label("n0"), namespaces.label("")), ("n0".to_owned(), String::new()));
    }

    #[test]
    fn counters_of_a_namespace_exist_before_its_first_event_and_are_bounded() {
        let metrics = Metrics::new("0", "0");
        let series = |namespace: &str| {
            let text = metrics.encode().unwrap();
            let of = format!("namespace=\"{namespace}\"");
            text.lines().filter(|line| line.contains(&of) && line.ends_with(" 0")).count()
        };
        assert_eq!(series("shop"), 0);
        metrics.begin_namespace("shop");
        let each = series("shop");
        assert!(each >= 22, "{each}");
        let labels =
            EvictionLabels { eviction_signal: "memory.available", namespace: metrics.namespace("shop") };
        metrics.evictions.get_or_create(&labels).inc();
        metrics.begin_namespace("shop");
        assert_eq!(metrics.evictions.get_or_create(&labels).get(), 1);
        for round in 0..2 * MOST {
            metrics.begin_namespace(&format!("round-{round}"));
        }
        assert_eq!(metrics.oom_kills.len(), (MOST + 2) * 5, "512 namespaces, the unknown one and all others");
        assert_eq!(metrics.container_status_mismatches.len(), (MOST + 2) * MismatchKind::ALL.len());
        assert_eq!(series(OTHERS), each);
        assert_eq!(metrics.namespace("late"), OTHERS);
    }

    #[test]
    fn any_text_is_a_label() {
        let metrics = Metrics::new("0", "0");
        for name in ["a \"quoted\" one", "two\nlines", "back\\slash", &"x".repeat(253)] {
            metrics.begin_namespace(name);
            let escaped = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let text = metrics.encode().unwrap();
            let line = format!(
                "\neviction_agent_oom_kills_total{{limit_scope=\"pod\",namespace=\"{escaped}\"}} 0\n"
            );
            assert!(text.contains(&line), "{name}: {text}");
        }
    }
}
