//! What came of an eviction that was decided on.

/// What came of an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionResult {
    /// Whose.
    pub uid: Box<str>,
    /// Whether the pod is gone, or why it does not go.
    pub result: Result<(), NotEvicted>,
}

/// Why a pod does not go that was to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotEvicted {
    /// It was tried, and this is why it failed.
    Failed(Box<str>),
    /// A PodDisruptionBudget does not allow it for now.
    Budget,
    /// Nobody took the request: as if nothing had been decided.
    NotAsked,
}

impl From<&str> for NotEvicted {
    fn from(why: &str) -> Self {
        Self::Failed(why.into())
    }
}

impl From<String> for NotEvicted {
    fn from(why: String) -> Self {
        Self::Failed(why.into())
    }
}
