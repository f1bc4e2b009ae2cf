//! Why the API server gave no list and no watch.

use std::time::Duration;

use tokio::time::timeout;

use super::event::Status;
use crate::api::{RequestError, Stream};
use eviction_core::error::chain;

/// Bytes of a refusal that are read.
const REFUSAL: usize = 64 << 10;
/// For no longer than this.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Why there is no list or no watch.
pub(super) struct Trouble {
    pub(super) why: String,
    /// What the server asked for.
    pub(super) pause: Option<Duration>,
    /// The server does not know, or not yet, the version that it was asked to start from.
    pub(super) version: bool,
}

impl Trouble {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), pause: None, version: false }
    }
}

impl From<RequestError> for Trouble {
    fn from(error: RequestError) -> Self {
        Self::new(chain(&error))
    }
}

/// An answer that is no success, in words.
pub(super) async fn refusal(stream: Stream) -> Trouble {
    let status = stream.status();
    let answer = timeout(READ_WITHIN, stream.rest(REFUSAL)).await;
    let Ok(Ok(answer)) = answer else {
        return Trouble::new(format!("the server answers {status}"));
    };
    let why = Status::of(&answer.body).why();
    Trouble {
        // `NewTooLargeResourceVersionError` of apimachinery is a 504.
        version: status == 410 || status == 504 && why.contains("resource version"),
        why: format!("the server answers {status}: {why}"),
        pause: answer.retry_after,
    }
}
