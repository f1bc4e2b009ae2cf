//! Structs for objects of the API. JSON's null is the zero value, as in Go's decoder.

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
            $($(#[$inner])* #[serde(deserialize_with = "eviction_core::nullable::nullable")] $field: $type,)*
        }
    )+};
}

pub(crate) use objects;
