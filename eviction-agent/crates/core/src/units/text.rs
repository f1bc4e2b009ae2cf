//! Reading a value from its text by serde.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};

struct Text<F> {
    wanted: &'static str,
    parse: F,
}

impl<T, E: fmt::Display, F: FnOnce(&str) -> Result<T, E>> Visitor<'_> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wanted)
    }

    fn visit_str<D: Error>(self, text: &str) -> Result<T, D> {
        (self.parse)(text).map_err(D::custom)
    }
}

/// Reads a value that is written as a text; `wanted` says in an error what other types are not.
///
/// # Errors
/// Another type, or the cause of the parser.
pub fn deserialize_text<'de, D: Deserializer<'de>, T, E: fmt::Display>(
    deserializer: D,
    wanted: &'static str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    deserializer.deserialize_str(Text { wanted, parse })
}
