//! Lists of pods as `kubectl get pods -o json` or `-o yaml` writes them.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use eviction_config::yaml;
use eviction_core::pod as core;
use eviction_kube::pods::{PodError, parse_pod, pod_of};

#[cfg(test)]
mod tests;

fn list_error(path: &str, cause: impl fmt::Display) -> PodError {
    PodError { pod: String::new(), path: path.to_owned(), cause: cause.to_string() }
}

/// Reads a `v1` PodList, or a List of pods, from JSON or YAML. Each pod must have a name and a
/// unique UID.
///
/// # Errors
/// If the text is not such a list, or the first error of each pod, on its own line.
pub fn parse_pod_list(text: &[u8]) -> Result<Vec<core::Pod>, String> {
    parse(text).map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

fn parse(text: &[u8]) -> Result<Vec<core::Pod>, Vec<PodError>> {
    let start = text.iter().find(|byte| !byte.is_ascii_whitespace());
    let whole = |error: PodError| vec![error];
    match start {
        None => Err(whole(list_error("", "is empty"))),
        Some(b'{') => {
            let list: List<Box<RawValue>> = serde_json::from_slice(text)
                .map_err(|error| whole(list_error("", format!("not JSON: {error}"))))?;
            let items = list.items().map_err(whole)?;
            collect(items.iter().map(|item| parse_pod(item.get().as_bytes())))
        }
        Some(_) => {
            let text = std::str::from_utf8(text)
                .map_err(|error| whole(list_error("", format!("not UTF-8 text: {error}"))))?;
            let list: List<Value> = yaml::from_str(text).map_err(|cause| whole(list_error("", cause)))?;
            let items = list.items().map_err(whole)?;
            collect(items.into_iter().map(|mut item| {
                write_whole_numbers_as_integers(&mut item);
                pod_of(&item)
            }))
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct List<T> {
    api_version: Option<String>,
    kind: Option<String>,
    items: Option<Vec<T>>,
}

impl<T> List<T> {
    fn items(self) -> Result<Vec<T>, PodError> {
        let version = self.api_version.unwrap_or_default();
        if version != "v1" {
            let cause = format!("expected `v1`, found `{version}`");
            return Err(list_error("apiVersion", cause));
        }
        match self.kind.unwrap_or_default().as_str() {
            "PodList" | "List" => Ok(self.items.unwrap_or_default()),
            other => Err(list_error("kind", format!("expected `PodList`, found `{other}`"))),
        }
    }
}

fn collect(pods: impl Iterator<Item = Result<core::Pod, PodError>>) -> Result<Vec<core::Pod>, Vec<PodError>> {
    let mut valid: Vec<core::Pod> = Vec::new();
    let mut errors = Vec::new();
    let mut uids = BTreeSet::new();
    for (index, pod) in pods.enumerate() {
        match pod {
            Ok(pod) if !uids.insert(pod.uid.clone()) => errors.push(PodError {
                pod: format!("{}/{}", pod.namespace, pod.name),
                path: "metadata.uid".to_owned(),
                cause: format!("`{}` is that of another pod as well", pod.uid),
            }),
            Ok(pod) => valid.push(pod),
            Err(mut error) => {
                if error.pod.is_empty() {
                    error.pod = format!("items[{index}]");
                }
                errors.push(error);
            }
        }
    }
    if errors.is_empty() { Ok(valid) } else { Err(errors) }
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
