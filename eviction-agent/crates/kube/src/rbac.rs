//! Rights that are missing, each said once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use eviction_core::progress::{ApiOperation, ApiResult};

/// Rights that are missing, and that this was said of.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    missing: Mutex<BTreeSet<ApiOperation>>,
}

impl Rights {
    /// Says once that a right is missing, until it was there again.
    pub(crate) fn note(&self, asked: ApiOperation, answered: &ApiResult) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        match answered {
            ApiResult::Forbidden { why } if missing.insert(asked) => {
                let (verb, resource) = asked.right();
                tracing::error!(
                    verb, resource, %why,
                    help = "add the rule to the ClusterRole of the agent's service account",
                    "a permission is missing"
                );
            }
            ApiResult::Accepted | ApiResult::PdbDenied { .. } => {
                missing.remove(&asked);
            }
            _ => {}
        }
    }
}
