//! A file, and drop-in files laid over it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::problem::member;
use super::settings::Origin;

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
