//! Deserializes a document into its type. After an error the value that caused it is removed, and the
//! document is read again, so that all errors are reported at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::Segment;

use crate::problem::{Problem, did_you_mean, member, quoted};

/// The maximum number of errors. A document with more is probably not a configuration.
const MAX_PROBLEMS: usize = 100;

/// Reads the document without its invalid values; `None` if the document as a whole is invalid.
pub(super) fn read<T: DeserializeOwned>(mut document: Value, problems: &mut Vec<Problem>) -> Option<T> {
    // The indexes of the list items that were removed, by the path of the list.
    let mut removed = BTreeMap::<String, BTreeSet<usize>>::new();
    while problems.len() < MAX_PROBLEMS {
        let error = match serde_path_to_error::deserialize::<_, T>(&document) {
            Ok(parsed) => return Some(parsed),
            Err(error) => error,
        };
        let cause = error.inner().to_string();
        let in_document = |segment: &&Segment| matches!(segment, Segment::Map { .. } | Segment::Seq { .. });
        let segments: Vec<Segment> = error.path().iter().filter(in_document).cloned().collect();
        let path = original_path(&segments, &removed);
        let Some(value) = document.pointer_mut(&pointer(&segments)) else {
            problems.push(Problem::new(path, cause));
            return None;
        };
        if cause.ends_with("expected string or map") {
            // An enum. As a text, the value causes an error that lists the variants. In YAML 1.1, which other
            // tools still write, `Off` is a boolean.
            *value = if *value == false { "Off".into() } else { value.to_string().into() };
            continue;
        }
        let problem = problem(path, &segments, &cause, value);
        // A field that was removed because of an error is not reported as missing.
        if !problems.iter().any(|other| other.path == problem.path) {
            problems.push(problem);
        }
        let (last, parents) = segments.split_last()?;
        match (document.pointer_mut(&pointer(parents))?, last) {
            (Value::Object(object), Segment::Map { key }) => {
                let value = object.remove(key)?;
                let new = renamed(RENAMED_KEYS, &name(parents), key);
                if let Some(new) = new.filter(|new| !new.contains('.')) {
                    object.entry(new).or_insert(value);
                }
            }
            (Value::Array(list), Segment::Seq { index }) => {
                list.remove(*index);
                let path = original_path(parents, &removed);
                let index = original_index(*index, removed.get(&path));
                removed.entry(path).or_default().insert(index);
            }
            _ => return None,
        }
    }
    None
}

/// Returns the JSON pointer of a place.
fn pointer(segments: &[Segment]) -> String {
    let step = |segment: &Segment| match segment {
        Segment::Map { key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Seq { index } => format!("/{index}"),
        _ => String::new(),
    };
    segments.iter().map(step).collect()
}

/// Returns the name of a place in the documentation: `policy.signals[].hard`.
fn name(segments: &[Segment]) -> String {
    segments.iter().fold(String::new(), |name, segment| match segment {
        Segment::Map { key } if name.is_empty() => key.clone(),
        Segment::Map { key } => format!("{name}.{key}"),
        _ => format!("{name}[]"),
    })
}

/// Returns the index in the original list, of which these items were removed.
fn original_index(index: usize, removed: Option<&BTreeSet<usize>>) -> usize {
    let removed = removed.into_iter().flatten();
    removed.fold(index, |index, removed| index + usize::from(*removed <= index))
}

/// Returns the path in the original document, of whose lists these items were removed.
fn original_path(segments: &[Segment], removed: &BTreeMap<String, BTreeSet<usize>>) -> String {
    segments.iter().fold(String::new(), |path, segment| match segment {
        Segment::Map { key } => member(&path, key),
        Segment::Seq { index } => format!("{path}[{}]", original_index(*index, removed.get(&path))),
        _ => path,
    })
}

/// Converts an error of serde to the wording of the documentation.
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
        return match renamed(RENAMED_KEYS, &parent, key) {
            Some(new) if parent.is_empty() => Problem::new(path, format!("was renamed to `{new}`")),
            Some(new) => Problem::new(path, format!("was renamed to `{parent}.{new}`")),
            None => Problem::new(path, "is not known here").with_help(did_you_mean(key, names)),
        };
    }
    if found.starts_with("unknown variant ") {
        let text = value.as_str().unwrap_or_default();
        if let Some(new) = renamed(RENAMED_VALUES, &name(segments), text) {
            return Problem::new(path, format!("the value `{text}` was renamed to `{new}`"));
        }
        let one_of = if names.len() > 1 { "one of " } else { "" };
        let cause = format!("must be {one_of}{}, got {}", quoted(&names), describe(value));
        return Problem::new(path, cause).with_help(did_you_mean(text, names));
    }
    if found.starts_with("invalid type: ") || found.starts_with("invalid value: ") {
        let is_text = expected == "a string" || expected.contains("such as \"");
        let help = (is_text && value.is_number()).then(|| "numbers must be in quotes here".to_owned());
        let cause = format!("must be {}, got {}", in_words(expected), describe(value));
        return Problem::new(path, cause).with_help(help);
    }
    let names_value = value.as_str().is_none_or(|text| cause.contains(text));
    let got = if names_value { String::new() } else { format!(", got {}", describe(value)) };
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

/// The maximum size of a configuration file, in bytes.
const MAX_BYTES: u64 = 4 << 20;

/// Reads a file of the given kind, whose text `parse` reads; it must contain an object.
pub(super) fn read_document(
    file: &Path,
    api_version: &str,
    kind: &str,
    parse: fn(&str) -> Result<Value, String>,
) -> Result<Map<String, Value>, Vec<Problem>> {
    let wrong = |cause: String| vec![Problem::new("", cause).in_file(Some(file))];
    let text = read_text(file).map_err(wrong)?;
    if text.trim().is_empty() {
        return Err(wrong("is empty".to_owned()));
    }
    let object = match parse(&text).map_err(wrong)? {
        Value::Object(object) => object,
        other => return Err(wrong(format!("must be an object, got {}", describe(&other)))),
    };
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

/// Returns the errors in `apiVersion` and `kind`.
fn wrong_header(object: &Map<String, Value>, api_version: &str, kind: &str) -> Vec<Problem> {
    let right = [("apiVersion", api_version), ("kind", kind)].into_iter();
    right
        .filter_map(|(key, wanted)| {
            let got = match object.get(key) {
                Some(Value::String(text)) if text == wanted => return None,
                Some(Value::String(text)) => format!("got `{text}`"),
                Some(Value::Null) | None => "got nothing".to_owned(),
                Some(other) => format!("got {}", describe(other)),
            };
            Some(Problem::new(key, format!("must be `{wanted}`, {got}")))
        })
        .collect()
}

/// Returns a value in the form of an error text.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => format!("{text:?}"),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Returns an integer as Go's decoder accepts it: without decimal point and exponent, but including `-0`.
pub(super) fn integer(value: &Value) -> Option<i64> {
    let negative_zero = |value: &f64| *value == 0.0 && value.is_sign_negative();
    let zero = || value.as_f64().filter(negative_zero).map(|_| 0);
    value.as_i64().or_else(zero)
}

/// Returns a hint with an example for the error text of a parser.
pub(super) fn example(cause: &str) -> Option<String> {
    let example = if cause.starts_with("time: ") {
        "a duration is written as 30s or 1m30s"
    } else if cause.starts_with("strconv.ParseFloat") {
        "a percentage is written as 5% or 7.5%"
    } else if cause.starts_with("quantities must") || cause.starts_with("unable to parse") {
        "a quantity is written as 500Mi or 1.5Gi"
    } else if cause == "invalid socket address syntax" {
        "an address with a port is written as 127.0.0.1:9095"
    } else {
        return None;
    };
    Some(example.to_owned())
}

/// The renamed keys: the parent (with new names, `[]` for an index), the old name, the new name relative to
/// the parent.
pub(super) const RENAMED_KEYS: &[(&str, &str, &str)] = &[
    ("", "act", "action"),
    ("", "advance", "thresholdMargin"),
    ("thresholdMargin", "when", "mode"),
    ("thresholdMargin", "by", "value"),
    ("thresholdMargin", "atLeast", "minimum"),
    ("thresholdMargin", "signals", "perSignal"),
    ("thresholdMargin.perSignal[]", "by", "value"),
    ("", "reflex", "kernelKill"),
    ("", "hands", "eviction"),
    ("eviction", "hardAction", "hardMode"),
    ("eviction", "apiUnreachable", "whenAPIServerDown"),
    ("eviction", "node", "nodeStatus"),
    ("", "hooks", "probes"),
    ("probes", "nearPercent", "nearThresholdPercent"),
    ("probes", "calmAfter", "detachAfter"),
    ("memoryLimits", "nearPercent", "warnPercent"),
    ("", "requests", "evictionRequests"),
    ("", "endpoints", "server"),
    ("server", "listen", "listenAddress"),
    ("thresholds", "given", "inline"),
    ("policy", "maxVictimsPerPass", "maxEvictionsPerSync"),
    ("policy", "maxUnknown", "unavailableAfterSamples"),
    ("policy", "acceptChanges", "applyChanges"),
    ("policy", "limits", "rateLimits"),
    ("policy", "predict", "prediction.mode"),
    ("policy", "predictWithin", "prediction.horizon"),
    ("policy.protection[]", "evict", "order"),
    ("policy.soft", "evictBarePods", "evictPodsWithoutController"),
    ("policy.memory", "pressure", "psi"),
    ("policy.memory.psi", "stalled", "kind"),
    ("policy.memory", "swapUsed", "swapUsedAtLeast"),
];

/// The renamed values: the field (with new names), the old value, the replacement. Values of which only the
/// case changed need no row, because the error for them names the new one.
pub(super) const RENAMED_VALUES: &[(&str, &str, &str)] = &[
    ("action", "dry-run", "action: None"),
    ("action", "evict-dry-run", "action: Evict` and `dryRun: Server"),
    ("eviction.whenAPIServerDown", "hold", "Wait"),
    ("thresholds.source", "given", "Inline"),
    ("policy.applyChanges", "byHand", "Manually"),
    ("policy.applyChanges", "atOnce", "Immediately"),
];

/// Returns the new name of a key, or the replacement of a value.
fn renamed(table: &[(&str, &str, &'static str)], place: &str, old: &str) -> Option<&'static str> {
    table.iter().find(|row| (row.0, row.1) == (place, old)).map(|row| row.2)
}
