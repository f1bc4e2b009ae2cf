//! What can be told about hooks that cost more: the `hooks` part of an `AgentConfiguration`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::core::units::GoDuration;

/// When kernel hooks are attached that cost too much to be attached all the time, in either
/// profile. A change takes effect when the agent is started again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HookPreferences {
    /// How near a line must be, in percent of the node's memory, 0 to 100; 64Mi is always near.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub near_percent: f64,
    /// For how long such a hook stays attached after it was of use.
    #[schemars(with = "String", extend("format" = "duration"))]
    pub calm_after: GoDuration,
}

impl Default for HookPreferences {
    fn default() -> Self {
        Self { near_percent: 3.0, calm_after: GoDuration::from_secs(10) }
    }
}
