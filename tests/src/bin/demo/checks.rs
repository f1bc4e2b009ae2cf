//! The checks of a story: what was expected, and what was seen.

use anyhow::Error;

/// The end of a story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoryResult {
    /// All checks passed.
    Passed,
    /// A check failed: what was expected and what was seen.
    Failed(String),
    /// The story cannot be run here: the reason.
    Skipped(String),
}

/// The checks of a story.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checks(Vec<Check>);

/// A check of a story.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    /// What was expected.
    pub(crate) expected: String,
    /// What was seen instead, if the check failed.
    pub(crate) actual: Option<String>,
}

impl Checks {
    /// Adds a check.
    pub(crate) fn add(&mut self, check: Check) {
        self.0.push(check);
    }

    /// Returns the checks that failed.
    fn failures(&self) -> Vec<String> {
        let failure = |check: &Check| {
            let actual = check.actual.as_ref()?;
            Some(format!("expected: {}; seen: {actual}", check.expected))
        };
        self.0.iter().filter_map(failure).collect()
    }

    /// Returns `Passed` if there was a check, none failed, and no error ended the story.
    pub(crate) fn end(&self, error: Option<&Error>) -> StoryResult {
        let mut failures = self.failures();
        failures.extend(error.map(|error| format!("{error:#}")));
        match (self.0.len(), failures.len()) {
            (0, 0) => StoryResult::Failed("nothing was checked".to_owned()),
            (_, 0) => StoryResult::Passed,
            _ => StoryResult::Failed(failures.join(" | ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expected: &str, actual: Option<&str>) -> Check {
        Check { expected: expected.to_owned(), actual: actual.map(str::to_owned) }
    }

    #[test]
    fn a_story_without_a_check_has_not_passed() {
        assert_eq!(Checks::default().end(None), StoryResult::Failed("nothing was checked".to_owned()));
    }

    #[test]
    fn every_check_must_hold() {
        let mut checks = Checks::default();
        checks.add(check("a", None));
        assert_eq!(checks.end(None), StoryResult::Passed);
        checks.add(check("b", Some("c")));
        checks.add(check("d", None));
        checks.add(check("e", Some("f")));
        assert_eq!(
            checks.end(None),
            StoryResult::Failed("expected: b; seen: c | expected: e; seen: f".to_owned())
        );
    }

    #[test]
    fn an_error_is_added_to_earlier_failures() {
        let mut checks = Checks::default();
        checks.add(check("b", Some("c")));
        let end = checks.end(Some(&Error::msg("lost").context("on the way")));
        assert_eq!(end, StoryResult::Failed("expected: b; seen: c | on the way: lost".to_owned()));
    }
}
