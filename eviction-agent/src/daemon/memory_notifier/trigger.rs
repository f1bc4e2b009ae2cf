//! What causes a sync.

/// What caused a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    Start,
    Charge,
    MemcgV1Threshold,
    Psi,
    Timer,
    EvictionResult,
    Configuration,
    Pods,
    TaskAlarm,
    MemoryEvents,
    /// Process ids alone were due.
    Pids,
    KubeApi,
    /// What pods use of the disks was read.
    PodStorage,
    /// A threshold on a file system was crossed.
    DiskThreshold,
    /// An attempt of node reclaim has ended.
    NodeReclaim,
}

impl Trigger {
    /// Each of them, in the order of their numbers.
    pub(crate) const ALL: [Self; 15] = [
        Self::Start,
        Self::Charge,
        Self::MemcgV1Threshold,
        Self::Psi,
        Self::Timer,
        Self::EvictionResult,
        Self::Configuration,
        Self::Pods,
        Self::TaskAlarm,
        Self::MemoryEvents,
        Self::Pids,
        Self::KubeApi,
        Self::PodStorage,
        Self::DiskThreshold,
        Self::NodeReclaim,
    ];

    /// Returns its name in metrics and event lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Charge => "charge",
            Self::MemcgV1Threshold => "memcg_v1_threshold",
            Self::Psi => "psi_trigger",
            Self::Timer => "timer",
            Self::EvictionResult => "eviction_result",
            Self::Configuration => "configuration",
            Self::Pods => "pods",
            Self::TaskAlarm => "task_alarm",
            Self::MemoryEvents => "memcg_oom_event",
            Self::Pids => "pids",
            Self::KubeApi => "kube_api",
            Self::PodStorage => "pod_storage",
            Self::DiskThreshold => "disk_threshold",
            Self::NodeReclaim => "node_reclaim",
        }
    }
}
