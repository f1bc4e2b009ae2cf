//! The line about the API server's reachability.

use std::fmt;

use serde::Serialize;

use eviction_core::input::ApiReachability;

/// See [`Event::KubeApi`](super::Event::KubeApi).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KubeApi {
    pub state: &'static str,
}

impl From<ApiReachability> for KubeApi {
    fn from(reach: ApiReachability) -> Self {
        let state = match reach {
            ApiReachability::Reachable => "reachable",
            ApiReachability::Unreachable => "unreachable",
        };
        Self { state }
    }
}

impl fmt::Display for KubeApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            "reachable" => f.write_str("API server reachable again: pending evictions are decided anew"),
            _ => {
                f.write_str("API server unreachable: soft evictions wait, hard ones follow the configuration")
            }
        }
    }
}
