//! A value that was read, or the reason why it is not known.

use serde::{Deserialize, Serialize};

/// A reading of the node. `Unknown` never counts as zero and never evicts anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reading<T> {
    /// The value.
    Known(T),
    /// Why there is none.
    Unknown(UnknownReason),
}

/// Why a value is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnknownReason {
    /// Nobody has looked yet, or the source has no such value.
    Absent,
    /// Whoever was asked answered with an error.
    Failed,
    /// The file could not be read; the error number.
    Unreadable(i32),
    /// The text did not have the expected form.
    Unparsable,
    /// Older than what may be decided on.
    Stale,
    /// It parsed, but cannot be true.
    Implausible,
    /// It is of another file system, which has taken the place of the one to be read.
    Replaced,
}

/// Nobody has looked.
impl<T> Default for Reading<T> {
    fn default() -> Self {
        Self::Unknown(UnknownReason::Absent)
    }
}

impl<T> Reading<T> {
    /// The value, if known.
    pub fn known(self) -> Option<T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown(_) => None,
        }
    }

    /// Applies `f` to a known value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Known(value) => Reading::Known(f(value)),
            Self::Unknown(why) => Reading::Unknown(why),
        }
    }
}
impl<T> From<Result<T, UnknownReason>> for Reading<T> {
    fn from(result: Result<T, UnknownReason>) -> Self {
        match result {
            Ok(value) => Self::Known(value),
            Err(why) => Self::Unknown(why),
        }
    }
}
