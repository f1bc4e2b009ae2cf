//! An object of a list or a watch as its JSON text: one that is not understood costs itself alone.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ApiResource;
use kube::core::DynamicResourceScope;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::{RawValue, to_raw_value};

use crate::identity::{Identity, version_of};

/// What kube's watcher lists and watches, of whatever resource.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) identity: Result<Identity, String>,
    pub(crate) json: Box<RawValue>,
    /// Nothing but the version, from which kube's watcher goes on.
    meta: ObjectMeta,
}

impl From<Box<RawValue>> for Item {
    fn from(json: Box<RawValue>) -> Self {
        let identity = Identity::of(json.get().as_bytes());
        let version = match &identity {
            Ok(identity) => Some(identity.version.clone()),
            Err(_) => version_of(json.get().as_bytes()),
        };
        let resource_version = version.map(|version| version.as_str().to_owned());
        Self { identity, json, meta: ObjectMeta { resource_version, ..ObjectMeta::default() } }
    }
}

/// The name under which serde_json passes a text on as it is.
const RAW: &str = "$serde_json::private::RawValue";

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(RAW, AnyJson).map(Self::from)
    }
}

/// Takes a text as it is, and what serde has parsed already: it does so where an event's `object` stands
/// before its `type`.
struct AnyJson;

impl<'de> Visitor<'de> for AnyJson {
    type Value = Box<RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut text: A) -> Result<Self::Value, A::Error> {
        let text = text.next_entry::<String, String>()?;
        let (_, text) = text.ok_or_else(|| A::Error::custom("no JSON"))?;
        RawValue::from_string(text).map_err(A::Error::custom)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, parsed: D) -> Result<Self::Value, D::Error> {
        let value = serde_json::Value::deserialize(parsed)?;
        to_raw_value(&value).map_err(D::Error::custom)
    }
}

impl kube::Resource for Item {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        of.kind.as_str().into()
    }

    fn group(of: &ApiResource) -> Cow<'_, str> {
        of.group.as_str().into()
    }

    fn version(of: &ApiResource) -> Cow<'_, str> {
        of.version.as_str().into()
    }

    fn plural(of: &ApiResource) -> Cow<'_, str> {
        of.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;
    use kube::api::{ObjectList, WatchEvent};

    use super::Item;

    fn parts(item: &Item) -> (Option<String>, Option<String>, &str) {
        let name = item.identity.as_ref().ok().map(|identity| identity.key.to_string());
        (name, item.resource_version(), item.json.get())
    }

    #[test]
    fn a_list_has_each_object_as_it_stands_whatever_is_in_it() {
        let list = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[
            {"metadata":{"namespace":"a","name":"b","uid":"u","resourceVersion":"7"},"spec":{"n":1e400}},
            {"metadata":"x"}, {"metadata":{"labels":5,"resourceVersion":"8"}}, 5, null]}"#;
        let list: ObjectList<Item> = serde_json::from_str(list).unwrap();
        let parts: Vec<_> = list.items.iter().map(parts).collect();
        let good =
            r#"{"metadata":{"namespace":"a","name":"b","uid":"u","resourceVersion":"7"},"spec":{"n":1e400}}"#;
        assert_eq!(parts[0], (Some("a/b".into()), Some("7".into()), good));
        assert_eq!(parts[1], (None, None, r#"{"metadata":"x"}"#));
        assert_eq!(parts[2].1.as_deref(), Some("8"));
        assert_eq!((parts[3].2, parts[4].2), ("5", "null"));
    }

    #[test]
    fn an_event_is_read_in_whatever_order_its_keys_are() {
        for event in [
            r#"{"type":"ADDED","object":{"metadata":{"name":"b","uid":"u","resourceVersion":"7"}}}"#,
            r#"{"object":{"metadata":{"name":"b","uid":"u","resourceVersion":"7"}},"type":"ADDED"}"#,
        ] {
            let WatchEvent::<Item>::Added(item) = serde_json::from_str(event).unwrap() else { panic!() };
            assert_eq!(parts(&item).0.as_deref(), Some("b"), "{event}");
            assert_eq!(parts(&item).1.as_deref(), Some("7"), "{event}");
        }
    }
}
