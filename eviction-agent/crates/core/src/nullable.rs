//! Zero values in JSON, as in Go: null is read as the zero value, and a field with the zero value may be omitted.

use serde::{Deserialize, Deserializer};

/// Returns whether a value is the zero value, so that it is omitted.
pub fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Deserializes null as the zero value.
///
/// # Errors
/// If the value is neither null nor a `T`.
pub fn nullable<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Deserializes a list in which null elements are the zero value; null is an empty list.
///
/// # Errors
/// If the value is neither null nor a list of `T` and null.
pub fn nullable_list<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Default + Deserialize<'de>,
{
    let list: Vec<Option<T>> = nullable(deserializer)?;
    Ok(list.into_iter().map(Option::unwrap_or_default).collect())
}
