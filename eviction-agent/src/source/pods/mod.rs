//! Lists of pods as `kubectl get pods -o json` or `-o yaml` writes them.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use eviction_config::yaml;
use eviction_core::pod as core;
use eviction_kube::pods::{parse_pod, pod_of};

#[cfg(test)]
mod tests;

/// Reads a `v1` PodList, or a List of pods, from JSON or YAML. Each pod must have a name and a
/// unique UID.
///
/// # Errors
/// If the text is not such a list, or the first error of each pod, on its own line.
pub fn parse_pod_list(text: &[u8]) -> Result<Vec<core::Pod>, String> {
    match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => Err("is empty".to_owned()),
        Some(b'{') => {
            let list: PodList<Box<RawValue>> =
                serde_json::from_slice(text).map_err(|error| format!("not JSON: {error}"))?;
            collect(list.items()?.into_iter().map(|item| {
                parse_pod(item.get().as_bytes()).map_err(|why| {
                    let pod = serde_json::from_str::<Value>(item.get()).ok();
                    (pod.as_ref().and_then(name_of), why)
                })
            }))
        }
        Some(_) => {
            let text = std::str::from_utf8(text).map_err(|error| format!("not UTF-8 text: {error}"))?;
            let list: PodList<Value> = yaml::from_str(text)?;
            collect(list.items()?.into_iter().map(|mut item| {
                write_whole_numbers_as_integers(&mut item);
                pod_of(&item).map_err(|why| (name_of(&item), why))
            }))
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodList<T> {
    api_version: Option<String>,
    kind: Option<String>,
    items: Option<Vec<T>>,
}

impl<T> PodList<T> {
    fn items(self) -> Result<Vec<T>, String> {
        let version = self.api_version.unwrap_or_default();
        if version != "v1" {
            return Err(format!("apiVersion: expected `v1`, found `{version}`"));
        }
        match self.kind.unwrap_or_default().as_str() {
            "PodList" | "List" => Ok(self.items.unwrap_or_default()),
            other => Err(format!("kind: expected `PodList`, found `{other}`")),
        }
    }
}

/// Returns `namespace/name`, if the pod has a name.
fn name_of(pod: &Value) -> Option<String> {
    let metadata = pod.get("metadata")?;
    let name = metadata.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    Some(format!("{namespace}/{name}"))
}

/// Returns the pods, or the errors, each after the name of its pod or else its index.
fn collect(
    pods: impl Iterator<Item = Result<core::Pod, (Option<String>, String)>>,
) -> Result<Vec<core::Pod>, String> {
    let mut valid: Vec<core::Pod> = Vec::new();
    let mut errors = Vec::new();
    let mut uids = BTreeSet::new();
    for (index, pod) in pods.enumerate() {
        match pod {
            Ok(pod) if !uids.insert(pod.uid.clone()) => {
                let core::Pod { namespace, name, uid, .. } = pod;
                let why = format!("metadata.uid: `{uid}` is that of another pod as well");
                errors.push(format!("pod {namespace}/{name}: {why}"));
            }
            Ok(pod) => valid.push(pod),
            Err((name, why)) => {
                let name = name.unwrap_or_else(|| format!("items[{index}]"));
                errors.push(format!("pod {name}: {why}"));
            }
        }
    }
    if errors.is_empty() { Ok(valid) } else { Err(errors.join("\n")) }
}

/// Turns whole floats into integers. YAML writes floats such as `1e9`, which are integers in JSON.
fn write_whole_numbers_as_integers(value: &mut Value) {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|_| number.is_f64())
                && float.fract() == 0.0
                && float.abs() <= EXACT
            {
                *value = Value::from(float as i64);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(write_whole_numbers_as_integers),
        Value::Object(object) => object.values_mut().for_each(write_whole_numbers_as_integers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
