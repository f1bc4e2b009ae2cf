//! An answer in full.

use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::RETRY_AFTER;

/// What the server answered, with its whole body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// How long the server asks to be left alone.
    pub retry_after: Option<Duration>,
    /// The body.
    pub body: Bytes,
}

impl Answer {
    /// Whether the status is one of success.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// `Retry-After` in seconds; a date, which no API server sends, is as if it were absent.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
