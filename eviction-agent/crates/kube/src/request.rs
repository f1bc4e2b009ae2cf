//! A request, and its response in full.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
pub(crate) use http::Method;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use kube::client::Body;
use serde::Serialize;

use crate::error::RequestError;

const JSON: &str = "application/json";

/// A response of more bytes than this is refused, unless the request says otherwise.
const LARGEST: usize = 4 << 20;

/// How long a response may take, unless the request says otherwise.
const WITHIN: Duration = Duration::from_secs(10);

/// One request. It is sent at most once.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The path, with the query if there is one; begins with a slash.
    pub path: String,
    /// The body with its type.
    pub body: Option<(&'static str, Bytes)>,
    /// The time for everything: connection, response, body.
    pub within: Duration,
    /// The longest body of a response that is read.
    pub largest: usize,
}

impl Request {
    /// A GET.
    pub fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), body: None, within: WITHIN, largest: LARGEST }
    }

    /// A POST of JSON.
    pub fn post(path: impl Into<String>, json: impl Into<Bytes>) -> Self {
        Self { method: Method::POST, body: Some((JSON, json.into())), ..Self::get(path) }
    }

    /// A DELETE with DeleteOptions in JSON.
    pub fn delete(path: impl Into<String>, json: impl Into<Bytes>) -> Self {
        Self { method: Method::DELETE, body: Some((JSON, json.into())), ..Self::get(path) }
    }

    /// A PATCH of this content type, such as `application/merge-patch+json`.
    pub fn patch(path: impl Into<String>, content_type: &'static str, json: impl Into<Bytes>) -> Self {
        Self { method: Method::PATCH, body: Some((content_type, json.into())), ..Self::get(path) }
    }

    /// The same with another bound in time.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// As HTTP has it.
    pub(crate) fn write(&self) -> Result<http::Request<Body>, RequestError> {
        let mut request = http::Request::builder().method(&self.method).uri(&self.path).header(ACCEPT, JSON);
        let mut bytes = Bytes::new();
        if let Some((content_type, body)) = &self.body {
            request = request.header(CONTENT_TYPE, *content_type);
            bytes = body.clone();
        }
        request.body(bytes.into()).map_err(|error| RequestError::Malformed(error.into()))
    }
}

/// What the server responded, with its whole body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// The pause that the server asks for.
    pub retry_after: Option<Duration>,
    /// The body.
    pub body: Bytes,
}

/// `Retry-After` in seconds; a date, which no API server sends, is as if it were absent.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// What is written here is always JSON; were it not, the server would refuse it.
pub(crate) fn to_json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap_or_default()
}

/// Appends a name to a path: whatever it is, it is one segment.
pub(crate) fn segment(name: &str, path: &mut String) {
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => path.push(byte.into()),
            b'.' if !matches!(name, "." | "..") => path.push('.'),
            _ => {
                // Writing to a string cannot fail.
                let _ = write!(path, "%{byte:02X}");
            }
        }
    }
}
