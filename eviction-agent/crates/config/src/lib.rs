//! Reads configurations and resolves them to the types of the core.
//!
//! All errors in a configuration are reported at once, each with its file and field; see [`Problems`].

mod agent;
mod kubelet;
mod problem;
mod read;
pub mod yaml;

pub use agent::{
    Action, ActionSettings, AgentConfiguration, Capacities, Configz, DryRun, EvictionRequests, KubeletFiles,
    MarginMode, MemoryLimits, MetricsSettings, PodMetrics, PodStorageSettings, PodStorageSource, Probes,
    ReclaimSettings, RecorderSettings, Server, SignalMargin, ThresholdMargin, ThresholdSettings,
    ThresholdSource, load_agent, parse_agent, set_field,
};
pub use kubelet::{
    Effective, KubeletConfiguration, KubeletFields, Origin, Setting, kubelet_policy, load_kubelet,
};
pub use problem::{Problem, Problems};
