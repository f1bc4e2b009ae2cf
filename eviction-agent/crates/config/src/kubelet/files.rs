//! Where a kubelet's fields come from: its file, drop-ins over it, and its `/configz`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::kubelet::fields::retain_known;
use crate::kubelet::{KubeletConfiguration, Origin, finish};
use crate::problem::{Problem, Problems, member};
use crate::read::got;

/// By field or member of a map, who said so last.
pub(super) type Origins = BTreeMap<String, Origin>;

/// All files as one.
#[derive(Default)]
pub(super) struct Layers {
    pub(super) object: Map<String, Value>,
    pub(super) origins: Origins,
}

impl Layers {
    /// The first layer.
    pub(super) fn new(object: Map<String, Value>, origin: &Origin) -> Self {
        let mut layers = Self { object, origins: Origins::new() };
        for (key, value) in &layers.object {
            remember(&mut layers.origins, key, value, origin);
        }
        layers
    }

    /// Lays a JSON merge patch over what is there: null takes away, and maps are merged.
    pub(super) fn lay_over(&mut self, patch: Map<String, Value>, origin: &Origin) {
        let Self { object, origins } = self;
        for (key, value) in patch {
            remember(origins, &key, &value, origin);
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

    /// What is lost when the kubelet writes its configuration as JSON in order to lay drop-in
    /// files over it: empty maps and lists become absent.
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

fn remember(origins: &mut Origins, key: &str, value: &Value, origin: &Origin) {
    let members = value.as_object().into_iter().flat_map(Map::keys).map(|name| member(key, name));
    origins.extend(members.chain([key.to_owned()]).map(|path| (path, origin.clone())));
}

pub(super) struct DropIns {
    pub(super) files: Vec<PathBuf>,
    /// Notes on files that are passed over.
    pub(super) skipped: Vec<Problem>,
}

/// `*.conf` by name, directories included, symbolic links to directories not: `WalkDir`.
pub(super) fn list(dir: &Path) -> Result<DropIns, Problem> {
    let mut found = DropIns { files: Vec::new(), skipped: Vec::new() };
    walk(dir, &mut found)?;
    Ok(found)
}

/// The files that count, for whoever keeps copies of them.
pub fn files_of(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    Ok(list(dir).map_err(|problem| std::io::Error::other(problem.to_string()))?.files)
}

fn walk(dir: &Path, found: &mut DropIns) -> Result<(), Problem> {
    let wrong = |cause: std::io::Error| Problem::new("", cause).in_file(Some(dir));
    let mut entries =
        std::fs::read_dir(dir).and_then(Iterator::collect::<std::io::Result<Vec<_>>>).map_err(wrong)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type().map_err(wrong)?;
        let path = entry.path();
        if kind.is_dir() {
            walk(&path, found)?;
        } else if entry.file_name().as_encoded_bytes().ends_with(b".conf") {
            found.files.push(path);
        } else {
            let note = Problem::new("", "is passed over: its name does not end in .conf");
            found.skipped.push(note.in_file(Some(&path)));
        }
    }
    Ok(())
}

/// The fields that count of a kubelet's configuration in force: its files, its command line and its defaults
/// together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effective {
    #[serde(rename = "kubeletconfig")]
    object: Map<String, Value>,
    #[serde(rename = "from", default)]
    url: String,
}

impl Effective {
    /// Reads the answer of `/configz`.
    ///
    /// # Errors
    /// The cause, if it is not an object with a `kubeletconfig`.
    pub fn parse(json: &[u8], url: impl Into<String>) -> Result<Self, String> {
        let answer: Value = serde_json::from_slice(json).map_err(|error| format!("not JSON: {error}"))?;
        let Some(object) = answer.as_object() else {
            return Err(format!("must be an object, got {}", got(&answer)));
        };
        match object.get("kubeletconfig") {
            Some(Value::Object(object)) => {
                let mut object = object.clone();
                retain_known(&mut object);
                Ok(Self { object, url: url.into() })
            }
            Some(other) => Err(format!("kubeletconfig: must be an object, got {}", got(other))),
            None => Err("kubeletconfig: is missing".to_owned()),
        }
    }

    /// What it comes to.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn resolve(&self) -> Result<KubeletConfiguration, Problems> {
        let Self { object, url } = self;
        let mut layers = Layers::new(object.clone(), &Origin::Configz(url.clone()));
        // All defaults are filled in, and what is empty then is left out of JSON.
        for (key, empty) in [("evictionHard", json!({})), ("enforceNodeAllocatable", json!([]))] {
            let value = layers.object.entry(key).or_insert(Value::Null);
            if value.is_null() {
                *value = empty;
            }
        }
        finish(layers, Vec::new(), Vec::new(), Some(url.as_ref()))
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
    fn it_comes_to_what_a_file_with_all_of_it_comes_to() {
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
    fn what_is_left_out_is_empty_and_no_default() {
        let resolved = effective(json!({"evictionPressureTransitionPeriod": "5m0s"})).resolve().unwrap();
        assert_eq!(resolved.policy.thresholds, []);
        let hard = json!({"evictionHard": {"memory.available": "1Gi"}});
        let resolved = effective(hard).resolve().unwrap();
        assert_eq!(resolved.policy.thresholds.len(), 1, "none for allocatable memory");
    }

    #[test]
    fn gates_are_as_they_are_also_of_other_versions() {
        let gates = json!({"featureGates": {"MadeUpTomorrow": true, "PodLevelResources": false}});
        let resolved = effective(gates.clone()).resolve().unwrap();
        assert!(!resolved.policy.gates.pod_level_resources && resolved.policy.gates.separate_disk_gc);
        assert!(kubelet_policy(&gates).is_err(), "no kubelet of this version would start with them");
    }

    #[test]
    fn what_is_kept_means_the_same() {
        let before = effective(json!({"evictionHard": {"memory.available": "1Gi"}, "address": "0.0.0.0"}));
        let kept = serde_json::to_string(&before).unwrap();
        assert!(!kept.contains("0.0.0.0"), "{kept}");
        let again: Effective = serde_json::from_str(&kept).unwrap();
        assert_eq!(again.resolve().unwrap().settings, before.resolve().unwrap().settings);
    }

    #[test]
    fn an_answer_of_another_kind_is_an_error_with_its_place() {
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
