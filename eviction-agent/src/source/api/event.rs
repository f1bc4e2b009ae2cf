//! A line of a watch.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::identity::{Version, version_of};

/// What a line says.
#[derive(Debug)]
pub(super) enum Event<'a> {
    /// The object is like this now.
    Put(&'a [u8]),
    /// The object is gone; so it was at the end.
    Gone(&'a [u8]),
    /// Everything up to this version has been told.
    Bookmark(Version),
    /// The watch ends here.
    Error(Status),
    /// Nothing that is understood.
    Unreadable(String),
}

/// `metav1.Status`, as far as it tells why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Status {
    #[serde(default)]
    pub(super) code: i64,
    #[serde(default)]
    pub(super) reason: Option<String>,
    #[serde(default)]
    pub(super) message: Option<String>,
}

impl Status {
    /// Reads the body of an answer that is no success; what is none says nothing.
    pub(super) fn of(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }

    /// Why, in words, at most a line of them.
    pub(super) fn why(&self) -> String {
        let text = [&self.message, &self.reason].into_iter().flatten().find(|text| !text.is_empty());
        text.map_or_else(|| "no reason given".to_owned(), |text| text.chars().take(300).collect())
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl<'a> Event<'a> {
    pub(super) fn of(line: &'a [u8]) -> Self {
        let Line { kind, object } = match serde_json::from_slice(line) {
            Ok(line) => line,
            Err(error) => return Self::Unreadable(error.to_string()),
        };
        let object = object.get().as_bytes();
        match &*kind {
            "ADDED" | "MODIFIED" => Self::Put(object),
            "DELETED" => Self::Gone(object),
            "BOOKMARK" => version_of(object)
                .map_or_else(|| Self::Unreadable("a bookmark without a version".to_owned()), Self::Bookmark),
            "ERROR" => Self::Error(Status::of(object)),
            other => Self::Unreadable(format!("an event of type `{other:.40}`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Event, Status};

    #[test]
    fn lines_are_told_apart() {
        let of = |line: &str| format!("{:?}", Event::of(line.as_bytes()));
        assert!(of(r#"{"type":"ADDED","object":{"a":1}}"#).starts_with("Put("));
        assert!(of(r#"{"object":{"a":1},"type":"MODIFIED"}"#).starts_with("Put("));
        assert!(of(r#"{"type":"DELETED","object":{}}"#).starts_with("Gone("));
        assert!(of(r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"12"}}}"#).contains("12"));
        for line in [
            "",
            "{}",
            "{\"type\":5}",
            r#"{"type":"NEW","object":{}}"#,
            r#"{"type":"BOOKMARK","object":{}}"#,
            r#"{"type":"ADDED","object":{"a":"#,
        ] {
            assert!(of(line).starts_with("Unreadable("), "{line}");
        }
    }

    #[test]
    fn the_error_of_the_server_says_why() {
        let line = r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"too old resource version: 247 (260)","reason":"Expired","code":410}}"#;
        let Event::Error(status) = Event::of(line.as_bytes()) else { panic!("{line}") };
        assert_eq!((status.code, status.why().as_str()), (410, "too old resource version: 247 (260)"));
        assert_eq!(Status::of(b"<html>").why(), "no reason given");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Event::of(&bytes);
        }
    }
}
