//! Values of labels: a limited number of namespaces, and backends.
//!
//! docs/reference/metrics.md lists the values of each label. Only labels of pods have unbounded values; their
//! series are removed some minutes after the pod was deleted.

use std::sync::PoisonError;

use eviction_core::oom::MismatchKind;
use eviction_core::signal::Signal;

use super::Metrics;
use super::family::Label;

/// The maximum number of namespaces that have their own series. A node has more only where namespaces are
/// created and deleted all day.
const MAX_NAMESPACES: usize = 512;

/// The label of all other namespaces. No namespace can have this name.
const OTHERS: &str = "_other";

impl Metrics {
    /// Returns the label of a namespace. The empty name is for unknown pods.
    pub fn namespace(&self, name: &str) -> Label {
        self.label_of(name).0
    }

    /// Creates the counters of a namespace at 0, because `increase()` does not see a series that starts at 1.
    pub fn begin_namespace(&self, name: &str) {
        let (namespace, is_new) = self.label_of(name);
        if is_new {
            self.begin(&namespace);
        }
    }

    /// Returns the label of a namespace, and whether the name had no label of its own before.
    fn label_of(&self, name: &str) -> (Label, bool) {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !name.is_empty() && !namespaces.contains(name);
        if is_new && namespaces.len() >= MAX_NAMESPACES {
            return (OTHERS.into(), true);
        }
        if is_new {
            namespaces.insert(name.into());
        }
        (name.to_owned().into(), is_new)
    }

    /// Creates the series that are most likely to get an event. Other series are created by their first
    /// event.
    pub(super) fn begin(&self, namespace: &Label) {
        for signal in Signal::ALL.map(Signal::name) {
            self.evictions.with([signal.into(), namespace.clone()]);
        }
        for scope in ["container", "pod", "qos", "kubepods", "node"] {
            self.oom_kills.with([scope.into(), namespace.clone()]);
        }
        for detected_by in ["memory.oom_control", "memory.events", "vmstat"] {
            self.oom_kills_unattributed.with([detected_by.into(), namespace.clone()]);
        }
        for (cause, scope) in [
            ("evicted_by_agent", ""),
            ("evicted_by_kubelet", ""),
            ("oom_killed", "container"),
            ("oom_killed", "pod"),
            ("other", ""),
        ] {
            let no_contributing = "".into();
            let labels = [cause.into(), no_contributing, scope.into(), namespace.clone()];
            self.container_terminations.with(labels);
        }
        for difference in MismatchKind::ALL.map(MismatchKind::name) {
            self.container_status_mismatches.with([difference.into(), namespace.clone()]);
        }
    }
}

/// Returns the labels of a source and of its backend. `name` is the name that `check` shows.
pub fn backend_labels(source: &str, name: &str) -> [Label; 2] {
    // The ring buffer of the BPF programs has only one backend.
    let backend = if source == "ring" { "ringbuf".to_owned() } else { slug(name) };
    [source.to_owned().into(), backend.into()]
}

/// The attach methods of BPF programs, with which names of backends start.
const ATTACH: [&str; 5] = ["tp_btf", "fentry", "fexit", "kprobe", "iter"];

/// Returns the name of a backend without blanks and commas: `tp_btf mod_memcg_state` becomes
/// `tp_btf/mod_memcg_state`, and a list of functions or tracepoints becomes the common part of their names.
fn slug(name: &str) -> String {
    let (attach, targets) = match name.split_once(' ') {
        Some((attach, targets)) if ATTACH.contains(&attach) => (attach, targets),
        _ => return plain(name),
    };
    let mut targets = targets.split(", ");
    let first = targets.next().unwrap_or_default();
    let mut common = first.to_owned();
    for target in targets {
        let same = common.chars().zip(target.chars()).take_while(|(one, other)| one == other).count();
        common.truncate(same);
        if let Some(word) = common.rfind('_') {
            common.truncate(word);
        }
    }
    if common.len() < first.len() {
        common = common.trim_end_matches("_process").to_owned();
    }
    format!("{attach}/{}", plain(&common))
}

fn plain(text: &str) -> String {
    let is_kept = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
    let text: String = text.chars().map(|letter| if is_kept(letter) { letter } else { '_' }).collect();
    text.trim_matches('_').to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::Form;
    use super::*;

    #[test]
    fn namespaces_beyond_the_maximum_share_one_label() {
        let metrics = Metrics::new("0", "0");
        for nth in 0..MAX_NAMESPACES {
            assert_eq!(metrics.namespace(&format!("n{nth}")), format!("n{nth}"));
        }
        assert_eq!(metrics.namespace("late"), OTHERS);
        assert_eq!((&*metrics.namespace("n0"), &*metrics.namespace("")), ("n0", ""));
    }

    #[test]
    fn counters_of_a_namespace_exist_before_its_first_event_and_are_bounded() {
        let metrics = Metrics::new("0", "0");
        let series = |namespace: &str| {
            let text = metrics.encode(Form::OpenMetrics).unwrap();
            let of = format!("namespace=\"{namespace}\"");
            text.lines().filter(|line| line.contains(&of) && line.ends_with(" 0")).count()
        };
        assert_eq!(series("shop"), 0);
        metrics.begin_namespace("shop");
        let each = series("shop");
        assert!(each >= 22, "{each}");
        let evictions = || metrics.evictions.with(["memory.available".into(), metrics.namespace("shop")]);
        evictions().inc();
        metrics.begin_namespace("shop");
        assert_eq!(evictions().get(), 1);
        for round in 0..2 * MAX_NAMESPACES {
            metrics.begin_namespace(&format!("round-{round}"));
        }
        assert_eq!(
            metrics.oom_kills.series().len(),
            (MAX_NAMESPACES + 2) * 5,
            "512 namespaces, the unknown one and all others"
        );
        let mismatches = metrics.container_status_mismatches.series();
        assert_eq!(mismatches.len(), (MAX_NAMESPACES + 2) * MismatchKind::ALL.len());
        assert_eq!(series(OTHERS), each);
        assert_eq!(metrics.namespace("late"), OTHERS);
    }

    #[test]
    fn any_text_is_escaped_as_a_label_value() {
        let metrics = Metrics::new("0", "0");
        for name in ["a \"quoted\" one", "two\nlines", "back\\slash", &"x".repeat(253)] {
            metrics.begin_namespace(name);
            let escaped = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let text = metrics.encode(Form::OpenMetrics).unwrap();
            let line = format!(
                "\neviction_agent_oom_kills_total{{limit_scope=\"pod\",namespace=\"{escaped}\"}} 0\n"
            );
            assert!(text.contains(&line), "{name}: {text}");
        }
    }

    #[test]
    fn backend_label_is_a_slug_of_the_name() {
        for (name, expected) in [
            ("tp_btf mod_memcg_state", "tp_btf/mod_memcg_state"),
            ("tp_btf sched_process_fork, sched_process_exec, sched_process_exit", "tp_btf/sched"),
            ("tp_btf cgroup_mkdir, cgroup_rmdir", "tp_btf/cgroup"),
            ("kprobe oom_kill_process", "kprobe/oom_kill_process"),
            ("kprobe oom_kill_process, oom_kill_memcg_member", "kprobe/oom_kill"),
            ("tp_btf mark_victim(task)", "tp_btf/mark_victim_task"),
            ("cgroup v1 threshold", "cgroup_v1_threshold"),
            ("timerfd", "timerfd"),
            ("", ""),
        ] {
            assert_eq!(slug(name), expected, "{name}");
        }
    }
}
