//! A YAML or JSON document in which no key is repeated and every number is finite.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A value of a YAML or JSON text in which a repeated key is an error, and so are numbers such as `.nan`. A plain
/// [`Value`] keeps the last of several members with one key, and reads such a number as null.
pub(super) struct Strict(Value);

impl From<Strict> for Value {
    fn from(Strict(value): Strict) -> Self {
        value
    }
}

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).map(Value::Number);
        number.ok_or_else(|| E::custom(format_args!("a number must be finite, got {value}")))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("`{key}` is given twice")));
            }
            let Strict(value) = members.next_value()?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    fn parse(text: &str) -> Result<Value, String> {
        yaml::from_str::<Strict>(text).map(Value::from)
    }

    #[test]
    fn a_repeated_key_is_an_error() {
        for text in ["b: 1\na: 2\nb: 1\n", "a: {b: 1, c: 2, b: 3}\n", "- {b: {}, b: {}}\n"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("`b` is given twice"), "{error}");
        }
        assert!(serde_json::from_str::<Strict>(r#"{"a": [{"b": 1, "b": 1}]}"#).is_err());
    }

    #[test]
    fn a_number_that_is_not_finite_is_an_error() {
        for text in ["a: .nan\n", "a: [1, .inf]\n", "a: {b: -.inf}\n"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("a number must be finite"), "{error}");
        }
    }

    #[test]
    fn all_other_values_are_read_as_they_are() {
        let text = "a: [1, -2, 1.5, true, ~, x]\n2: {b: '', c: ~}\nd: &d {e: '1'}\nf: *d\ng: *d\n";
        let expected: Value = yaml::from_str(text).unwrap();
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse("# nothing\n"), Ok(Value::Null));
        let text = r#"{"a": [1, -2, 1.5, true, null, "x"], "b": {"a": {}}}"#;
        assert_eq!(
            Value::from(serde_json::from_str::<Strict>(text).unwrap()),
            serde_json::from_str::<Value>(text).unwrap()
        );
    }
}
