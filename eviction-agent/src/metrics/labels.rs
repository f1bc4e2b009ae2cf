//! What tells the series of a family apart. No label has values without a bound but those of pods, whose
//! series are swept some minutes after the pod is gone.
#![forbid(unsafe_code)]

use prometheus_client::encoding::EncodeLabelSet;

/// Which source uses which rung of its ladder.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct SourceLabels {
    /// `charge`, `oom`, `task`, `reclaim`, `cgroup`, `usage`, `timer`.
    pub source: String,
    /// The rung in use, for instance `tp_btf mod_memcg_state`.
    pub rung: String,
}

/// An eviction signal.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct SignalLabels {
    /// `memory.available`, …
    pub eviction_signal: &'static str,
}

/// A reading that was not believed.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RefusedLabels {
    /// `memory.available`, …
    pub eviction_signal: &'static str,
    /// `negative_capacity`, `negative_available`, `available_above_capacity`, `capacity_changed`, `suddenly_nothing`.
    pub reason: &'static str,
}

/// What is watched at the API server.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ResourceLabels {
    /// `pods`, `nodes`.
    pub resource: &'static str,
}

/// A kind of mark on the node's own object.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct MarkLabels {
    /// `conditions`, `taints`.
    pub mark: &'static str,
}

/// What a write of marks came to.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct MarkWriteLabels {
    /// `conditions`, `taints`.
    pub mark: &'static str,
    /// `accepted`, `conflict`, `forbidden`, `throttled`, `gone`, `rejected`, `unauthorized`, `unknown`,
    /// `not_sent`.
    pub outcome: &'static str,
}

/// What a watch has been through.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct WatchLabels {
    /// `pods`, `nodes`.
    pub resource: &'static str,
    /// `changed`, `unchanged`, `repeated`, `reordered`, `unreadable`, …
    pub outcome: &'static str,
}

/// A threshold: a signal and its kind.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ThresholdLabels {
    /// `memory.available`, …
    pub eviction_signal: &'static str,
    /// `hard` or `soft`.
    pub kind: &'static str,
}

/// What an eviction came to.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct EvictionLabels {
    /// The signal that was handled.
    pub eviction_signal: &'static str,
    /// Namespace of the pod.
    pub namespace: String,
}

/// What came of a request to the acting hand.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct OutcomeLabels {
    /// `gone`, `left`, `refused`, `dry_run`, …
    pub outcome: &'static str,
}

/// What a program of the kernel side tells about.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct FamilyLabels {
    /// `charge`, `charge near`, `oom`, `task`, `reclaim`, `cgroup`.
    pub source: &'static str,
}

/// Why the reflex did not act.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ReasonLabels {
    /// docs/kernel-kill.md lists them.
    pub reason: &'static str,
}

/// Whose limit an OOM kill hit.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct OomLabels {
    /// `container`, `pod`, `qos`, `kubepods`, `other`, `node`, `unknown`.
    pub limit_owner: &'static str,
    /// Namespace of the victim's pod, empty if it belongs to none.
    pub namespace: String,
}

/// OOM kills that the kernel counted and no program saw.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct UnattributedLabels {
    /// The count that moved: `memory.oom_control`, `memory.events`, `vmstat`.
    pub seen_by: &'static str,
    /// Namespace of the pod whose group it was, empty if that is not known.
    pub namespace: String,
}

/// Why a container ended.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct EndedLabels {
    /// `evicted_by_agent`, `evicted_by_kubelet`, `oom_killed`, `other`.
    pub verdict: &'static str,
    /// What else happened to it before it was gone, in the same words; empty if nothing did.
    pub also: &'static str,
    /// Whose limit it was, if a kill by the kernel had a part in it; else empty.
    pub limit_owner: &'static str,
    /// Namespace of its pod, empty if that is not known.
    pub namespace: String,
}

/// By what a container's status differs from the verdict on its end.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct DifferenceLabels {
    /// `no_kill_seen`, `only_a_child_killed`, `kill_not_in_status`, `child_not_in_status`,
    /// `killed_by_eviction`, `killed_by_other_process`.
    pub difference: &'static str,
    /// Namespace of its pod, empty if that is not known.
    pub namespace: String,
}

/// What became of what was to be told as an event of the API.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct EventLabels {
    /// `Evicted`, `ContainerOOMKilled`, `ProcessOOMKilled`, `EvictionThresholdMet`, `EvictionThresholdCleared`.
    pub reason: &'static str,
    /// `noted`, `created`, `counted`, `dropped`, `refused`.
    pub outcome: &'static str,
}

/// A node condition.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ConditionLabels {
    /// `MemoryPressure`, …
    pub condition: &'static str,
}

/// Why the agent looked at the node.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct TriggerLabels {
    /// docs/reference/metrics.md lists them.
    pub trigger: &'static str,
}

/// A kind of record.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RecordLabels {
    /// `crossed`, `oom_kill`, `cgroup_made`, `cgroup_gone`, `task_alarm`.
    pub record: &'static str,
}

/// A map of the kernel side.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct MapLabels {
    /// `dirty`, `oom_events`, `tasks`, `task_alarms`, `stalls`, `reclaiming`.
    pub map: &'static str,
}

/// What was told of too many tasks.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct AlarmLabels {
    /// `fork_storm`, `pids_limit`.
    pub alarm: &'static str,
}

/// A group's memory limit.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct LimitLabels {
    /// `kubepods`, `qos`, `pod`, `container`.
    pub limit_owner: &'static str,
    /// Of limits `watched`, `armed`, `near`; of crossings `near`, `away`.
    pub state: &'static str,
}

/// A pod that is there, or was some minutes ago.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct PodLabels {
    /// Its namespace; empty for all that belongs to no known pod.
    pub namespace: String,
    /// Its name; empty for all that belongs to no known pod.
    pub pod: String,
}
