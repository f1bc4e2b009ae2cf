//! A request as those who ask write it.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};

use super::error::RequestError;

const AGENT: &str = concat!("eviction-agent/", env!("CARGO_PKG_VERSION"));
const JSON: &str = "application/json";

/// An answer of more bytes than this is refused, unless the request says otherwise.
const LARGEST: usize = 4 << 20;

/// How long an answer may take, unless the request says otherwise.
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
    /// The time for everything: connection, answer, body.
    pub within: Duration,
    /// The longest body of an answer that is taken.
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
    pub(super) fn write(
        &self,
        authority: &str,
        base: &str,
        token: Option<HeaderValue>,
    ) -> Result<hyper::Request<http_body_util::Full<Bytes>>, RequestError> {
        let Self { method, path, body, within: _, largest: _ } = self;
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(format!("{base}{path}"))
            .header(HOST, authority)
            .header(USER_AGENT, AGENT)
            .header(ACCEPT, JSON);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let mut bytes = Bytes::new();
        if let Some((content_type, body)) = body {
            request = request.header(CONTENT_TYPE, *content_type);
            bytes = body.clone();
        }
        request.body(bytes.into()).map_err(|error| RequestError::Malformed(error.into()))
    }
}
