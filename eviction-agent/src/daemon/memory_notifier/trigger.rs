//! What causes a sync.

eviction_core::named_enum! {
    /// What caused a sync.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Trigger {
        Start = "start",
        Charge = "charge",
        MemcgV1Threshold = "memcg_v1_threshold",
        Psi = "psi_trigger",
        Timer = "timer",
        EvictionResult = "eviction_result",
        Configuration = "configuration",
        Pods = "pods",
        TaskAlarm = "task_alarm",
        MemoryEvents = "memcg_oom_event",
        /// Process ids alone were due.
        Pids = "pids",
        KubeApi = "kube_api",
        /// What pods use of the disks was read.
        PodStorage = "pod_storage",
        /// A threshold on a file system was crossed.
        DiskThreshold = "disk_threshold",
        /// An attempt of node reclaim has ended.
        NodeReclaim = "node_reclaim",
    }
}
