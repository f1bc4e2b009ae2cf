//! What is wrong with a configuration: where, and why. All of it, not the first only.

use std::fmt;
use std::path::{Path, PathBuf};

/// One thing that is wrong, or worth a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file it stands in, if it came from one.
    pub file: Option<PathBuf>,
    /// The field, such as `evictionHard["memory.available"]`; empty for the whole file.
    pub path: String,
    /// What is wrong with it.
    pub cause: String,
    /// What may have been meant.
    pub help: Option<String>,
}

impl Problem {
    /// A problem of a field.
    pub fn new(path: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self { file: None, path: path.into(), cause: cause.to_string(), help: None }
    }

    /// The same, with a hint.
    #[must_use]
    pub fn with_help(mut self, help: Option<String>) -> Self {
        self.help = help;
        self
    }

    /// The same, in a file.
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

/// Everything that is wrong with a configuration; never empty. Written one a line.
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

/// The path of a member: `parent.key`, or `parent["key"]` where the key is not a plain word.
pub(super) fn member(parent: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric());
    match (plain, parent.is_empty()) {
        (true, true) => key.to_owned(),
        (true, false) => format!("{parent}.{key}"),
        (false, _) => format!("{parent}[{key:?}]"),
    }
}

/// Names as an error lists them.
pub(super) fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The known name that a wrong one resembles most, as a hint.
pub(super) fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let lower = wrong.to_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(&lower, &name.to_lowercase()), name))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| format!("did you mean `{name}`?"))
}
