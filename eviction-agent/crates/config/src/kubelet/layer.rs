//! Reading the fields of one file, and laying a drop-in file over what is there.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::super::document::{Document, got, integer};
use super::super::problem::{Problem, member};
use super::settings::Origin;
use eviction_core::units::GoDuration;

/// By field or member of a map, who said so last.
pub(super) type Origins = BTreeMap<String, Origin>;

/// One file of a configuration. JSON types are those of Go's decoder; all that are wrong
/// are reported, and such fields count as absent.
pub(super) struct Layer<'a> {
    pub(super) document: &'a Document,
    /// A JSON merge patch: null takes away what is there, and maps are merged.
    pub(super) patch: bool,
    /// Who says so.
    pub(super) origin: Option<Origin>,
    pub(super) problems: &'a mut Vec<Problem>,
    pub(super) origins: &'a mut Origins,
}

impl Layer<'_> {
    fn file(&self) -> Option<&Path> {
        self.document.file.as_deref()
    }

    fn report(&mut self, path: String, cause: impl std::fmt::Display) {
        self.report_with_help(path, cause, None);
    }

    fn report_with_help(&mut self, path: String, cause: impl std::fmt::Display, help: Option<String>) {
        let problem = Problem::new(path, cause).in_file(self.file());
        self.problems.push(problem.with_help(help));
    }

    /// Null takes a field away, and with it what is known of its origin.
    fn forget(&mut self, key: &str) {
        self.origins.retain(|path, _| path.split(['[', '.']).next() != Some(key));
    }

    fn remember(&mut self, path: String) {
        if let Some(origin) = self.origin.clone() {
            self.origins.insert(path, origin);
        }
    }

    /// Reads a field that is not null, with the words for what it should be.
    fn read<T>(
        &mut self,
        key: &str,
        into: &mut Option<T>,
        wanted: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) {
        match self.document.object.get(key) {
            None => {}
            Some(Value::Null) => {
                *into = None;
                self.forget(key);
            }
            Some(value) => match convert(value) {
                Some(value) => {
                    *into = Some(value);
                    self.remember(key.to_owned());
                }
                None => self.report(key.to_owned(), format!("must be {wanted}, got {}", got(value))),
            },
        }
    }

    pub(super) fn boolean(&mut self, key: &str, into: &mut Option<bool>) {
        self.read(key, into, "true or false", Value::as_bool);
    }

    pub(super) fn string(&mut self, key: &str, into: &mut Option<String>) {
        self.read(key, into, "a string", |value| value.as_str().map(str::to_owned));
    }

    pub(super) fn int32(&mut self, key: &str, into: &mut Option<i32>) {
        self.read(key, into, "an integer of 32 bits", |value| {
            integer(value).and_then(|value| i32::try_from(value).ok())
        });
    }

    /// Null is no duration, other than anywhere else: Go reads it as an empty text.
    pub(super) fn duration(&mut self, key: &str, into: &mut Option<GoDuration>) {
        let text = match self.document.object.get(key) {
            None => return,
            Some(Value::Null) if self.patch => {
                *into = None;
                self.forget(key);
                return;
            }
            Some(Value::Null) => "",
            Some(Value::String(text)) => text.as_str(),
            Some(other) => {
                return self.report(
                    key.to_owned(),
                    format!("must be a duration such as \"5m0s\", got {}", got(other)),
                );
            }
        };
        match GoDuration::parse(text) {
            Ok(duration) => {
                *into = Some(duration);
                self.remember(key.to_owned());
            }
            Err(error) => self.report(key.to_owned(), error),
        }
    }

    pub(super) fn strings(&mut self, key: &str, into: &mut Option<Vec<String>>) {
        let list = match self.document.object.get(key) {
            None => return,
            Some(Value::Null) => {
                *into = None;
                self.forget(key);
                return;
            }
            Some(Value::Array(list)) => list,
            Some(other) => {
                return self.report(key.to_owned(), format!("must be a list of strings, got {}", got(other)));
            }
        };
        let mut texts = Vec::with_capacity(list.len());
        for (index, value) in list.iter().enumerate() {
            match value {
                Value::String(text) => texts.push(text.clone()),
                Value::Null => texts.push(String::new()),
                other => {
                    self.report(format!("{key}[{index}]"), format!("must be a string, got {}", got(other)))
                }
            }
        }
        *into = Some(texts);
        self.remember(key.to_owned());
    }

    pub(super) fn string_map(&mut self, key: &str, into: &mut Option<BTreeMap<String, String>>) {
        self.map(key, into, "a string", |value| value.as_str().map(str::to_owned));
    }

    pub(super) fn boolean_map(&mut self, key: &str, into: &mut Option<BTreeMap<String, bool>>) {
        self.map(key, into, "true or false", Value::as_bool);
    }

    fn map<T: Default>(
        &mut self,
        key: &str,
        into: &mut Option<BTreeMap<String, T>>,
        wanted: &str,
        convert: impl Fn(&Value) -> Option<T>,
    ) {
        let object: &Map<String, Value> = match self.document.object.get(key) {
            None => return,
            Some(Value::Null) => {
                *into = None;
                self.forget(key);
                return;
            }
            Some(Value::Object(object)) => object,
            Some(other) => {
                return self.report(key.to_owned(), format!("must be a map, got {}", got(other)));
            }
        };
        let mut map = match self.patch {
            true => into.take().unwrap_or_default(),
            false => BTreeMap::new(),
        };
        for (name, value) in object {
            let path = member(key, name);
            match value {
                Value::Null if self.patch => {
                    map.remove(name);
                    self.origins.remove(&path);
                    continue;
                }
                // Go leaves the zero value.
                Value::Null => {
                    map.insert(name.clone(), T::default());
                }
                value => match convert(value) {
                    Some(value) => {
                        map.insert(name.clone(), value);
                    }
                    None => {
                        let help = value.is_number().then(|| "numbers must be in quotes here".to_owned());
                        let cause = format!("must be {wanted}, got {}", got(value));
                        self.report_with_help(path, cause, help);
                        continue;
                    }
                },
            }
            self.remember(path);
        }
        *into = Some(map);
        self.remember(key.to_owned());
    }
}
