//! A request to the API server, and the parts of its response.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
pub(crate) use http::Method;
use http::Response;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use kube::client::Body;
use serde::Serialize;

use crate::error::RequestError;

const JSON: &str = "application/json";

/// The content type of a patch that merges lists of conditions by their type. A JSON merge patch would
/// replace the list.
pub(crate) const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

/// The default limit for the size of a response, in bytes.
const LARGEST: usize = 4 << 20;

/// The default timeout of a request.
const WITHIN: Duration = Duration::from_secs(10);

/// One request. It is sent at most once.
#[derive(Clone, Debug)]
pub struct Request {
    /// The HTTP method.
    pub method: Method,
    /// The path, with the query if there is one; starts with a slash.
    pub path: String,
    /// The content type and the body.
    pub body: Option<(&'static str, Bytes)>,
    /// The timeout for credentials, connection, response and body together.
    pub within: Duration,
    /// The maximum size of the response body, in bytes.
    pub largest: usize,
}

impl Request {
    /// Creates a GET request.
    pub fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), body: None, within: WITHIN, largest: LARGEST }
    }

    /// Creates a POST request with a JSON body.
    pub fn post(path: impl Into<String>, json: impl Into<Bytes>) -> Self {
        Self { method: Method::POST, body: Some((JSON, json.into())), ..Self::get(path) }
    }

    /// Creates a DELETE request with DeleteOptions in JSON.
    pub fn delete(path: impl Into<String>, json: impl Into<Bytes>) -> Self {
        Self { method: Method::DELETE, body: Some((JSON, json.into())), ..Self::get(path) }
    }

    /// Creates a PATCH request of this content type, such as `application/merge-patch+json`.
    pub fn patch(path: impl Into<String>, content_type: &'static str, json: impl Into<Bytes>) -> Self {
        Self { method: Method::PATCH, body: Some((content_type, json.into())), ..Self::get(path) }
    }

    /// Sets the timeout.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// Sets the timeout, here and on the server. With `is_dry` the server checks the request without carrying it
    /// out (dry run). Adds both to the path, which must not have a query.
    pub(crate) fn on_server(self, within: Duration, is_dry: bool) -> Self {
        // In whole seconds, rounded up: the server never gives up before the client.
        let seconds = within.as_secs().saturating_add(1);
        let dry_run = if is_dry { "&dryRun=All" } else { "" };
        let path = format!("{}?timeout={seconds}s{dry_run}", self.path);
        Self { path, within, ..self }
    }

    /// Converts the request to an HTTP request.
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

/// Reads the body of a response, of at most `limit` bytes.
pub(crate) async fn read_to_end(body: Incoming, limit: usize) -> Result<Bytes, RequestError> {
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(RequestError::TooLarge { limit }),
        Err(error) => Err(RequestError::Broken(error)),
    }
}

/// Returns the `message` of the `Status` in a response.
pub(crate) fn status_message(response: &Response<Bytes>) -> String {
    let status: Option<serde_json::Value> = serde_json::from_slice(response.body()).ok();
    let message = status.as_ref().and_then(|status| status.get("message")?.as_str());
    message.unwrap_or("no reason given").chars().take(300).collect()
}

/// Returns `Retry-After` in seconds. A date is ignored; no API server sends one.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Serializes a body. This cannot fail for the types here; the server would reject an empty body.
pub(crate) fn to_json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap_or_default()
}

/// Appends a name to a path as one segment, with escapes where necessary.
pub(crate) fn push_segment(name: &str, path: &mut String) {
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
