//! The sources of a kubelet's fields: its file, drop-ins over it, and its `/configz`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::kubelet::fields::retain_known;
use crate::kubelet::{KubeletConfiguration, Origin, resolve_layers};
use crate::problem::{Problem, Problems, member};
use crate::read::describe;

/// The last source of each field or map member.
pub(super) type Origins = BTreeMap<String, Origin>;

/// All files merged into one object.
#[derive(Default)]
pub(super) struct Layers {
    pub(super) object: Map<String, Value>,
    pub(super) origins: Origins,
}

impl Layers {
    /// Creates the first layer.
    pub(super) fn new(object: Map<String, Value>, origin: &Origin) -> Self {
        let mut layers = Self { object, origins: Origins::new() };
        for (key, value) in &layers.object {
            record_origins(&mut layers.origins, key, value, origin);
        }
        layers
    }

    /// Applies a JSON merge patch: null removes a field, and maps are merged.
    pub(super) fn apply_patch(&mut self, patch: Map<String, Value>, origin: &Origin) {
        let Self { object, origins } = self;
        for (key, value) in patch {
            record_origins(origins, &key, &value, origin);
            match (object.get_mut(&key), value) {
                (_, Value::Null) => {
                    object.remove(&key);
                    origins.retain(|path, _| path.split(['[', '.']).next() != Some(&key));
                }
                (Some(Value::Object(map)), Value::Object(mut patch)) => {
                    map.retain(|name, _| patch.get(name).is_none_or(|value| !value.is_null()));
                    patch.retain(|_, value| !value.is_null());
                    map.extend(patch);
                }
                (_, mut value) => {
                    if let Value::Object(map) = &mut value {
                        map.retain(|_, value| !value.is_null());
                    }
                    object.insert(key, value);
                }
            }
        }
    }

    /// Removes empty maps and lists, as the kubelet does when it writes its configuration as JSON to apply
    /// drop-in files.
    pub(super) fn omit_empty(&mut self) {
        for key in [
            "evictionHard",
            "evictionSoft",
            "evictionSoftGracePeriod",
            "evictionMinimumReclaim",
            "enforceNodeAllocatable",
        ] {
            if self.object.get(key).is_some_and(|value| *value == json!({}) || *value == json!([])) {
                self.object.remove(key);
                self.origins.remove(key);
            }
        }
    }
}

fn record_origins(origins: &mut Origins, key: &str, value: &Value, origin: &Origin) {
    let members = value.as_object().into_iter().flat_map(Map::keys).map(|name| member(key, name));
    origins.extend(members.chain([key.to_owned()]).map(|path| (path, origin.clone())));
}

/// Lists `*.conf` by name, including subdirectories, but not symbolic links to directories: `WalkDir`. Adds
/// notes on files that are ignored.
pub(super) fn list_drop_ins(dir: &Path, notes: &mut Vec<Problem>) -> Result<Vec<PathBuf>, Problem> {
    let wrong = |cause: std::io::Error| Problem::new("", cause).in_file(Some(dir));
    let mut entries =
        std::fs::read_dir(dir).and_then(Iterator::collect::<std::io::Result<Vec<_>>>).map_err(wrong)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut files = Vec::new();
    for entry in entries {
        let kind = entry.file_type().map_err(wrong)?;
        let path = entry.path();
        if kind.is_dir() {
            files.extend(list_drop_ins(&path, notes)?);
        } else if entry.file_name().as_encoded_bytes().ends_with(b".conf") {
            files.push(path);
        } else {
            let note = Problem::new("", "is passed over: its name does not end in .conf");
            notes.push(note.in_file(Some(&path)));
        }
    }
    Ok(files)
}

/// The used fields of a kubelet's effective configuration: its files, command line and defaults together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effective {
    #[serde(rename = "kubeletconfig")]
    object: Map<String, Value>,
    #[serde(rename = "from", default)]
    url: String,
}

impl Effective {
    /// Reads the response of `/configz`.
    ///
    /// # Errors
    /// If the response is not an object with a `kubeletconfig`, with the cause.
    pub fn parse(json: &[u8], url: impl Into<String>) -> Result<Self, String> {
        let answer: Value = serde_json::from_slice(json).map_err(|error| format!("not JSON: {error}"))?;
        let Some(object) = answer.as_object() else {
            return Err(format!("must be an object, got {}", describe(&answer)));
        };
        match object.get("kubeletconfig") {
            Some(Value::Object(object)) => {
                let mut object = object.clone();
                retain_known(&mut object);
                Ok(Self { object, url: url.into() })
            }
            Some(other) => Err(format!("kubeletconfig: must be an object, got {}", describe(other))),
            None => Err("kubeletconfig: is missing".to_owned()),
        }
    }

    /// Resolves the configuration.
    ///
    /// # Errors
    /// If it is invalid: all errors.
    pub fn resolve(&self) -> Result<KubeletConfiguration, Problems> {
        let Self { object, url } = self;
        let mut layers = Layers::new(object.clone(), &Origin::Configz(url.clone()));
        // The kubelet has filled in all defaults, and its JSON omits what is empty.
        for (key, empty) in [("evictionHard", json!({})), ("enforceNodeAllocatable", json!([]))] {
            let value = layers.object.entry(key).or_insert(Value::Null);
            if value.is_null() {
                *value = empty;
            }
        }
        resolve_layers(layers, Vec::new(), Vec::new(), Some(url.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Effective;
    use crate::kubelet::kubelet_policy;

    const URL: &str = "https://127.0.0.1:10250/configz";

    fn effective(kubelet: Value) -> Effective {
        Effective::parse(json!({"kubeletconfig": kubelet}).to_string().as_bytes(), URL).unwrap()
    }

    #[test]
    fn configz_resolves_like_a_file_with_the_same_fields() {
        let all = json!({
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "evictionHard": {"memory.available": "150Mi", "pid.available": "7%"},
            "evictionSoft": {"memory.available": "200Mi"},
            "evictionSoftGracePeriod": {"memory.available": "1m30s"},
            "evictionPressureTransitionPeriod": "45s",
            "evictionMaxPodGracePeriod": 20,
            "enforceNodeAllocatable": ["pods"],
            "localStorageCapacityIsolation": true,
            "containerRuntimeEndpoint": "unix:///run/containerd.sock",
        });
        let resolved = effective(all.clone()).resolve().unwrap();
        assert_eq!(resolved.policy, kubelet_policy(&all).unwrap());
        let setting = &resolved.settings[0];
        assert_eq!(
            setting.to_string(),
            format!("evictionHard[\"memory.available\"] = 150Mi (configz {URL})")
        );
    }

    #[test]
    fn fields_missing_in_configz_are_empty_and_not_defaults() {
        let resolved = effective(json!({"evictionPressureTransitionPeriod": "5m0s"})).resolve().unwrap();
        assert_eq!(resolved.policy.thresholds, []);
        let hard = json!({"evictionHard": {"memory.available": "1Gi"}});
        let resolved = effective(hard).resolve().unwrap();
        assert_eq!(resolved.policy.thresholds.len(), 1, "none for allocatable memory");
    }

    #[test]
    fn unknown_feature_gates_in_configz_are_accepted() {
        let gates = json!({"featureGates": {"MadeUpTomorrow": true, "PodLevelResources": false}});
        let resolved = effective(gates.clone()).resolve().unwrap();
        assert!(!resolved.policy.gates.pod_level_resources && resolved.policy.gates.separate_disk_gc);
        assert!(kubelet_policy(&gates).is_err(), "no kubelet of this version would start with them");
    }

    #[test]
    fn serialized_configz_resolves_to_the_same_settings() {
        let original = effective(json!({"evictionHard": {"memory.available": "1Gi"}, "address": "0.0.0.0"}));
        let serialized = serde_json::to_string(&original).unwrap();
        assert!(!serialized.contains("0.0.0.0"), "{serialized}");
        let deserialized: Effective = serde_json::from_str(&serialized).unwrap();
        assert_eq!(deserialized.resolve().unwrap().settings, original.resolve().unwrap().settings);
    }

    #[test]
    fn invalid_configz_response_is_an_error_with_its_field() {
        let wrong = |json: &str| Effective::parse(json.as_bytes(), URL).unwrap_err();
        assert!(wrong("<html>").starts_with("not JSON: "));
        assert_eq!(wrong("[]"), "must be an object, got a list");
        assert_eq!(wrong("{}"), "kubeletconfig: is missing");
        assert_eq!(wrong("{\"kubeletconfig\": 5}"), "kubeletconfig: must be an object, got 5");
        let problems = effective(json!({"evictionHard": {"memory.avalable": "1Gi"}})).resolve().unwrap_err();
        assert_eq!(
            problems.to_string(),
            format!(
                "{URL}: evictionHard[\"memory.avalable\"]: unsupported eviction signal memory.avalable \
                 (did you mean `memory.available`?)"
            )
        );
    }
}
