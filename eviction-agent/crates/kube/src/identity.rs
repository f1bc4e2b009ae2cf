//! Which object it is, and which state of it: read apart from everything else.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;

/// Where an object is; another one may be there later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Its namespace, empty for those that are in none.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// An object's place, the object that is there, and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) key: Key,
    pub(crate) uid: Box<str>,
    pub(crate) version: Version,
}

/// `metadata.resourceVersion`: the order of states, where it is a number, as it always is with the
/// API server itself (KEP-5504).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    text: Box<str>,
    number: Option<u64>,
}

impl Version {
    pub(crate) fn new(text: &str) -> Self {
        let digits = !text.starts_with('+');
        Self { text: text.into(), number: text.parse().ok().filter(|_| digits) }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it is known to come before the other.
    pub(crate) fn is_before(&self, other: &Self) -> bool {
        matches!((self.number, other.number), (Some(own), Some(other)) if own < other)
    }
}

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow, default)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    uid: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    resource_version: Option<Cow<'a, str>>,
}

impl Identity {
    /// The identity of an object.
    pub(crate) fn of(json: &[u8]) -> Result<Self, String> {
        let object: Object<'_> = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let Metadata { namespace, name, uid, resource_version } = object.metadata;
        let namespace = namespace.unwrap_or_default();
        Ok(Self {
            key: Key { namespace: (*namespace).into(), name: required("name", name.as_deref())?.into() },
            uid: required("uid", uid.as_deref())?.into(),
            version: Version::new(&resource_version.unwrap_or_default()),
        })
    }
}

fn required<'t>(field: &str, text: Option<&'t str>) -> Result<&'t str, String> {
    text.filter(|text| !text.is_empty()).ok_or_else(|| format!("metadata.{field}: is missing"))
}

/// The version alone, as bookmarks have it.
pub(crate) fn version_of(json: &[u8]) -> Option<Version> {
    let object: Object<'_> = serde_json::from_slice(json).ok()?;
    object
        .metadata
        .resource_version
        .map(|text| Version::new(&text))
        .filter(|version| !version.text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{Identity, Version};

    #[test]
    fn an_identity_has_a_name_and_a_uid() {
        let of = |json: &str| {
            Identity::of(json.as_bytes()).map(|it| format!("{} {} {}", it.key, it.uid, it.version.as_str()))
        };
        assert_eq!(
            of(r#"{"metadata":{"namespace":"a","name":"b\u0041","uid":"c","resourceVersion":"7"}}"#),
            Ok("a/bA c 7".into())
        );
        assert_eq!(of(r#"{"metadata":{"namespace":null,"name":"n","uid":"c"}}"#), Ok("n c ".into()));
        assert_eq!(of(r#"{"metadata":{"name":"n"}}"#), Err("metadata.uid: is missing".into()));
        assert_eq!(of(r#"{"metadata":{"name":"","uid":"u"}}"#), Err("metadata.name: is missing".into()));
        for json in ["{}", "5", "", r#"{"metadata":{"name":5,"uid":"u"}}"#, r#"{"metadata":null}"#] {
            assert!(of(json).is_err(), "{json}");
        }
    }

    #[test]
    fn versions_that_are_no_numbers_have_no_order() {
        let before = |a: &str, b: &str| Version::new(a).is_before(&Version::new(b));
        assert!(before("9", "10"));
        assert!(!before("10", "10"));
        for (a, b) in [("", "1"), ("1", "x"), ("+1", "2"), ("1", "99999999999999999999999")] {
            assert!(!before(a, b), "{a} {b}");
        }
    }
}
