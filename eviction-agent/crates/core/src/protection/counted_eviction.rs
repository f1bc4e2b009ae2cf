//! An eviction that counts against rate limits, as it outlives the engine.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::pods::RateLimitKey;
use crate::time::Timestamp;

/// So many evictions that count against limits are remembered: one in five seconds for more than five hours.
pub const MOST_COUNTED: usize = 4096;

/// An eviction that counts against limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CountedEviction {
    /// When it was decided.
    pub at: Timestamp,
    /// Under what it is entered.
    pub account: Arc<RateLimitKey>,
}
