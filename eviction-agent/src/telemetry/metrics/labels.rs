//! The labels of metrics. Only labels of pods have unbounded values; their series are removed some minutes after the pod
//! is gone.
#![forbid(unsafe_code)]

use prometheus_client::encoding::EncodeLabelSet;

/// Declares sets of labels. docs/reference/metrics.md lists the values of each label.
macro_rules! labels {
    ($($(#[$doc:meta])+ $name:ident { $($label:ident: $type:ty),* })+) => {$(
        $(#[$doc])+
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
        pub struct $name {
            $(#[doc = concat!("The label `", stringify!($label), "`.")] pub $label: $type,)*
        }
    )+};
}

labels! {
    /// A source and the backend that it uses.
    BackendLabels { source: String, backend: String }
    /// A source.
    SourceLabels { source: String }
    /// None.
    NoLabels {}
    /// An eviction signal.
    SignalLabels { eviction_signal: &'static str }
    /// A reading that was rejected.
    ImplausibleLabels { eviction_signal: &'static str, reason: &'static str }
    /// A resource that is watched.
    ResourceLabels { resource: &'static str }
    /// A measure of available memory.
    MeasureLabels { measure: &'static str }
    /// A resource that tasks wait for.
    PressureLabels { resource: &'static str }
    /// What is patched in the node object.
    KindLabels { kind: &'static str }
    /// The result of a patch.
    PatchLabels { kind: &'static str, result: &'static str }
    /// What happened to a watch.
    WatchLabels { resource: &'static str, event: &'static str }
    /// A threshold: a signal and its kind.
    ThresholdLabels { eviction_signal: &'static str, threshold: &'static str }
    /// The value of a threshold.
    ThresholdValueLabels { eviction_signal: &'static str, threshold: &'static str, source: &'static str }
    /// An eviction.
    EvictionLabels { eviction_signal: &'static str, namespace: String }
    /// A result.
    ResultLabels { result: &'static str }
    /// The BPF programs of a source.
    ProgramLabels { source: &'static str }
    /// A reason.
    ReasonLabels { reason: &'static str }
    /// Whose limit an OOM kill hit.
    OomLabels { limit_scope: &'static str, namespace: String }
    /// OOM kills that only the kernel's counters show.
    UnattributedLabels { detected_by: &'static str, namespace: String }
    /// Why a container terminated.
    TerminationLabels { cause: &'static str, contributing: &'static str, limit_scope: &'static str, namespace: String }
    /// How a container's status differs from the cause of its termination.
    MismatchLabels { difference: &'static str, namespace: String }
    /// What became of a Kubernetes Event.
    EventLabels { reason: &'static str, result: &'static str }
    /// A node condition.
    ConditionLabels { condition: &'static str }
    /// What triggered a sync.
    TriggerLabels { trigger: &'static str }
    /// A type of event from the BPF programs.
    TypeLabels { r#type: &'static str }
    /// A BPF map.
    MapLabels { map: &'static str }
    /// A task alarm.
    AlarmLabels { alarm: &'static str }
    /// Memory limits of a level.
    LimitLabels { level: &'static str, state: &'static str }
    /// A pod.
    PodLabels { namespace: String, pod: String }
    /// A pod in the order of eviction.
    RankLabels { eviction_signal: &'static str, namespace: String, pod: String }
    /// A request to the API server.
    RequestLabels { operation: &'static str, code: String }
    /// A queue of the telemetry side.
    QueueLabels { queue: &'static str }
}

impl BackendLabels {
    /// Of a source and the name of the backend as `check` shows it.
    pub fn new(source: &str, name: &str) -> Self {
        // The ring buffer of the BPF programs has one backend only.
        let backend = if source == "ring" { "ringbuf".to_owned() } else { slug(name) };
        Self { source: source.to_owned(), backend }
    }
}

/// Ways to attach a BPF program, with which the names of backends begin.
const ATTACH: [&str; 5] = ["tp_btf", "fentry", "fexit", "kprobe", "iter"];

/// The name of a backend without blanks and commas: `tp_btf mod_memcg_state` is `tp_btf/mod_memcg_state`,
/// and a list of functions or tracepoints is what their names have in common.
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

/// Queues of the telemetry side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// From the control loop and the main thread to the telemetry side.
    Events,
    /// Lines of standard output and of a recording.
    Output,
    /// Lines of the log.
    Log,
    /// Inputs of the engine for the recorder.
    Recorder,
}

impl Queue {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Events, Self::Output, Self::Log, Self::Recorder];

    /// The value of the label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Output => "output",
            Self::Log => "log",
            Self::Recorder => "recorder",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_a_slug() {
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
