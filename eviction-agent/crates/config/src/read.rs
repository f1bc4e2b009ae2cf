//! Reads a document into its type by serde. After an error the value that caused it is left out and the
//! document is read again, so that all errors are reported at once.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use super::document::got;
use super::examples::example;
use super::problem::{Problem, did_you_mean, member, quoted};
use crate::renamed;

/// A document with more errors than this is something else.
const MAX_PROBLEMS: usize = 100;

/// The document without the values that do not fit; nothing if the document as a whole does not.
pub(super) fn read<T: DeserializeOwned>(mut document: Value, problems: &mut Vec<Problem>) -> Option<T> {
    let mut removed = Removed::default();
    while problems.len() < MAX_PROBLEMS {
        let error = match serde_path_to_error::deserialize::<_, T>(&document) {
            Ok(parsed) => return Some(parsed),
            Err(error) => error,
        };
        let cause = error.inner().to_string();
        let in_document = |segment: &&Segment| matches!(segment, Segment::Map { .. } | Segment::Seq { .. });
        let segments: Vec<Segment> = error.path().iter().filter(in_document).cloned().collect();
        let path = removed.path(&segments);
        let Some(value) = document.pointer_mut(&pointer(&segments)) else {
            problems.push(Problem::new(path, cause));
            return None;
        };
        if cause.ends_with("expected string or map") {
            // An enum; the error for a text names its variants. In YAML 1.1, which other tools still
            // write, `Off` is a boolean.
            *value = if *value == false { "Off".into() } else { value.to_string().into() };
            continue;
        }
        let problem = problem(path, &segments, &cause, value);
        // A field that was left out is not missing.
        if !problems.iter().any(|other| other.path == problem.path) {
            problems.push(problem);
        }
        let (last, parents) = segments.split_last()?;
        match (document.pointer_mut(&pointer(parents))?, last) {
            (Value::Object(object), Segment::Map { key }) => {
                let value = object.remove(key)?;
                if let Some(new) = renamed::key(&name(parents), key).filter(|new| !new.contains('.')) {
                    object.entry(new).or_insert(value);
                }
            }
            (Value::Array(list), Segment::Seq { index }) => {
                list.remove(*index);
                removed.add(removed.path(parents), *index);
            }
            _ => return None,
        }
    }
    None
}

/// The JSON pointer of a place.
fn pointer(segments: &[Segment]) -> String {
    let step = |segment: &Segment| match segment {
        Segment::Map { key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Seq { index } => format!("/{index}"),
        _ => String::new(),
    };
    segments.iter().map(step).collect()
}

/// A place as the documentation names it: `policy.signals[].hard`.
fn name(segments: &[Segment]) -> String {
    segments.iter().fold(String::new(), |name, segment| match segment {
        Segment::Map { key } if name.is_empty() => key.clone(),
        Segment::Map { key } => format!("{name}.{key}"),
        _ => format!("{name}[]"),
    })
}

/// By the path of a list the indexes of its items that were left out, ascending.
#[derive(Default)]
struct Removed(BTreeMap<String, Vec<usize>>);

impl Removed {
    /// The index in the list as it was given.
    fn index(&self, list: &str, index: usize) -> usize {
        let removed = self.0.get(list).into_iter().flatten();
        removed.fold(index, |index, removed| index + usize::from(*removed <= index))
    }

    fn add(&mut self, list: String, index: usize) {
        let index = self.index(&list, index);
        let indexes = self.0.entry(list).or_default();
        indexes.push(index);
        indexes.sort_unstable();
    }

    /// The path in the document as it was given.
    fn path(&self, segments: &[Segment]) -> String {
        segments.iter().fold(String::new(), |path, segment| match segment {
            Segment::Map { key } => member(&path, key),
            Segment::Seq { index } => format!("{path}[{}]", self.index(&path, *index)),
            _ => path,
        })
    }
}

/// An error of serde in the words of the documentation.
fn problem(path: String, segments: &[Segment], cause: &str, value: &Value) -> Problem {
    if let Some(field) = cause.strip_prefix("missing field `") {
        return Problem::new(member(&path, field.trim_end_matches('`')), "is missing");
    }
    let (found, expected) = cause.rsplit_once(", expected ").unwrap_or((cause, ""));
    let names: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    if let (Some((Segment::Map { key }, parents)), true) =
        (segments.split_last(), found.starts_with("unknown field "))
    {
        let parent = name(parents);
        return match renamed::key(&parent, key) {
            Some(new) if parent.is_empty() => Problem::new(path, format!("was renamed to `{new}`")),
            Some(new) => Problem::new(path, format!("was renamed to `{parent}.{new}`")),
            None => Problem::new(path, "is not known here").with_help(did_you_mean(key, names)),
        };
    }
    if found.starts_with("unknown variant ") {
        let text = value.as_str().unwrap_or_default();
        if let Some(new) = renamed::value(&name(segments), text) {
            return Problem::new(path, format!("the value `{text}` was renamed to `{new}`"));
        }
        let one_of = if names.len() > 1 { "one of " } else { "" };
        let cause = format!("must be {one_of}{}, got {}", quoted(&names), got(value));
        return Problem::new(path, cause).with_help(did_you_mean(text, names));
    }
    if found.starts_with("invalid type: ") || found.starts_with("invalid value: ") {
        let is_text = expected == "a string" || expected.contains("such as \"");
        let help = (is_text && value.is_number()).then(|| "numbers must be in quotes here".to_owned());
        let cause = format!("must be {}, got {}", in_words(expected), got(value));
        return Problem::new(path, cause).with_help(help);
    }
    let names_value = value.as_str().is_none_or(|text| cause.contains(text));
    let got = if names_value { String::new() } else { format!(", got {}", got(value)) };
    Problem::new(path, format!("{cause}{got}")).with_help(example(cause))
}

fn in_words(expected: &str) -> &str {
    match expected {
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "f64" => "a number",
        "i32" | "u8" | "u16" | "u32" => "an integer",
        "a map" => "an object",
        "path string" => "a string",
        "socket address" => "an address with a port such as \"127.0.0.1:9095\"",
        name if name.starts_with("struct ") => "an object",
        other => other,
    }
}
