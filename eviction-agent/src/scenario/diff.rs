//! Whether an outcome is one of those to expect, and where it first differs if not.

use serde_json::Value;

use super::format::Outcome;

/// Where an outcome first differs from the one expected outcome that it follows longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The field, such as `steps[1].evictions[0].message`.
    pub path: String,
    /// What was expected there, as JSON; nothing if there is no such field.
    pub expected: Option<String>,
    /// What came instead.
    pub found: Option<String>,
    /// How many outcomes were to choose from.
    pub outcomes: usize,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nothing = || "nothing".to_owned();
        writeln!(f, "{}:", self.path)?;
        write!(f, "  expected {}", self.expected.clone().unwrap_or_else(nothing))?;
        if self.outcomes > 1 {
            write!(f, " (the nearest of {} outcomes)", self.outcomes)?;
        }
        write!(f, "\n  found    {}", self.found.clone().unwrap_or_else(nothing))
    }
}

/// Nothing if the outcome is one of those expected.
///
/// Of an error of configuration the text counts at stages `thresholds` and `agent` only: those
/// of the other stages are those of Go's decoder.
pub fn compare(outcome: &Outcome, expected: &[Outcome]) -> Option<Difference> {
    let found = comparable(outcome);
    if expected.iter().any(|one| comparable(one) == found) {
        return None;
    }
    let found = serde_json::to_value(&found).unwrap_or_default();
    let differences = expected.iter().filter_map(|one| {
        let one = serde_json::to_value(comparable(one)).unwrap_or_default();
        let mut walk = Walk::default();
        walk.values(Some(&one), Some(&found));
        Some((walk.agreed, walk.difference?))
    });
    // The first of those that agree longest.
    let nearest = differences.reduce(|best, next| if next.0 > best.0 { next } else { best });
    let (path, expected_here, found_here) = nearest.map(|(_, difference)| difference)?;
    Some(Difference { path, expected: expected_here, found: found_here, outcomes: expected.len() })
}

fn comparable(outcome: &Outcome) -> Outcome {
    let mut outcome = outcome.clone();
    if !matches!(&*outcome.config_error_stage, "thresholds" | "agent")
        && let Some(text) = &mut outcome.config_error
    {
        "(not compared)".clone_into(text);
    }
    outcome
}

/// Walks two values side by side up to the first difference.
#[derive(Default)]
struct Walk {
    path: String,
    agreed: usize,
    difference: Option<(String, Option<String>, Option<String>)>,
}

impl Walk {
    fn values(&mut self, expected: Option<&Value>, found: Option<&Value>) {
        match (expected, found) {
            (Some(Value::Array(a)), Some(Value::Array(b))) => {
                for place in 0..a.len().max(b.len()) {
                    self.at(&format!("[{place}]"), a.get(place), b.get(place));
                }
            }
            (Some(Value::Object(a)), Some(Value::Object(b))) => {
                let added = b.keys().filter(|key| !a.contains_key(*key));
                for key in a.keys().chain(added) {
                    let dot = if self.path.is_empty() { "" } else { "." };
                    self.at(&format!("{dot}{key}"), a.get(key), b.get(key));
                }
            }
            _ if expected == found => self.agreed += 1,
            _ => {
                let text = |value: Option<&Value>| value.map(ToString::to_string);
                self.difference = Some((self.path.clone(), text(expected), text(found)));
            }
        }
    }

    fn at(&mut self, part: &str, expected: Option<&Value>, found: Option<&Value>) {
        if self.difference.is_some() {
            return;
        }
        let length = self.path.len();
        self.path.push_str(part);
        self.values(expected, found);
        self.path.truncate(length);
    }
}
