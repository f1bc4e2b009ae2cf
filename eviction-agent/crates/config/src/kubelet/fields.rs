//! The fields of a `KubeletConfiguration` that the agent uses, and their defaults.

use std::collections::BTreeMap;

use eviction_core::policy::Gates;
use eviction_core::signal::Signal;
use eviction_core::units::GoDuration;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, Unexpected};
use serde_json::{Map, Value};

use crate::read::integer;

pub(super) type StringMap = BTreeMap<String, String>;

/// Fields of a KubeletConfiguration, with its defaults.
// Null is decoded as by Go's decoder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KubeletFields {
    /// By signal, below which amount pods are evicted at once.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "map")]
    pub(super) eviction_hard: Option<StringMap>,
    /// By signal, below which amount pods are evicted after a grace period.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "map")]
    pub(super) eviction_soft: Option<StringMap>,
    /// By signal, how long a soft threshold must be met.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "map")]
    pub(super) eviction_soft_grace_period: Option<StringMap>,
    /// By signal, how much more must be available before it counts as resolved.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "map")]
    pub(super) eviction_minimum_reclaim: Option<StringMap>,
    /// How long a node condition outlives its cause.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "duration")]
    #[schemars(with = "Option<String>", extend("format" = "duration"))]
    pub(super) eviction_pressure_transition_period: Option<GoDuration>,
    /// The most time a pod gets to end in a soft eviction, seconds.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "int32")]
    pub(super) eviction_max_pod_grace_period: Option<i32>,
    /// Whether default thresholds are kept whose signal `evictionHard` does not name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) merge_default_eviction_settings: Option<bool>,
    /// Whether pods are held to their own limits of local storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) local_storage_capacity_isolation: Option<bool>,
    /// With `pods`, hard thresholds of memory hold for allocatable memory as well.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "list")]
    pub(super) enforce_node_allocatable: Option<Vec<String>>,
    /// The socket of the container runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container_runtime_endpoint: Option<String>,
    /// How long an unused image stays at least.
    #[serde(
        rename = "imageMinimumGCAge",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "duration"
    )]
    #[schemars(with = "Option<String>", extend("format" = "duration"))]
    pub(super) image_minimum_gc_age: Option<GoDuration>,
    /// The feature gates `KubeletSeparateDiskGC` and `PodLevelResources`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "map")]
    pub(super) feature_gates: Option<BTreeMap<String, bool>>,
}

/// The names of the fields in files.
const NAMES: [&str; 12] = [
    "evictionHard",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "evictionMinimumReclaim",
    "evictionPressureTransitionPeriod",
    "evictionMaxPodGracePeriod",
    "mergeDefaultEvictionSettings",
    "localStorageCapacityIsolation",
    "enforceNodeAllocatable",
    "containerRuntimeEndpoint",
    "imageMinimumGCAge",
    "featureGates",
];

/// Removes the fields that the agent does not use; a kubelet has many of them.
pub(super) fn retain_known(object: &mut Map<String, Value>) {
    object.retain(|key, _| NAMES.contains(&key.as_str()));
}

/// Deserializes a map in which a null member has the zero value.
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

/// Deserializes a duration; null is an error.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<GoDuration>, D::Error> {
    GoDuration::deserialize(deserializer).map(Some)
}

fn int32<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i32>, D::Error> {
    let Some(value) = Option::<Value>::deserialize(deserializer)? else { return Ok(None) };
    let integer = integer(&value).and_then(|value| i32::try_from(value).ok());
    let wrong = || D::Error::invalid_type(Unexpected::Other("value"), &"an integer of 32 bits");
    integer.ok_or_else(wrong).map(Some)
}

impl KubeletFields {
    /// Returns the transition period. Absent or zero means five minutes.
    pub(super) fn pressure_transition_period(&self) -> GoDuration {
        let period = self.eviction_pressure_transition_period;
        period.filter(|period| *period != GoDuration::ZERO).unwrap_or(GoDuration::from_secs(300))
    }

    /// Returns the minimum age of unused images. Absent or zero means two minutes.
    pub(super) fn image_minimum_gc_age(&self) -> GoDuration {
        let age = self.image_minimum_gc_age.filter(|age| *age != GoDuration::ZERO);
        age.unwrap_or(GoDuration::from_secs(120))
    }

    /// Returns the enforced levels. Absent means the pods as a whole; an empty list means none.
    pub(super) fn enforced(&self) -> Vec<&str> {
        match &self.enforce_node_allocatable {
            Some(list) => list.iter().map(String::as_str).collect(),
            None => vec!["pods"],
        }
    }
}

/// `loadConfigFile`: adds the default hard thresholds (`DefaultEvictionHard` on Linux). A map in the
/// configuration replaces all of them, unless `mergeDefaultEvictionSettings` is true.
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

/// The feature gates, one per line: name, stage, default, whether the default is locked, and the gates it
/// depends on.
const TABLE: &str = include_str!("feature-gates.tsv");

struct Gate {
    name: &'static str,
    stage: &'static str,
    on: bool,
    locked: bool,
    dependencies: &'static str,
}

fn table() -> impl Iterator<Item = Gate> {
    TABLE.lines().filter_map(|line| {
        let mut columns = line.split('\t');
        let mut next = || columns.next();
        Some(Gate {
            name: next()?,
            stage: next()?,
            on: next()? == "on",
            locked: next()? == "locked",
            dependencies: next()?,
        })
    })
}

fn find(name: &str) -> Option<Gate> {
    table().find(|gate| gate.name == name)
}

/// Returns whether a gate is on. Its own entry takes precedence, then that of its stage, then the default.
fn is_on(gate: &Gate, given: &BTreeMap<String, bool>) -> bool {
    let stage_entry = match gate.stage {
        _ if matches!(gate.name, "AllAlpha" | "AllBeta") => None,
        "alpha" => given.get("AllAlpha"),
        "beta" => given.get("AllBeta"),
        _ => None,
    };
    *given.get(gate.name).or(stage_entry).unwrap_or(&gate.on)
}

/// Returns whether the gate of this name is on.
pub(super) fn is_gate_on(name: &str, given: &BTreeMap<String, bool>) -> bool {
    find(name).is_some_and(|gate| is_on(&gate, given))
}

/// Returns the gates that change a decision. Others are ignored: the kubelet may have another version.
pub(super) fn resolve(given: &BTreeMap<String, bool>) -> Gates {
    Gates {
        pod_level_resources: is_gate_on("PodLevelResources", given),
        separate_disk_gc: is_gate_on("KubeletSeparateDiskGC", given),
    }
}

/// `featureGate.SetFromMap`: returns an error for an unknown name, a change of a locked gate, or a gate that
/// is on while one of its dependencies is off.
pub(super) fn gate_error(given: &BTreeMap<String, bool>) -> Option<String> {
    let wrong = given.iter().find_map(|(name, value)| match find(name) {
        None => Some(format!("unrecognized feature gate: {name}")),
        Some(gate) if gate.locked && gate.on != *value => {
            Some(format!("cannot set feature gate {name} to {value}, feature is locked to {}", gate.on))
        }
        Some(_) => None,
    });
    wrong.or_else(|| {
        table().filter(|gate| is_on(gate, given)).find_map(|gate| {
            let is_off = |name: &&str| find(name).is_some_and(|gate| !is_on(&gate, given));
            let off: Vec<&str> = gate.dependencies.split(',').filter(is_off).collect();
            (!off.is_empty()).then(|| {
                let off = off.join(" ");
                format!("{} is enabled, but depends on features that are disabled: [{off}]", gate.name)
            })
        })
    })
}
