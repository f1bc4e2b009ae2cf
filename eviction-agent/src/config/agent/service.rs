//! How the agent works beside what it decides. A change takes effect when it is started again.

use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::core::units::GoDuration;

/// Requests for evictions to the API server. A change takes effect when the agent is started again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Requests {
    /// How many may be under way at a time, 1 to 64.
    #[schemars(range(min = 1, max = 64))]
    pub max_in_flight: u16,
    /// How long one may take.
    #[schemars(with = "String", extend("format" = "positive-duration"))]
    pub timeout: GoDuration,
    /// How old a decision may be when its request is sent; an older one is made anew.
    #[schemars(with = "String", extend("format" = "positive-duration"))]
    pub max_age: GoDuration,
}

impl Default for Requests {
    fn default() -> Self {
        let five = GoDuration::from_secs(5);
        Self { max_in_flight: 8, timeout: five, max_age: five }
    }
}

/// What the agent serves. A change takes effect when the agent is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Endpoints {
    /// Address of `/metrics`, `/healthz` and `/readyz`; port 0 lets the system choose.
    #[schemars(with = "String", extend("format" = "socket-address"))]
    pub listen: SocketAddr,
}

impl Default for Endpoints {
    fn default() -> Self {
        Self { listen: (Ipv4Addr::LOCALHOST, 9095).into() }
    }
}

/// Memory limits of pods, containers and the groups above them, at which the kernel kills. A change
/// takes effect when the agent is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MemoryLimits {
    /// How near the working set must come to a limit to be told of, in percent of the limit, 1 to 50.
    #[schemars(range(min = 1, max = 50))]
    pub near_percent: u8,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self { near_percent: 10 }
    }
}
