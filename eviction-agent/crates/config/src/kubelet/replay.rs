//! Whether a kubelet v1.36.3 would start with a configuration, and what it would decide by: for scenarios,
//! which compare that. A running agent asks for less, since its kubelet has started and may be of
//! another version.
//!
//! Rules of `ValidateKubeletConfiguration` about fields that do not count here are reduced to bounds and
//! choices of single fields and a few others.

use eviction_core::policy::Policy;
use serde_json::{Map, Value};

use super::super::document::got;
use super::super::problem::Problem;
use super::super::read::read;
use super::fields::{KubeletFields, default_eviction_hard, retain_known};
use super::{API_VERSION, KIND, gates, policy, thresholds};

/// The error that ends the kubelet's start. At stage thresholds the text is the kubelet's;
/// of several errors it is the first in the order of the maps and, within one, of the keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct KubeletError {
    /// The step of its start at which the kubelet gives up, by its name in scenario files: `decode` (a wrong
    /// JSON type or a bad duration), `featureGates` (the kubelet panics), `validate`
    /// (`ValidateKubeletConfiguration`) or `thresholds` (`ParseThresholdConfig`).
    pub stage: &'static str,
    /// What it says.
    pub text: String,
}

/// What the kubelet makes of a configuration as a scenario file has it: `apiVersion` and
/// `kind` may be absent, and null is the same as an empty object.
///
/// # Errors
/// The first error that the kubelet would report, where chance decides always the same.
pub fn kubelet_policy(configuration: &Value) -> Result<Policy, KubeletError> {
    let fail = |stage, text: String| Err(KubeletError { stage, text });
    let mut map = match configuration {
        Value::Object(object) => object.clone(),
        Value::Null => Map::new(),
        other => return fail("decode", format!("must be an object, got {}", got(other))),
    };
    default_eviction_hard(&mut map);
    let mut known = map.clone();
    retain_known(&mut known);
    let object = Value::Object(map);
    let mut problems = wrong_types(&object);
    let fields: KubeletFields = read(Value::Object(known), &mut problems).unwrap_or_default();
    if let Some(problem) = problems.first() {
        return fail("decode", problem.to_string());
    }
    let given = fields.feature_gates.clone().unwrap_or_default();
    if let Some(error) = gates::error(&given) {
        return fail("featureGates", error);
    }
    let invalid = enforcement(&object, &fields.enforced()).or_else(|| broken(&object));
    if let Some(field) = invalid {
        return fail("validate", format!("{field}: is not valid"));
    }
    let thresholds = thresholds::resolve(&fields, &mut problems);
    match problems.first() {
        Some(problem) => fail("thresholds", problem.cause.clone()),
        None => Ok(policy(&fields, thresholds)),
    }
}

/// What does not decode outside of the fields that count.
fn wrong_types(object: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (key, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        if object.get(key).is_some_and(|value| value != wanted) {
            problems.push(Problem::new(key, format!("is not `{wanted}`")));
        }
    }
    let mut typed = |key, is_right: fn(&Value) -> bool| {
        if !object[key].is_null() && !is_right(&object[key]) {
            problems.push(Problem::new(key, "has the wrong type"));
        }
    };
    typed("cgroupsPerQOS", Value::is_boolean);
    typed("systemReservedCgroup", Value::is_string);
    typed("kubeReservedCgroup", Value::is_string);
    problems
}

/// `enforceNodeAllocatable`: known, unique, `none` alone, a reserved cgroup where its limits
/// are enforced, in one of the two ways only, and all of it only with cgroups for QoS.
fn enforcement(object: &Value, enforced: &[&str]) -> Option<&'static str> {
    let is_valid = |(index, option): (usize, &&str)| {
        let has_cgroup = |key: &str, other: &str| {
            object[key].as_str().is_some_and(|cgroup| !cgroup.is_empty()) && !enforced.contains(&other)
        };
        let is_known = match *option {
            "none" => return enforced.len() == 1,
            "pods" => true,
            "system-reserved" => has_cgroup("systemReservedCgroup", "system-reserved-compressible"),
            "system-reserved-compressible" => has_cgroup("systemReservedCgroup", "system-reserved"),
            "kube-reserved" => has_cgroup("kubeReservedCgroup", "kube-reserved-compressible"),
            "kube-reserved-compressible" => has_cgroup("kubeReservedCgroup", "kube-reserved"),
            _ => false,
        };
        is_known && !enforced[..index].contains(option) && object["cgroupsPerQOS"] != false
    };
    (!enforced.iter().enumerate().all(is_valid)).then_some("enforceNodeAllocatable")
}

const MAX: i64 = i64::MAX;

/// KubeletFields whose numbers have bounds: name, what null means, what zero means, least, most.
const BOUNDS: &[(&str, i64, i64, i64, i64)] = &[
    ("nodeLeaseDurationSeconds", 40, 40, 1, MAX),
    ("eventBurst", 100, 100, 0, MAX),
    ("eventRecordQPS", 50, 0, 0, MAX),
    ("healthzPort", 10248, 0, 0, 65535),
    ("imageGCHighThresholdPercent", 85, 0, 0, 100),
    ("imageGCLowThresholdPercent", 80, 0, 0, 100),
    ("iptablesDropBit", 15, 0, 0, 31),
    ("iptablesMasqueradeBit", 14, 0, 0, 31),
    ("kubeAPIBurst", 100, 100, 0, MAX),
    ("kubeAPIQPS", 50, 0, 0, MAX),
    ("nodeStatusMaxImages", 50, 0, -1, MAX),
    ("maxOpenFiles", 1_000_000, 1_000_000, 0, MAX),
    ("maxPods", 110, 110, 0, MAX),
    ("oomScoreAdj", -999, 0, -1000, 1000),
    ("podsPerCore", 0, 0, 0, MAX),
    ("port", 10250, 10250, 1, 65535),
    ("readOnlyPort", 0, 0, 0, 65535),
    ("registryBurst", 10, 10, 0, MAX),
    ("registryPullQPS", 5, 0, 0, MAX),
    ("maxParallelImagePulls", 1, 0, 1, MAX),
    ("containerLogMaxWorkers", 1, 0, 1, MAX),
    ("containerLogMaxFiles", 5, 0, 2, MAX),
];

/// KubeletFields with a fixed choice of texts; empty is the default.
const CHOICES: &[(&str, &[&str])] = &[
    ("topologyManagerPolicy", &["none", "best-effort", "restricted", "single-numa-node"]),
    ("topologyManagerScope", &["container", "pod"]),
    ("hairpinMode", &["none", "hairpin-veth", "promiscuous-bridge"]),
    ("memoryReservationPolicy", &["None", "TieredReservation"]),
];

/// The first of these fields that the kubelet would not start with.
fn broken(object: &Value) -> Option<&'static str> {
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let integer = |key: &str, null: i64, zero: i64| match object[key].as_i64() {
        None => null,
        Some(0) => zero,
        Some(value) => value,
    };
    let bound = BOUNDS
        .iter()
        .find(|(key, null, zero, least, most)| !(*least..=*most).contains(&integer(key, *null, *zero)));
    let choice = CHOICES.iter().find(|(key, choices)| !text(key).is_empty() && !choices.contains(&text(key)));
    let high = integer("imageGCHighThresholdPercent", 85, 0);
    let is_clean = |part: &str| !matches!(part, "" | "." | "..");
    let logs = text("podLogsDir");
    let is_clean_path =
        logs.is_ascii() && logs.strip_prefix('/').is_some_and(|path| path.split('/').all(is_clean));
    let factor = object["memoryThrottlingFactor"].as_f64();
    let others = [
        ("imageGCLowThresholdPercent", integer("imageGCLowThresholdPercent", 80, 0) >= high),
        ("podLogsDir", !matches!(logs, "" | "/") && !is_clean_path),
        ("systemCgroups", !text("systemCgroups").is_empty() && text("cgroupRoot").is_empty()),
        ("memoryThrottlingFactor", factor.is_some_and(|factor| factor <= 0.0 || factor > 1.0)),
        ("runOnce", object["runOnce"] == true),
    ];
    let other = others.into_iter().find_map(|(key, is_broken)| is_broken.then_some(key));
    bound.map(|row| row.0).or(choice.map(|row| row.0)).or(other)
}
