//! Holding a document against a JSON schema, as far as `schemars` makes use of it.

use std::net::SocketAddr;

use serde_json::{Map, Value};

use super::super::document::got;
use super::super::examples;
use super::super::problem::{Problem, did_you_mean, member};
use super::margin::{MarginValue, parse_quantity};
use super::renamed;
use eviction_core::units::{GoDuration, Limit};

/// Everything that is wrong with a document, each with its path.
pub(super) fn check(schema: &str, document: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    match serde_json::from_str(schema) {
        Ok(root) => Check { root: &root }.value(&root, document, &Place::default(), &mut problems),
        Err(error) => problems.push(Problem::new("", format!("the schema is no JSON: {error}"))),
    }
    problems
}

/// A place in a document.
#[derive(Clone, Default)]
struct Place {
    /// The path as the document has it.
    path: String,
    /// The same with the new names of renamed keys, and `[]` for an index.
    name: String,
}

impl Place {
    fn member(&self, key: &str, name: &str) -> Self {
        let dot = if self.name.is_empty() { "" } else { "." };
        Self { path: member(&self.path, key), name: format!("{}{dot}{name}", self.name) }
    }

    fn item(&self, index: usize) -> Self {
        Self { path: format!("{}[{index}]", self.path), name: format!("{}[]", self.name) }
    }
}

struct Check<'a> {
    root: &'a Value,
}

impl Check<'_> {
    fn value(&self, schema: &Value, value: &Value, place: &Place, problems: &mut Vec<Problem>) {
        if let Some(target) = self.target(schema) {
            self.value(target, value, place, problems);
        }
        if let Some(alternatives) = choice(schema) {
            return self.alternatives(alternatives, value, place, problems);
        }
        if let Some(wanted) = schema.get("const").filter(|wanted| *wanted != value) {
            return problems.push(unlike(place, value, &[wanted]));
        }
        if let Some(Value::Array(names)) = schema.get("enum")
            && !names.contains(value)
        {
            return problems.push(unlike(place, value, &names.iter().collect::<Vec<_>>()));
        }
        if !has_type(schema, value) {
            let cause = format!("must be {}{}, got {}", in_words(schema), bounds(schema), got(value));
            let text = types(schema).contains(&"string");
            let help = text.then(|| examples::of_text(value)).flatten();
            return problems.push(Problem::new(&*place.path, cause).with_help(help));
        }
        match value {
            Value::Object(object) => self.object(schema, object, place, problems),
            Value::Array(list) => {
                for (index, value) in list.iter().enumerate() {
                    if let Some(items) = schema.get("items") {
                        self.value(items, value, &place.item(index), problems);
                    }
                }
            }
            Value::Number(number) => problems.extend(out_of_bounds(schema, number.as_f64(), &place.path)),
            Value::String(text) => {
                let example = match format(schema) {
                    "threshold" | "margin" | "quantity" => examples::of_threshold(text),
                    "duration" | "positive-duration" => examples::of_duration(text),
                    _ => None,
                };
                let wrong = wrong_format(schema, text);
                problems.extend(wrong.map(|cause| Problem::new(&*place.path, cause).with_help(example)));
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn target(&self, schema: &Value) -> Option<&Value> {
        let reference = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
        self.root.pointer(reference)
    }

    fn object(
        &self,
        schema: &Value,
        object: &Map<String, Value>,
        parent: &Place,
        problems: &mut Vec<Problem>,
    ) {
        let nothing = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&nothing);
        for (key, value) in object {
            let place = parent.member(key, key);
            match (properties.get(key), schema.get("additionalProperties")) {
                (Some(schema), _) => self.value(schema, value, &place, problems),
                (None, Some(Value::Bool(false))) => {
                    if let Some(new) = renamed::key(&parent.name, key) {
                        let place = parent.member(key, new);
                        let cause = format!("was renamed to `{}`", place.name);
                        problems.push(Problem::new(&*place.path, cause));
                        if let Some(schema) = self.property(schema, new) {
                            self.value(schema, value, &place, problems);
                        }
                        continue;
                    }
                    let help = did_you_mean(key, properties.keys().map(String::as_str));
                    problems.push(Problem::new(place.path, "is not known here").with_help(help));
                }
                (None, Some(schema)) => self.value(schema, value, &place, problems),
                (None, None) => {}
            }
        }
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        for key in required.filter_map(Value::as_str) {
            let renamed = |old: &String| renamed::key(&parent.name, old) == Some(key);
            if !object.contains_key(key) && !object.keys().any(renamed) {
                problems.push(Problem::new(member(&parent.path, key), "is missing"));
            }
        }
    }

    /// The schema of a property, or of one within a property: `a.b`.
    fn property<'b>(&'b self, schema: &'b Value, path: &str) -> Option<&'b Value> {
        path.split('.').try_fold(schema, |schema, key| {
            let schema = self.target(schema).unwrap_or(schema);
            schema.get("properties")?.get(key)
        })
    }

    /// One of the alternatives must fit. If none does, what is wrong with the one that has the
    /// right type is reported; names to choose from are reported as such.
    fn alternatives(&self, all: &[Value], value: &Value, place: &Place, problems: &mut Vec<Problem>) {
        let names: Vec<&Value> = all.iter().flat_map(|schema| self.names(schema)).collect();
        let mut least: Option<Vec<Problem>> = None;
        for schema in all {
            let mut found = Vec::new();
            self.value(schema, value, place, &mut found);
            if found.is_empty() {
                return;
            }
            let resolved = self.target(schema).unwrap_or(schema);
            if least.is_none() || has_type(resolved, value) && choice(resolved).is_none() {
                least = Some(found);
            }
        }
        if names.is_empty() {
            problems.extend(least.into_iter().flatten());
        } else {
            problems.push(unlike(place, value, &names));
        }
    }

    fn names<'b>(&'b self, schema: &'b Value) -> Vec<&'b Value> {
        let schema = self.target(schema).unwrap_or(schema);
        let one = schema.get("const").into_iter();
        let many = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
        let inner = choice(schema).into_iter().flatten().flat_map(|schema| self.names(schema));
        one.chain(many).chain(inner).filter(|name| !name.is_null()).collect()
    }
}

fn choice(schema: &Value) -> Option<&[Value]> {
    let alternatives = schema.get("anyOf").or_else(|| schema.get("oneOf"))?;
    alternatives.as_array().map(Vec::as_slice)
}

fn unlike(place: &Place, value: &Value, names: &[&Value]) -> Problem {
    if let Some(old) = value.as_str()
        && let Some(new) = renamed::value(&place.name, old)
    {
        return Problem::new(&*place.path, format!("the value `{old}` was renamed to `{new}`"));
    }
    let texts: Vec<&str> = names.iter().filter_map(|name| name.as_str()).collect();
    let list: Vec<String> = texts.iter().map(|text| format!("`{text}`")).collect();
    let cause = match list.as_slice() {
        [one] => format!("must be {one}, got {}", got(value)),
        _ => format!("must be one of {}, got {}", list.join(", "), got(value)),
    };
    let help = value.as_str().and_then(|wrong| did_you_mean(wrong, texts));
    Problem::new(&*place.path, cause).with_help(help)
}

fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn has_type(schema: &Value, value: &Value) -> bool {
    let types = types(schema);
    types.is_empty()
        || types.iter().any(|name| match *name {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            _ => false,
        })
}

fn in_words(schema: &Value) -> String {
    let words: Vec<&str> = types(schema)
        .into_iter()
        .filter(|name| *name != "null")
        .map(|name| match (name, format(schema)) {
            ("string", "duration" | "positive-duration") => "a duration such as \"1m30s\"",
            ("string", "threshold" | "margin") => "a quantity or a percentage such as \"500Mi\" or \"5%\"",
            ("string", "quantity") => "a quantity such as \"500Mi\"",
            ("string", "socket-address") => "an address with a port such as \"127.0.0.1:9095\"",
            ("string", _) => "a string",
            ("boolean", _) => "true or false",
            ("integer", _) => "an integer",
            ("number", _) => "a number",
            ("array", _) => "a list",
            _ => "an object",
        })
        .collect();
    words.join(" or ")
}

fn format(schema: &Value) -> &str {
    schema.get("format").and_then(Value::as_str).unwrap_or_default()
}

/// The bounds of a number, as a clause after its type; empty if it has none.
fn bounds(schema: &Value) -> String {
    let bound = |key| schema.get(key).and_then(Value::as_f64);
    match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => format!(" from {least} to {most}"),
        (Some(least), None) => format!(" of at least {least}"),
        (None, Some(most)) => format!(" of at most {most}"),
        (None, None) => String::new(),
    }
}

fn out_of_bounds(schema: &Value, value: Option<f64>, path: &str) -> Option<Problem> {
    let value = value?;
    let least = schema.get("minimum").and_then(Value::as_f64);
    let most = schema.get("maximum").and_then(Value::as_f64);
    let outside = least.is_some_and(|least| value < least) || most.is_some_and(|most| value > most);
    outside.then(|| {
        let cause = match (least, most) {
            (Some(least), Some(most)) => format!("must be {least} to {most}, got {value}"),
            (Some(least), None) => format!("must be at least {least}, got {value}"),
            _ => format!("must be at most {}, got {value}", most.unwrap_or_default()),
        };
        Problem::new(path, cause)
    })
}

fn wrong_format(schema: &Value, text: &str) -> Option<String> {
    let least = match format(schema) {
        "duration" => 0,
        "positive-duration" => 1,
        "threshold" => return Limit::parse(text).err(),
        "margin" => return MarginValue::parse(text).err(),
        "quantity" => return parse_quantity(text).err(),
        "socket-address" => {
            return text.parse::<SocketAddr>().err().map(|error| format!("`{text}`: {error}"));
        }
        _ => return None,
    };
    match GoDuration::parse(text) {
        Err(error) => Some(error.to_string()),
        Ok(duration) if duration.as_nanos() < least => Some(match least {
            0 => format!("must not be negative, got {text}"),
            _ => format!("must be more than zero, got {text}"),
        }),
        Ok(_) => None,
    }
}
