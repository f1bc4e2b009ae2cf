//! Parses YAML and JSON as Kubernetes tools write them: with limits on the cost, and for the agent's own files without
//! repeated keys.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The maximum number of open brackets. The parser's time is quadratic in this number.
const MAX_OPEN_BRACKETS: usize = 5_000;

/// The maximum size of a document in bytes: [`VALUE_BYTES`] for each value, and the texts. Aliases count as what they
/// repeat, so a small file cannot use up the memory.
const MAX_BYTES: usize = 32 << 20;

/// The size of a value without its text, in bytes.
const VALUE_BYTES: usize = size_of::<Value>();

/// Reads one YAML document.
///
/// # Errors
/// If the text is not YAML, does not match the type, or is nested too deeply.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    T::deserialize(deserializer(text)?).map_err(not_yaml)
}

fn deserializer(text: &str) -> Result<serde_yaml_ng::Deserializer<'_>, String> {
    if max_open_brackets(text) > MAX_OPEN_BRACKETS {
        return Err("not YAML: too many brackets are open".to_owned());
    }
    Ok(serde_yaml_ng::Deserializer::from_str(text))
}

fn not_yaml(error: serde_yaml_ng::Error) -> String {
    format!("not YAML: {error}")
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

/// Parses a YAML or JSON text. Of several members with one key the last one counts, and a number such as `.nan` is
/// null.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    parse_with(text, false)
}

/// Parses a YAML or JSON text in which a repeated key is an error, and so are numbers such as `.nan`.
pub(super) fn parse_strict(text: &str) -> Result<Value, String> {
    parse_with(text, true)
}

fn parse_with(text: &str, is_strict: bool) -> Result<Value, String> {
    let yaml = || ValueReader::new(is_strict).deserialize(deserializer(text)?).map_err(not_yaml);
    if !text.trim_start().starts_with('{') {
        return yaml();
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let value = ValueReader::new(is_strict).deserialize(&mut json);
    let value = value.and_then(|value| json.end().map(|()| value));
    // A YAML flow mapping starts like JSON.
    value.or_else(|error| yaml().map_err(|_| format!("not JSON: {error}")))
}

/// Reads the values of one document.
struct ValueReader {
    /// The size that the rest of the document may have.
    bytes_left: Cell<usize>,
    /// Whether a repeated key and a number such as `.nan` are errors.
    is_strict: bool,
}

impl ValueReader {
    fn new(is_strict: bool) -> Self {
        Self { bytes_left: Cell::new(MAX_BYTES), is_strict }
    }

    fn count<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let left = self.bytes_left.get().checked_sub(bytes);
        self.bytes_left.set(left.ok_or_else(|| E::custom("the document is too large"))?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for &ValueReader {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.count(VALUE_BYTES)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &ValueReader {
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
        match Number::from_f64(value) {
            None if self.is_strict => Err(E::custom(format_args!("a number must be finite, got {value}"))),
            number => Ok(number.map_or(Value::Null, Value::Number)),
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.count(value.len())?;
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            if self.is_strict && object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("`{key}` is given twice")));
            }
            self.count(VALUE_BYTES + key.len())?;
            object.insert(key, members.next_value_seed(self)?);
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

    #[test]
    fn a_document_that_its_aliases_make_too_large_is_an_error() {
        let items = "1, ".repeat(3_000);
        let text = "x".repeat(30_000);
        let keys: String = (0..30).map(|n| format!("{n}{}: 1, ", "k".repeat(1_000))).collect();
        for anchor in [format!("[{items}]"), text, format!("{{{keys}}}")] {
            let text = format!("a: &a {anchor}\nb: [{}]\n", "*a, ".repeat(3_000));
            for parsed in [parse(&text), parse_strict(&text)] {
                let error = parsed.unwrap_err();
                assert!(
                    error.starts_with("not YAML: ") && error.contains("the document is too large"),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn a_repeated_key_is_an_error() {
        let json = r#"{"a": [{"b": 1, "b": 1}]}"#;
        for text in ["b: 1\na: 2\nb: 1\n", "a: {b: 1, c: 2, b: 3}\n", "- {b: {}, b: {}}\n", json] {
            let error = parse_strict(text).unwrap_err();
            assert!(error.contains("`b` is given twice"), "{error}");
            assert!(parse(text).is_ok(), "{text}");
        }
        // Keys are texts, whatever YAML takes them for.
        for text in ["1: x\n'1': x\n", "~: x\n'~': x\n", "true: x\n'true': x\n"] {
            assert!(parse_strict(text).unwrap_err().contains("is given twice"), "{text}");
        }
        assert_eq!(parse_strict("1.10: x\n"), Ok(serde_json::json!({"1.10": "x"})));
    }

    #[test]
    fn a_tag_is_an_error() {
        for text in ["a: [!b {c: 1}]\n", "a: [!b [1]]\n", "a: [!b x]\n"] {
            let error = parse_strict(text).unwrap_err();
            assert!(error.contains("invalid type: enum") && error.contains(" at line 1"), "{error}");
        }
    }

    #[test]
    fn a_number_that_is_not_finite_is_an_error() {
        for text in ["a: .nan\n", "a: [1, .inf]\n", "a: {b: -.inf}\n"] {
            let error = parse_strict(text).unwrap_err();
            assert!(error.contains("a number must be finite") && error.contains(" at line 1"), "{error}");
            assert_eq!(parse(text), from_str(text), "null");
        }
    }

    #[test]
    fn all_other_values_are_read_as_they_are() {
        let yaml = "a: [1, -2, 1.5, true, ~, x]\n2: {b: '', c: ~}\nd: &d {e: '1'}\nf: *d\ng: *d\n";
        let expected: Value = from_str(yaml).unwrap();
        assert_eq!((parse(yaml), parse_strict(yaml)), (Ok(expected.clone()), Ok(expected)));
        let json = r#"{"a": [1, -2, 1.5, true, null, "x"], "b": {"a": {}}}"#;
        let expected: Value = serde_json::from_str(json).unwrap();
        assert_eq!((parse(json), parse_strict(json)), (Ok(expected.clone()), Ok(expected)));
        assert_eq!((parse("# nothing\n"), parse_strict("# nothing\n")), (Ok(Value::Null), Ok(Value::Null)));
        assert!(parse("{} x").unwrap_err().starts_with("not JSON: trailing characters"));
    }
}
