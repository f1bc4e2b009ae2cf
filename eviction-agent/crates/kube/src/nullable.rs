//! JSON's null, which Go's decoder takes for "leave the zero value".

use serde::{Deserialize, Deserializer};

/// Null is the zero value.
pub fn nullable<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Null is the zero value, for elements as well.
pub fn nullable_list<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Default + Deserialize<'de>,
{
    let list: Option<Vec<Option<T>>> = Option::deserialize(deserializer)?;
    let list = list.unwrap_or_default().into_iter();
    Ok(list.map(Option::unwrap_or_default).collect())
}
