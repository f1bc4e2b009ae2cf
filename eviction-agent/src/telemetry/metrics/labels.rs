//! What tells the series of a family apart. No label has values without a bound but those of pods, whose
//! series are swept some minutes after the pod is gone.
#![forbid(unsafe_code)]

use prometheus_client::encoding::EncodeLabelSet;

/// Which source uses which backend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct BackendLabels {
    /// `charge`, `oom`, `task`, `reclaim`, `cgroup`, `usage`, `timer`.
    pub source: String,
    /// The backend in use, for instance `tp_btf/mod_memcg_state`.
    pub backend: String,
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

/// A source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct SourceLabels {
    /// As in [`BackendLabels`].
    pub source: String,
}

/// None.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct NoLabels {}

/// An eviction signal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct SignalLabels {
    /// `memory.available`, …
    pub eviction_signal: &'static str,
}

/// A reading that was rejected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct ImplausibleLabels {
    /// `memory.available`, …
    pub eviction_signal: &'static str,
    /// `negative_capacity`, `negative_available`, `available_above_capacity`, `capacity_changed`, `suddenly_nothing`.
    pub reason: &'static str,
}

/// What is watched at the API server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct ResourceLabels {
    /// `pods`, `nodes`.
    pub resource: &'static str,
}

/// A measure of available memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct MeasureLabels {
    /// `working_set`, `mem_available`, `working_set_minus_active_file`.
    pub measure: &'static str,
}

/// What tasks wait for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct PressureLabels {
    /// `cpu`, `io`, `memory`.
    pub resource: &'static str,
}

/// What the agent writes into the node object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct KindLabels {
    /// `conditions`, `taints`.
    pub kind: &'static str,
}

/// What came of a patch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct PatchLabels {
    /// `conditions`, `taints`.
    pub kind: &'static str,
    /// `accepted`, `conflict`, `forbidden`, `throttled`, `gone`, `rejected`, `unauthorized`, `unknown`,
    /// `not_sent`.
    pub result: &'static str,
}

/// What a watch has been through.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct WatchLabels {
    /// `pods`, `nodes`.
    pub resource: &'static str,
    /// `changed`, `unchanged`, `repeated`, `reordered`, `unreadable`, …
    pub event: &'static str,
}

/// A threshold: a signal and its kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct ThresholdLabels {
    /// `memory.available`, …
    pub eviction_signal: &'static str,
    /// `hard` or `soft`.
    pub threshold: &'static str,
}

/// The value of a threshold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct ThresholdValueLabels {
    /// `memory.available`, …
    pub eviction_signal: &'static str,
    /// `hard` or `soft`.
    pub threshold: &'static str,
    /// `agent` or `kubelet`.
    pub source: &'static str,
}

/// What an eviction came to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct EvictionLabels {
    /// The signal that was handled.
    pub eviction_signal: &'static str,
    /// Namespace of the pod.
    pub namespace: String,
}

/// What came of something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct ResultLabels {
    /// docs/reference/metrics.md lists them.
    pub result: &'static str,
}

/// The BPF programs of a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct ProgramLabels {
    /// `charge`, `charge near`, `oom`, `task`, `reclaim`, `cgroup`.
    pub source: &'static str,
}

/// Why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct ReasonLabels {
    /// docs/kernel-kill.md lists them.
    pub reason: &'static str,
}

/// Whose limit an OOM kill hit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct OomLabels {
    /// `container`, `pod`, `qos`, `kubepods`, `other`, `node`, `unknown`.
    pub limit_scope: &'static str,
    /// Namespace of the victim's pod, empty if it belongs to none.
    pub namespace: String,
}

/// OOM kills that the kernel counted and no program saw.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct UnattributedLabels {
    /// The count that moved: `memory.oom_control`, `memory.events`, `vmstat`.
    pub detected_by: &'static str,
    /// Namespace of the pod whose group it was, empty if that is not known.
    pub namespace: String,
}

/// Why a container terminated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct TerminationLabels {
    /// `evicted_by_agent`, `evicted_by_kubelet`, `oom_killed`, `other`.
    pub cause: &'static str,
    /// What else happened to it before it was gone, in the same words; empty if nothing did.
    pub contributing: &'static str,
    /// Whose limit it was, if a kill by the kernel had a part in it; else empty.
    pub limit_scope: &'static str,
    /// Namespace of its pod, empty if that is not known.
    pub namespace: String,
}

/// By what a container's status differs from the verdict on its end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct MismatchLabels {
    /// `no_kill_seen`, `only_a_child_killed`, `kill_not_in_status`, `child_not_in_status`,
    /// `killed_by_eviction`, `killed_by_other_process`.
    pub difference: &'static str,
    /// Namespace of its pod, empty if that is not known.
    pub namespace: String,
}

/// What became of what was to be told as an event of the API.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct EventLabels {
    /// `Evicted`, `ContainerOOMKilled`, `ProcessOOMKilled`, `EvictionThresholdMet`, `EvictionThresholdCleared`.
    pub reason: &'static str,
    /// `noted`, `created`, `counted`, `dropped`, `refused`.
    pub result: &'static str,
}

/// A node condition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct ConditionLabels {
    /// `MemoryPressure`, …
    pub condition: &'static str,
}

/// Why the agent looked at the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct TriggerLabels {
    /// docs/reference/metrics.md lists them.
    pub trigger: &'static str,
}

/// A type of event from the BPF programs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct TypeLabels {
    /// `threshold_crossed`, `oom_kill`, `cgroup_created`, `cgroup_removed`, `task_alarm`.
    pub r#type: &'static str,
}

/// A BPF map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct MapLabels {
    /// `charged_cgroups`, `oom_counts`, `task_stats`, `alarms_sent`, `reclaim_time`, `reclaim_start`.
    pub map: &'static str,
}

/// What was told of too many tasks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct AlarmLabels {
    /// `fork_storm`, `pids_limit`.
    pub alarm: &'static str,
}

/// A group's memory limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct LimitLabels {
    /// `kubepods`, `qos`, `pod`, `container`.
    pub level: &'static str,
    /// Of limits `watched`, `armed`, `near`; of transitions `near`, `away`.
    pub state: &'static str,
}

/// A pod that is there, or was some minutes ago.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct PodLabels {
    /// Its namespace; empty for all that belongs to no known pod.
    pub namespace: String,
    /// Its name; empty for all that belongs to no known pod.
    pub pod: String,
}

/// A pod in the order of eviction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct RankLabels {
    /// The signal that pods are ranked for.
    pub eviction_signal: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct RequestLabels {
    /// `evict_pod`, `list_pods`, …
    pub operation: &'static str,
    /// The status code, `unsent` or `unanswered`.
    pub code: String,
}

/// A queue of the telemetry side.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct QueueLabels {
    /// `events`, `output`, `log`.
    pub queue: &'static str,
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
}

impl Queue {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Events, Self::Output, Self::Log];

    /// The value of the label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Output => "output",
            Self::Log => "log",
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
