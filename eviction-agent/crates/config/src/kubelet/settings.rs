//! The values that count, each with where it came from.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::super::problem::member;
use super::fields::{KubeletFields, StringMap};
use super::layers::Origins;
use eviction_core::policy::Policy;

/// A value of the resolved configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The field, such as `evictionHard["memory.available"]`.
    pub path: String,
    /// Its value as it would be written in a file.
    pub value: String,
    /// Who says so.
    pub origin: Origin,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// Nobody said anything, or zero.
    Default,
    /// A file.
    File(PathBuf),
    /// A drop-in file over it.
    DropIn(PathBuf),
    /// The kubelet itself, asked at this address.
    Configz(String),
    /// A variable of the environment.
    Environment(String),
    /// An option on the command line.
    CommandLine,
}

impl Origin {
    /// Whether nobody said anything.
    pub fn is_default(&self) -> bool {
        matches!(self, Self::Default)
    }

    /// The file in which it stands.
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(file) | Self::DropIn(file) => Some(file),
            Self::Default | Self::Configz(_) | Self::Environment(_) | Self::CommandLine => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(file) => write!(f, "{}", file.display()),
            Self::DropIn(file) => write!(f, "drop-in {}", file.display()),
            Self::Configz(url) => write!(f, "configz {url}"),
            Self::Environment(variable) => write!(f, "environment {variable}"),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, value, origin } = self;
        write!(f, "{path} = {value} ({origin})")
    }
}

/// All of them, in the order of the documentation.
pub(super) fn list(fields: &KubeletFields, policy: &Policy, origins: &Origins) -> Vec<Setting> {
    let origin = |path: &str| origins.get(path).cloned().unwrap_or(Origin::Default);
    let setting = |path: &str, value: String| Setting { path: path.to_owned(), value, origin: origin(path) };
    let map = |field: &str, map: &Option<StringMap>| -> Vec<Setting> {
        map.iter().flatten().map(|(key, value)| setting(&member(field, key), value.clone())).collect()
    };
    let mut settings = map("evictionHard", &fields.eviction_hard);
    settings.extend(map("evictionSoft", &fields.eviction_soft));
    settings.extend(map("evictionSoftGracePeriod", &fields.eviction_soft_grace_period));
    settings.extend(map("evictionMinimumReclaim", &fields.eviction_minimum_reclaim));
    settings.extend([
        setting("evictionPressureTransitionPeriod", policy.pressure_transition_period.to_string()),
        setting("evictionMaxPodGracePeriod", policy.max_pod_grace_period_seconds.to_string()),
        setting("localStorageCapacityIsolation", policy.local_storage_capacity_isolation.to_string()),
        setting("enforceNodeAllocatable", format!("[{}]", fields.enforced().join(", "))),
        setting("featureGates.KubeletSeparateDiskGC", policy.gates.separate_disk_gc.to_string()),
        setting("featureGates.PodLevelResources", policy.gates.pod_level_resources.to_string()),
    ]);
    settings
}
