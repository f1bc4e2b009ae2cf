//! When the expensive kernel probes are attached: the `probes` part of an `AgentConfiguration`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use eviction_core::units::GoDuration;

/// When kernel probes are attached that cost too much to stay attached, in either profile. A change
/// takes effect at the next start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Probes {
    /// The headroom to a threshold, in percent of the node's memory, below which they are attached; 64Mi
    /// is always near.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub near_threshold_percent: f64,
    /// How long a probe stays attached after it was last needed.
    #[schemars(with = "String", extend("format" = "duration"))]
    pub detach_after: GoDuration,
}

impl Default for Probes {
    fn default() -> Self {
        Self { near_threshold_percent: 3.0, detach_after: GoDuration::from_secs(10) }
    }
}
