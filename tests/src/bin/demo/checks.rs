//! What was expected of a story and what was seen.

use anyhow::Error;

/// How a story ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// As it should.
    Passed,
    /// Not as it should: what was expected and what was seen.
    Failed(String),
    /// It cannot be run here: why.
    Skipped(String),
}

/// The checks of a story.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checks(Vec<Check>);

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    /// What was expected.
    pub(crate) expected: String,
    /// What was seen, where it was not that.
    pub(crate) seen: Option<String>,
}

impl Checks {
    /// Adds a check.
    pub(crate) fn add(&mut self, check: Check) {
        self.0.push(check);
    }

    /// What did not hold.
    fn failures(&self) -> Vec<String> {
        let failure = |check: &Check| {
            let seen = check.seen.as_ref()?;
            Some(format!("expected: {}; seen: {seen}", check.expected))
        };
        self.0.iter().filter_map(failure).collect()
    }

    /// Failed, because the story did not come to its end.
    pub(crate) fn end_with(&self, error: &Error) -> End {
        let mut failures = self.failures();
        failures.push(format!("{error:#}"));
        End::Failed(failures.join(" | "))
    }

    /// Passed, if there was a check and none failed.
    pub(crate) fn end(&self) -> End {
        let failures = self.failures();
        match (self.0.len(), failures.len()) {
            (0, _) => End::Failed("nothing was checked".to_owned()),
            (_, 0) => End::Passed,
            _ => End::Failed(failures.join(" | ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expected: &str, seen: Option<&str>) -> Check {
        Check { expected: expected.to_owned(), seen: seen.map(str::to_owned) }
    }

    #[test]
    fn a_story_without_a_check_has_not_passed() {
        assert_eq!(Checks::default().end(), End::Failed("nothing was checked".to_owned()));
    }

    #[test]
    fn every_check_must_hold() {
        let mut checks = Checks::default();
        checks.add(check("a", None));
        assert_eq!(checks.end(), End::Passed);
        checks.add(check("b", Some("c")));
        checks.add(check("d", None));
        checks.add(check("e", Some("f")));
        assert_eq!(checks.end(), End::Failed("expected: b; seen: c | expected: e; seen: f".to_owned()));
    }

    #[test]
    fn an_error_does_not_hide_what_had_failed_before() {
        let mut checks = Checks::default();
        checks.add(check("b", Some("c")));
        let end = checks.end_with(&Error::msg("lost").context("on the way"));
        assert_eq!(end, End::Failed("expected: b; seen: c | on the way: lost".to_owned()));
    }
}
