//! Structs for objects of the API. JSON's null is the zero value, as in Go's decoder.

use serde::{Deserialize, Deserializer};

/// Declares structs that are read from the API's JSON. An absent or null field has the zero value. Other
/// fields are ignored.
macro_rules! objects {
    ($($(#[$outer:meta])* $vis:vis struct $name:ident {
        $($(#[$inner:meta])* $field:ident: $type:ty,)*
    })+) => {$(
        $(#[$outer])*
        #[derive(Clone, Debug, Default, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        $vis struct $name {
            $($(#[$inner])* #[serde(deserialize_with = "crate::nullable::nullable")] $field: $type,)*
        }
    )+};
}

pub(crate) use objects;

/// Deserializes null as the zero value.
pub fn nullable<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Deserializes a list in which null elements are the zero value; null is an empty list.
pub fn nullable_list<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Default + Deserialize<'de>,
{
    nullable(deserializer).map(|List(list)| list)
}

/// A list in which null elements are the zero value.
#[derive(Clone, Debug, Default)]
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<'de, T: Default + Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = Vec::<Option<T>>::deserialize(deserializer)?;
        Ok(Self(list.into_iter().map(Option::unwrap_or_default).collect()))
    }
}
