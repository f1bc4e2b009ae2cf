//! Eviction requests, memory limits, the HTTP server and its metrics. A change takes effect at the next start.

use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use eviction_core::units::GoDuration;

/// Eviction requests to the API server. A change takes effect at the next start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EvictionRequests {
    /// The most requests at the same time.
    #[schemars(range(min = 1, max = 64))]
    pub max_in_flight: u16,
    /// The timeout of a request.
    #[schemars(with = "String", extend("format" = "positive-duration"))]
    pub timeout: GoDuration,
    /// The most time between a decision and its request; an older decision is made again.
    #[schemars(with = "String", extend("format" = "positive-duration"))]
    pub max_age: GoDuration,
}

impl Default for EvictionRequests {
    fn default() -> Self {
        let five = GoDuration::from_secs(5);
        Self { max_in_flight: 8, timeout: five, max_age: five }
    }
}

/// The HTTP server of the agent. A change takes effect at the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Server {
    /// The address of `/metrics`, `/healthz` and `/readyz`; port 0 lets the kernel choose.
    #[schemars(with = "String", extend("format" = "socket-address"))]
    pub listen_address: SocketAddr,
}

impl Default for Server {
    fn default() -> Self {
        Self { listen_address: (Ipv4Addr::LOCALHOST, 9095).into() }
    }
}

/// Memory limits of pods, containers and the cgroups above them, at which the kernel kills. A change
/// takes effect at the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MemoryLimits {
    /// How far below a limit the working set is reported, in percent of the limit.
    #[schemars(range(min = 1, max = 50))]
    pub warn_percent: u8,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self { warn_percent: 10 }
    }
}

/// What is exported as metrics. A change takes effect at the next start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MetricsSettings {
    /// The pods whose memory is exported. The eviction rank is that of the first ten, or of none.
    pub pods: PodMetrics,
}

/// The pods whose memory is exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodMetrics {
    /// All pods, up to 512.
    All,
    /// The ten that would be evicted first.
    #[default]
    Top,
    /// None, nor any rank.
    Off,
}
