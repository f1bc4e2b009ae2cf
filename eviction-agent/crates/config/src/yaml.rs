//! Parses YAML and JSON as Kubernetes tools write them: with a limit on the parsing cost, and for the agent's own
//! files without repeated keys.

use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The maximum number of open brackets. The parser's time is quadratic in this number.
const MAX_OPEN_BRACKETS: usize = 5_000;

/// Reads one YAML document.
///
/// # Errors
/// If the text is not YAML, does not match the type, or is nested too deeply.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    if max_open_brackets(text) > MAX_OPEN_BRACKETS {
        return Err("not YAML: too many brackets are open".to_owned());
    }
    serde_yaml_ng::from_str(text).map_err(|error| format!("not YAML: {error}"))
}

/// Returns the maximum number of open brackets. Brackets in texts count as well; they usually come in pairs.
fn max_open_brackets(text: &str) -> usize {
    let (mut open, mut most) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => {
                open += 1;
                most = most.max(open);
            }
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
    }
    most
}

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

    #[test]
    fn deeply_nested_or_repetitive_yaml_is_an_error() {
        let nested = "[".repeat(1_000_000);
        assert_eq!(from_str::<Value>(&nested), Err("not YAML: too many brackets are open".into()));
        let aliases = "a: &a [x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c]\ne: &e [*d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e]\ng: [*f, *f, *f, *f, *f, *f, *f, *f]\n";
        assert_eq!(from_str::<Value>(aliases), Err("not YAML: repetition limit exceeded".into()));
    }

    fn parse(text: &str) -> Result<Value, String> {
        from_str::<Strict>(text).map(Value::from)
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
        let expected: Value = from_str(text).unwrap();
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse("# nothing\n"), Ok(Value::Null));
        let text = r#"{"a": [1, -2, 1.5, true, null, "x"], "b": {"a": {}}}"#;
        assert_eq!(
            Value::from(serde_json::from_str::<Strict>(text).unwrap()),
            serde_json::from_str::<Value>(text).unwrap()
        );
    }
}
