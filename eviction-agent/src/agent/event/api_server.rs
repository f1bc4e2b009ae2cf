//! Whether the API server can be asked.

use std::fmt;

use serde::Serialize;

use crate::core::input::Reach;

/// See [`Event::ApiServer`](super::Event::ApiServer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct ApiServer {
    pub state: &'static str,
}

impl From<Reach> for ApiServer {
    fn from(reach: Reach) -> Self {
        let state = match reach {
            Reach::Reachable => "reachable",
            Reach::Unreachable => "unreachable",
        };
        Self { state }
    }
}

impl fmt::Display for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            "reachable" => f.write_str("the API server can be asked again: everything is decided anew"),
            _ => f.write_str(
                "the API server cannot be asked: soft evictions wait, hard ones as `apiUnreachable` says",
            ),
        }
    }
}
