//! Whether a kubelet v1.36.3 would start with a configuration, and what it would decide by: for scenarios,
//! which compare that. A running agent asks for less, since its kubelet has started and may be of
//! another version.

mod field_types;
mod rules;

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
    let mut problems = wrong_types(&map);
    let fields: KubeletFields = read(Value::Object(known), &mut problems).unwrap_or_default();
    if let Some(problem) = problems.first() {
        return fail("decode", problem.to_string());
    }
    let given = fields.feature_gates.clone().unwrap_or_default();
    if let Some(error) = gates::error(&given) {
        return fail("featureGates", error);
    }
    let object = Value::Object(map.clone());
    let invalid = enforcement(&object, &fields.enforced())
        .or_else(|| rules::broken(&map, &gates::FeatureGates(&given)));
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
fn wrong_types(object: &Map<String, Value>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (key, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        if object.get(key).is_some_and(|value| value != wanted) {
            problems.push(Problem::new(key, format!("is not `{wanted}`")));
        }
    }
    problems.extend(field_types::wrong(object).map(|key| Problem::new(key, "has the wrong type")));
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
