//! Decodes pods of the API, reduced to the fields that decisions depend on.
//!
//! Decoding is as lenient as Kubernetes: unknown fields are ignored, null is the same as absent, and
//! quantities may be numbers. Values of the wrong type, out-of-range values and invalid quantities are errors
//! that name the pod and the field.

mod decode;

use std::fmt;

use eviction_core::pod as core;
use serde::{Deserializer, Serialize};
use serde_json::Value;

pub use decode::Pod;

/// An error in a pod, or in the list as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodError {
    /// `namespace/name`, or the index in the list; empty for the list as a whole.
    pub pod: String,
    /// The field, such as `spec.containers[0].resources.requests.memory`.
    pub path: String,
    /// The error in it.
    pub cause: String,
}

impl fmt::Display for PodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.pod.is_empty() {
            write!(f, "pod {}: ", self.pod)?;
        }
        if !self.path.is_empty() && self.path != "." {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.cause)
    }
}

impl std::error::Error for PodError {}

/// Reads a pod from JSON. It must have a name and a uid.
///
/// # Errors
/// If the pod is invalid, with the first error.
pub fn parse_pod(json: &[u8]) -> Result<core::Pod, PodError> {
    pod(&mut serde_json::Deserializer::from_slice(json)).map_err(|mut error| {
        let value = serde_json::from_slice::<Value>(json).ok();
        error.pod = value.as_ref().and_then(name_of).unwrap_or_default();
        error
    })
}

/// Reads a pod from a value that was parsed from JSON or YAML. It must have a name and a uid.
///
/// # Errors
/// If the pod is invalid, with the first error.
pub fn pod_of(value: &Value) -> Result<core::Pod, PodError> {
    pod(value).map_err(|error| PodError { pod: name_of(value).unwrap_or_default(), ..error })
}

/// Decodes one pod and checks that it has a name and a uid.
fn pod<'de, D: Deserializer<'de>>(deserializer: D) -> Result<core::Pod, PodError> {
    let wrong = |path: &str, cause: String| PodError { pod: String::new(), path: path.to_owned(), cause };
    let pod: Pod = serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let cause = error.inner().to_string();
        // The line and column refer to the single pod, so they are removed.
        let cause = cause.rsplit_once(" at line ").map_or(cause.as_str(), |(cause, _)| cause);
        wrong(&error.path().to_string(), cause.to_owned())
    })?;
    let pod = core::Pod::from(pod);
    for (path, text) in [("metadata.name", &pod.name), ("metadata.uid", &pod.uid)] {
        if text.is_empty() {
            return Err(wrong(path, "is missing".to_owned()));
        }
    }
    Ok(pod)
}

/// Returns `namespace/name`, if the pod has a name.
fn name_of(pod: &Value) -> Option<String> {
    let metadata = pod.get("metadata")?;
    let name = metadata.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    Some(format!("{namespace}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_of_every_kind_have_their_names_and_ends() {
        let status = |name: &str, id: &str| {
            serde_json::json!([{
                "name": name, "containerID": format!("containerd://{id}"),
                "lastState": {"terminated": {"exitCode": 137, "containerID": format!("containerd://{id}0")}},
            }])
        };
        let pod = serde_json::json!({
            "metadata": {"name": "p", "uid": "u"},
            "status": {
                "containerStatuses": status("main", "a"),
                "initContainerStatuses": status("setup", "b"),
                "ephemeralContainerStatuses": status("debugger", "c"),
            },
        });
        let pod = pod_of(&pod).unwrap();
        let ids: Vec<_> = pod.container_ids.iter().map(|(id, name)| (&**id, &**name)).collect();
        assert_eq!(ids, [("a", "main"), ("b", "setup"), ("c", "debugger")]);
        let ended: Vec<_> = pod.ended.iter().map(|end| (&*end.instance, &*end.container)).collect();
        assert_eq!(ended, [("a0", "main"), ("b0", "setup"), ("c0", "debugger")]);
    }
}
