//! Configuration files as they are read: YAML or JSON, with an `apiVersion` and a `kind`.

use std::path::Path;

use serde_json::{Map, Value};

use super::problem::Problem;
use crate::yaml;

/// Larger files are no configuration.
const MAX_BYTES: u64 = 4 << 20;

/// Reads a file of the given kind: an object.
pub(super) fn read_document(
    file: &Path,
    api_version: &str,
    kind: &str,
) -> Result<Map<String, Value>, Vec<Problem>> {
    let wrong = |cause: String| vec![Problem::new("", cause).in_file(Some(file))];
    let text = read_text(file).map_err(wrong)?;
    let object = parse_object(&text).map_err(wrong)?;
    let header = wrong_header(&object, api_version, kind);
    if header.is_empty() {
        return Ok(object);
    }
    Err(header.into_iter().map(|problem| problem.in_file(Some(file))).collect())
}

fn read_text(file: &Path) -> Result<String, String> {
    let metadata = std::fs::metadata(file).map_err(|error| error.to_string())?;
    if metadata.is_dir() {
        return Err("is a directory, not a file".to_owned());
    }
    if metadata.len() > MAX_BYTES {
        return Err(format!("has {} bytes; a configuration has at most {MAX_BYTES}", metadata.len()));
    }
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|error| format!("not UTF-8 text: {}", error.utf8_error()))
}

/// The object in a YAML text; JSON is YAML.
pub(super) fn parse_object(text: &str) -> Result<Map<String, Value>, String> {
    if text.trim().is_empty() {
        return Err("is empty".to_owned());
    }
    let json = text.trim_start().starts_with('{');
    let value = if json {
        // Flow mappings of YAML begin the same way.
        serde_json::from_str(text)
            .or_else(|error| yaml::from_str(text).map_err(|_| format!("not JSON: {error}")))?
    } else {
        yaml::from_str(text)?
    };
    match value {
        Value::Object(object) => Ok(object),
        other => Err(format!("must be an object, got {}", got(&other))),
    }
}

/// What is wrong with `apiVersion` and `kind`.
fn wrong_header(object: &Map<String, Value>, api_version: &str, kind: &str) -> Vec<Problem> {
    let right = [("apiVersion", api_version), ("kind", kind)].into_iter();
    right
        .filter_map(|(key, wanted)| {
            let got = match object.get(key) {
                Some(Value::String(text)) if text == wanted => return None,
                Some(Value::String(text)) => format!("got `{text}`"),
                Some(Value::Null) | None => "got nothing".to_owned(),
                Some(other) => format!("got {}", self::got(other)),
            };
            Some(Problem::new(key, format!("must be `{wanted}`, {got}")))
        })
        .collect()
}

/// A value as an error about it quotes it.
pub(super) fn got(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => format!("{text:?}"),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// An integer as Go's decoder takes it: neither a point nor an exponent, but `-0`.
pub(super) fn integer(value: &Value) -> Option<i64> {
    let negative_zero = |value: &f64| *value == 0.0 && value.is_sign_negative();
    let zero = || value.as_f64().filter(negative_zero).map(|_| 0);
    value.as_i64().or_else(zero)
}
