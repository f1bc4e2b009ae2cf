//! An object of a list or a watch as JSON text, with its identity and version. It is parsed separately, so
//! that an undecodable object does not affect others.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ApiResource;
use kube::core::DynamicResourceScope;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::{RawValue, to_raw_value};

/// Declares structs that are read from the API's JSON. An absent or null field has the zero value. Other
/// fields are ignored.
macro_rules! objects {
    ($($(#[$outer:meta])* $vis:vis struct $name:ident {
        $($(#[$inner:meta])* $field_vis:vis $field:ident: $type:ty,)*
    })+) => {$(
        $(#[$outer])*
        #[derive(Clone, Debug, Default, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        $vis struct $name {
            $(
                $(#[$inner])*
                #[serde(deserialize_with = "eviction_core::nullable::nullable")]
                $field_vis $field: $type,
            )*
        }
    )+};
}

pub(crate) use objects;

/// Returns whether a `metadata.resourceVersion` is known to be older than the other. Versions are ordered if
/// they are numbers, as those of the API server itself always are (KEP-5504).
pub(crate) fn is_before(version: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| !text.starts_with('+'));
    matches!((number(version), number(other)), (Some(own), Some(other)) if own < other)
}

objects! {
    struct Object {
        metadata: ObjectIdentity,
    }

    /// The name, the uid and the version of an object.
    pub(crate) struct ObjectIdentity {
        /// Empty for objects without one.
        pub(crate) namespace: Box<str>,
        pub(crate) name: Box<str>,
        pub(crate) uid: Box<str>,
        pub(crate) resource_version: Box<str>,
    }
}

impl ObjectIdentity {
    /// Returns `NAMESPACE/NAME`, or the name of an object without a namespace. A later object may have the same key.
    pub(crate) fn key(&self) -> Box<str> {
        let Self { namespace, name, .. } = self;
        if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}").into() }
    }
}

/// The type with which kube's watcher lists and watches any resource.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// `None` if the object cannot be decoded, or has no name or no uid.
    pub(crate) identity: Option<ObjectIdentity>,
    pub(crate) json: Box<RawValue>,
    /// Only the version, from which kube's watcher resumes.
    meta: ObjectMeta,
}

impl From<Box<RawValue>> for Item {
    fn from(json: Box<RawValue>) -> Self {
        let Object { metadata } = serde_json::from_str(json.get()).unwrap_or_default();
        // Bookmarks have only the version.
        let resource_version = Some(String::from(&*metadata.resource_version)).filter(|it| !it.is_empty());
        let identity = Some(metadata).filter(|it| !it.name.is_empty() && !it.uid.is_empty());
        Self { identity, json, meta: ObjectMeta { resource_version, ..ObjectMeta::default() } }
    }
}

/// The name by which serde_json requests the raw text.
const RAW: &str = "$serde_json::private::RawValue";

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(RAW, AnyJson).map(Self::from)
    }
}

/// A visitor for raw text, and for values that serde has already parsed. serde parses an event's `object` if
/// it comes before its `type`.
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

    use super::*;

    fn parts(item: &Item) -> (Option<String>, Option<String>, &str) {
        let name = item.identity.as_ref().map(|identity| identity.key().into());
        (name, item.resource_version(), item.json.get())
    }

    #[test]
    fn list_keeps_the_raw_json_of_each_item_even_if_invalid() {
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
    fn watch_event_is_decoded_with_its_keys_in_any_order() {
        for event in [
            r#"{"type":"ADDED","object":{"metadata":{"name":"b","uid":"u","resourceVersion":"7"}}}"#,
            r#"{"object":{"metadata":{"name":"b","uid":"u","resourceVersion":"7"}},"type":"ADDED"}"#,
        ] {
            let WatchEvent::<Item>::Added(item) = serde_json::from_str(event).unwrap() else { panic!() };
            assert_eq!(parts(&item).0.as_deref(), Some("b"), "{event}");
            assert_eq!(parts(&item).1.as_deref(), Some("7"), "{event}");
        }
    }

    #[test]
    fn identity_needs_a_name_and_a_uid() {
        let of = |json: &str| {
            let item = Item::from(RawValue::from_string(json.to_owned()).unwrap());
            item.identity.map(|it| format!("{} {} {}", it.key(), it.uid, it.resource_version))
        };
        let complete = r#"{"metadata":{"namespace":"a","name":"b\u0041","uid":"c","resourceVersion":"7"}}"#;
        assert_eq!(of(complete).as_deref(), Some("a/bA c 7"));
        assert_eq!(of(r#"{"metadata":{"namespace":null,"name":"n","uid":"c"}}"#).as_deref(), Some("n c "));
        for json in [
            r#"{"metadata":{"name":"n"}}"#,
            r#"{"metadata":{"name":"","uid":"u"}}"#,
            r#"{"metadata":{"name":5,"uid":"u"}}"#,
            r#"{"metadata":null}"#,
            "{}",
            "5",
        ] {
            assert_eq!(of(json), None, "{json}");
        }
    }

    #[test]
    fn versions_that_are_not_numbers_have_no_order() {
        assert!(is_before("9", "10"));
        assert!(!is_before("10", "10"));
        for (a, b) in [("", "1"), ("1", "x"), ("+1", "2"), ("1", "99999999999999999999999")] {
            assert!(!is_before(a, b), "{a} {b}");
        }
    }
}
