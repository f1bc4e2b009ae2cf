//! The fields of a `KubeletConfiguration` that count here, and their defaults.

use std::collections::BTreeMap;

use eviction_core::signal::Signal;
use eviction_core::units::GoDuration;
use serde::de::{Deserialize, Deserializer, Error, Unexpected};
use serde_json::{Map, Value};

use super::super::document::integer;

pub(super) type StringMap = BTreeMap<String, String>;

/// What the files say, `None` where they say nothing. Null is what Go's decoder makes of it.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Fields {
    #[serde(deserialize_with = "map")]
    pub(super) eviction_hard: Option<StringMap>,
    #[serde(deserialize_with = "map")]
    pub(super) eviction_soft: Option<StringMap>,
    #[serde(deserialize_with = "map")]
    pub(super) eviction_soft_grace_period: Option<StringMap>,
    #[serde(deserialize_with = "map")]
    pub(super) eviction_minimum_reclaim: Option<StringMap>,
    #[serde(deserialize_with = "duration")]
    pub(super) eviction_pressure_transition_period: Option<GoDuration>,
    #[serde(deserialize_with = "int32")]
    pub(super) eviction_max_pod_grace_period: Option<i32>,
    pub(super) merge_default_eviction_settings: Option<bool>,
    pub(super) local_storage_capacity_isolation: Option<bool>,
    #[serde(deserialize_with = "list")]
    pub(super) enforce_node_allocatable: Option<Vec<String>>,
    #[serde(deserialize_with = "map")]
    pub(super) feature_gates: Option<BTreeMap<String, bool>>,
}

/// Their names in files.
pub(super) const NAMES: [&str; 10] = [
    "evictionHard",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "evictionMinimumReclaim",
    "evictionPressureTransitionPeriod",
    "evictionMaxPodGracePeriod",
    "mergeDefaultEvictionSettings",
    "localStorageCapacityIsolation",
    "enforceNodeAllocatable",
    "featureGates",
];

/// A member that is null has the zero value.
fn map<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, T>>, D::Error> {
    let map = Option::<BTreeMap<String, Option<T>>>::deserialize(deserializer)?;
    Ok(map.map(|map| map.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect()))
}

fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    let list = Option::<Vec<Option<String>>>::deserialize(deserializer)?;
    Ok(list.map(|list| list.into_iter().map(Option::unwrap_or_default).collect()))
}

/// Null is no duration.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<GoDuration>, D::Error> {
    GoDuration::deserialize(deserializer).map(Some)
}

fn int32<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i32>, D::Error> {
    let Some(value) = Option::<Value>::deserialize(deserializer)? else { return Ok(None) };
    let integer = integer(&value).and_then(|value| i32::try_from(value).ok());
    let wrong = || D::Error::invalid_type(Unexpected::Other("value"), &"an integer of 32 bits");
    integer.ok_or_else(wrong).map(Some)
}

impl Fields {
    /// Absent or zero means five minutes.
    pub(super) fn pressure_transition_period(&self) -> GoDuration {
        let period = self.eviction_pressure_transition_period;
        period.filter(|period| *period != GoDuration::ZERO).unwrap_or(GoDuration::from_secs(300))
    }

    /// Absent means the pods as a whole; an empty list means nothing.
    pub(super) fn enforced(&self) -> Vec<&str> {
        match &self.enforce_node_allocatable {
            Some(list) => list.iter().map(String::as_str).collect(),
            None => vec!["pods"],
        }
    }
}

/// `loadConfigFile`: the default hard thresholds (`DefaultEvictionHard` on Linux), of which any map that is
/// given replaces all, unless it asks for those it lacks.
pub(super) fn default_eviction_hard(object: &mut Map<String, Value>) {
    let merge = object.get("mergeDefaultEvictionSettings") == Some(&Value::Bool(true));
    let given = object.entry("evictionHard").or_insert(Value::Null);
    let is_absent = given.is_null();
    if is_absent {
        *given = Value::Object(Map::new());
    }
    let Value::Object(given) = given else { return };
    if !is_absent && !merge {
        return;
    }
    for (signal, value) in [
        (Signal::MemoryAvailable, "100Mi"),
        (Signal::NodeFsAvailable, "10%"),
        (Signal::NodeFsInodesFree, "5%"),
        (Signal::ImageFsAvailable, "15%"),
        (Signal::ImageFsInodesFree, "5%"),
    ] {
        given.entry(signal.name()).or_insert_with(|| value.into());
    }
}
