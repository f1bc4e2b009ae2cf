//! Errors in a configuration, with location and cause. All errors are reported, not only the first.

use std::fmt;
use std::path::{Path, PathBuf};

/// An error or a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file with the error, if there is one.
    pub file: Option<PathBuf>,
    /// The field, such as `evictionHard["memory.available"]`; empty for the whole file.
    pub path: String,
    /// The cause of the error.
    pub cause: String,
    /// A hint, for example the name that may have been meant.
    pub help: Option<String>,
}

impl Problem {
    /// Creates a problem for a field.
    pub fn new(path: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self { file: None, path: path.into(), cause: cause.to_string(), help: None }
    }

    /// Sets the hint.
    #[must_use]
    pub fn with_help(mut self, help: Option<String>) -> Self {
        self.help = help;
        self
    }

    /// Sets the file.
    #[must_use]
    pub fn in_file(mut self, file: Option<&Path>) -> Self {
        self.file = file.map(Path::to_owned);
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", file.display())?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.cause)?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}

/// All errors in a configuration; never empty. Displayed as one error per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Problem::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Problems {}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

/// Returns the path of a member: `parent.key`, or `parent["key"]` if the key is not alphanumeric.
pub(super) fn member(parent: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric());
    match (plain, parent.is_empty()) {
        (true, true) => key.to_owned(),
        (true, false) => format!("{parent}.{key}"),
        (false, _) => format!("{parent}[{key:?}]"),
    }
}

/// Returns the names in the form of an error text.
pub(super) fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Returns a hint with the known name that is most similar to a wrong one.
pub(super) fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let lower = wrong.to_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(&lower, &name.to_lowercase()), name))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| format!("did you mean `{name}`?"))
}
