//! What would be decided by, and who says so: for people.

use serde::Serialize;

use super::configuration::{Configuration, ConfigurationFiles};
use crate::error::Failure;
use eviction_config::Setting;
use eviction_core::policy::Threshold;
use eviction_core::policy::preferences::Profile;
use eviction_core::signal::Resource;
use eviction_core::units::ThresholdValue;

/// What is decided by.
#[derive(Debug, Serialize)]
pub struct EffectiveConfig {
    /// Whose decisions.
    pub profile: Profile,
    /// When the agent acts: the thresholds after all of the settings.
    pub thresholds: Vec<EffectiveThreshold>,
    /// Every value, and where it came from.
    pub settings: Vec<Setting>,
    /// What is accepted but will surprise.
    pub notes: Vec<String>,
}

/// A threshold of the agent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveThreshold {
    /// What is measured.
    pub signal: &'static str,
    /// Whether `run` watches it: disks it does not, and `replay` alone decides by them.
    pub watched: bool,
    /// Less than this is too little: a quantity, or a percentage.
    pub below: String,
    /// For how long it must be met; nothing where it acts at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<String>,
    /// How much more must be available before it counts as resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_reclaim: Option<String>,
}

/// Reads the configuration, and says what it comes to.
///
/// # Errors
/// Everything that is wrong with it.
pub fn configured(files: &ConfigurationFiles) -> Result<EffectiveConfig, Failure> {
    files.load().map(EffectiveConfig::of)
}

impl EffectiveConfig {
    pub(super) fn of(configuration: Configuration) -> Self {
        let Configuration { policy, profile, service: _, kubelet: _, settings, notes } = configuration;
        let thresholds = policy.thresholds.iter().map(acts_below).collect();
        Self { profile, thresholds, settings, notes }
    }
}

fn acts_below(threshold: &Threshold) -> EffectiveThreshold {
    let Threshold { signal, value, grace_period, min_reclaim } = threshold;
    EffectiveThreshold {
        signal: signal.name(),
        watched: matches!(signal.resource(), Resource::Memory | Resource::Pids),
        below: written(value),
        grace_period: (!threshold.is_hard()).then(|| grace_period.to_string()),
        min_reclaim: min_reclaim.as_ref().map(written),
    }
}

fn written(value: &ThresholdValue) -> String {
    match value {
        ThresholdValue::Quantity(quantity) => quantity.to_string(),
        // As short as a share of 32 bits allows.
        ThresholdValue::Percentage(share) => format!("{}%", (f64::from(*share) * 1e6).round() / 1e4),
    }
}
