//! A value that was read, or the reason why it is not known.

use serde::{Deserialize, Serialize};

/// A reading of the node. `Unknown` never counts as zero and never causes an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reading<T> {
    /// The value.
    Known(T),
    /// Why there is no value.
    Unknown(UnknownReason),
}

/// Why a value is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownReason {
    /// The value has not been read yet, or the source has no such value.
    Absent,
    /// The source returned an error.
    Failed,
    /// The file could not be read. The value is the error number.
    Unreadable(i32),
    /// The text did not have the expected form.
    Unparsable,
    /// The value is too old for a decision.
    Stale,
    /// The value was parsed, but cannot be true.
    Implausible,
    /// The value is of another file system, which has replaced the one to be read.
    Replaced,
}

/// A value that has not been read yet.
impl<T> Default for Reading<T> {
    fn default() -> Self {
        Self::Unknown(UnknownReason::Absent)
    }
}

impl<T> Reading<T> {
    /// Returns the value, if it is known.
    pub fn known(self) -> Option<T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown(_) => None,
        }
    }

    /// Applies `f` to a known value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        self.and_then(|value| Reading::Known(f(value)))
    }

    /// Applies `f` to a known value. Its result may be unknown.
    pub fn and_then<U>(self, f: impl FnOnce(T) -> Reading<U>) -> Reading<U> {
        match self {
            Self::Known(value) => f(value),
            Self::Unknown(why) => Reading::Unknown(why),
        }
    }

    /// Returns both values, or the first reason why one of them is not known.
    pub fn zip<U>(self, other: Reading<U>) -> Reading<(T, U)> {
        match (self, other) {
            (Self::Known(value), Reading::Known(other)) => Reading::Known((value, other)),
            (Self::Unknown(why), _) | (_, Reading::Unknown(why)) => Reading::Unknown(why),
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
