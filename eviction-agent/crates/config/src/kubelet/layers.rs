//! A file, and drop-in files laid over it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

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
    pub(super) fn new(object: Map<String, Value>, origin: Option<&Origin>) -> Self {
        let mut origins = Origins::new();
        for (key, value) in &object {
            remember(&mut origins, key.clone(), origin);
            for name in value.as_object().into_iter().flat_map(Map::keys) {
                remember(&mut origins, member(key, name), origin);
            }
        }
        Self { object, origins }
    }

    /// Lays a JSON merge patch over what is there: null takes away, and maps are merged.
    pub(super) fn lay_over(&mut self, patch: Map<String, Value>, origin: Option<&Origin>) {
        let Self { object, origins } = self;
        for (key, value) in patch {
            let is_merged = value.is_object() && object.get(&key).is_some_and(Value::is_object);
            if !is_merged {
                origins.retain(|path, _| path.split(['[', '.']).next() != Some(&key));
            }
            match value {
                Value::Null => {
                    object.remove(&key);
                    continue;
                }
                Value::Object(patch) => {
                    let slot = object.entry(key.clone()).or_insert(Value::Null);
                    let mut map = slot.as_object_mut().map(std::mem::take).unwrap_or_default();
                    for (name, value) in patch {
                        let path = member(&key, &name);
                        if value.is_null() {
                            map.remove(&name);
                            origins.remove(&path);
                        } else {
                            map.insert(name, value);
                            remember(origins, path, origin);
                        }
                    }
                    *slot = Value::Object(map);
                }
                value => {
                    object.insert(key.clone(), value);
                }
            }
            remember(origins, key, origin);
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
            let value = self.object.get(key);
            let is_empty = value.and_then(Value::as_object).is_some_and(Map::is_empty)
                || value.and_then(Value::as_array).is_some_and(Vec::is_empty);
            if is_empty {
                self.object.remove(key);
                self.origins.remove(key);
            }
        }
    }
}

fn remember(origins: &mut Origins, path: String, origin: Option<&Origin>) {
    if let Some(origin) = origin {
        origins.insert(path, origin.clone());
    }
}
