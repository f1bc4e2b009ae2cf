//! Parses the output of libtest. Its JSON output is for nightly only; the text has been the same for years, and
//! what cannot be parsed counts as a failure.

use std::collections::BTreeMap;

/// The results of tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) passed: usize,
    pub(crate) failed: Vec<String>,
    /// `<name>: <reason>`.
    pub(crate) skipped: Vec<String>,
}

impl Report {
    /// Parses the output of a test program, or of several, one after the other.
    pub(crate) fn read(title: &str, output: &str) -> Self {
        let mut reader = Reader { title, ..Reader::default() };
        output.lines().for_each(|line| reader.line(line));
        if reader.open_runs > 0 && reader.report.failed.is_empty() {
            reader.report.failed.push(format!("{title}: ended in the middle of a test"));
        }
        reader.report
    }

    /// Adds another report.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
    }

    /// Returns whether no test was run.
    pub(crate) fn is_empty(&self) -> bool {
        self.passed + self.failed.len() + self.skipped.len() == 0
    }

    /// Returns the line that a run ends with.
    pub(crate) fn closing_line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed.len(), self.skipped.len())
    }
}

/// The part of the output that a line is in.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Part {
    /// One line per test; output that libtest does not capture appears here.
    #[default]
    Running,
    /// The output of the tests that passed.
    Successes,
    /// The output of the tests that failed, and then their names.
    Failures,
}

#[derive(Default)]
struct Reader<'a> {
    title: &'a str,
    report: Report,
    part: Part,
    /// The test to which the current output belongs.
    section: Option<&'a str>,
    /// The tests of this run that failed. Their names are taken from the list at its end: other output can
    /// split the line about a test.
    failed: Vec<&'a str>,
    /// The tests of this run that were skipped, each counted as passed by libtest: the name, and the line to be
    /// shown.
    skipped: BTreeMap<&'a str, String>,
    open_runs: usize,
}

impl<'a> Reader<'a> {
    fn line(&mut self, line: &'a str) {
        let skip = skip_line(line);
        if line.starts_with("running ") && line.trim_end_matches('s').ends_with(" test") {
            self.part = Part::Running;
            self.open_runs += 1;
        } else if line == "successes:" {
            (self.part, self.section) = (Part::Successes, None);
        } else if line == "failures:" {
            (self.part, self.section) = (Part::Failures, None);
        } else if let Some(name) = section_start(line) {
            self.section = Some(name);
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.end_of_run(counts);
        } else if let Some((name, why)) = skip {
            if self.part != Part::Failures {
                let test = self.section.unwrap_or(name);
                self.skipped.entry(test).or_insert_with(|| format!("{name}: {why}"));
            }
        } else if self.part == Part::Failures && self.section.is_none() {
            self.failed.extend(line.strip_prefix("    "));
        } else if self.part == Part::Running
            && let Some((name, rest)) = test_line(line)
            && let Some(why) = rest.strip_prefix("ignored")
        {
            let why = why.strip_prefix(", ").unwrap_or("marked #[ignore]");
            self.report.skipped.push(format!("{name}: {why}"));
        }
    }

    fn end_of_run(&mut self, counts: &str) {
        let title = self.title;
        let mut failed = std::mem::take(&mut self.failed);
        let mut skipped = std::mem::take(&mut self.skipped);
        skipped.retain(|name, _| !failed.contains(name));
        failed.resize(count(counts, " failed"), "a test that is not named");
        self.report.passed += count(counts, " passed").saturating_sub(skipped.len());
        self.report.failed.extend(failed.iter().map(|name| format!("{title}: {name}")));
        self.report.skipped.extend(skipped.into_values());
        self.part = Part::Running;
        self.section = None;
        self.open_runs = self.open_runs.saturating_sub(1);
    }
}

/// Returns the name in `---- name stdout ----`.
fn section_start(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Parses `test name ... rest`, also with a test's own output in between.
fn test_line(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    Some((name.strip_suffix(" - should panic").unwrap_or(name), rest))
}

/// Parses `SKIPPED name: reason`, at the start of a line or after `test name ... `.
fn skip_line(line: &str) -> Option<(&str, &str)> {
    let line = test_line(line).map_or(line, |(_, rest)| rest);
    let (name, why) = line.strip_prefix("SKIPPED ")?.split_once(": ")?;
    (!name.contains(' ') && !name.is_empty()).then_some((name, why.trim_end()))
}

/// Returns the number before a word: `ok. 3 passed; 0 failed` → 3.
fn count(counts: &str, word: &str) -> usize {
    let before = counts.split(word).next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> (usize, Vec<String>, Vec<String>) {
        let Report { passed, failed, skipped } = Report::read("p", output);
        (passed, failed, skipped)
    }

    #[test]
    fn skipped_test_is_not_counted_as_passed() {
        let output = "\
running 4 tests
test a::ok ... ok
test a::skipped ... ok
test a::broken ... FAILED
test a::slow ... ignored, takes an hour

successes:

---- a::ok stdout ----
says SKIPPED in passing
---- a::skipped stdout ----
SKIPPED a::skipped: no BPF: EPERM
SKIPPED a::skipped: and no cgroup

successes:
    a::ok
    a::skipped

failures:

---- a::broken stdout ----
SKIPPED a::broken: not really
thread 'a::broken' panicked at x.rs:1:1

failures:
    a::broken

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
";
        let (passed, failed, skipped) = read(output);
        assert_eq!(passed, 1);
        assert_eq!(failed, ["p: a::broken"]);
        assert_eq!(skipped, ["a::slow: takes an hour", "a::skipped: no BPF: EPERM"]);
    }

    #[test]
    fn skips_in_uncaptured_output_are_counted() {
        let output = "\
running 3 tests
SKIPPED one: no BPF
test one ... ok
test two ... SKIPPED two: no cgroup
ok
test three ... SKIPPED three: not really
FAILED

failures:

---- three stdout ----
    indented by the test

failures:
    three

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
";
        let (passed, failed, skipped) = read(output);
        assert_eq!(passed, 0);
        assert_eq!(failed, ["p: three"]);
        assert_eq!(skipped, ["one: no BPF", "two: no cgroup"]);
    }

    #[test]
    fn failures_are_counted_even_without_names() {
        let (_, failed, _) =
            read("running 1 test\ngarbled\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n");
        assert_eq!(failed, ["p: a test that is not named"]);
    }

    #[test]
    fn counts_of_consecutive_runs_are_added() {
        let one = "running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
        let doc = "running 2 tests\ntest src/a.rs - a (line 3) ... ok\n\
                   test src/a.rs - b (line 9) ... ignored\n\n\
                   test result: ok. 1 passed; 0 failed; 1 ignored; finished in 0.1s\n\n\
                   all doctests ran in 0.5s; merged doctests compilation took 0.1s\n";
        let (passed, failed, skipped) = read(&format!("{one}\n   Doc-tests x\n\n{doc}"));
        assert_eq!((passed, failed.len()), (2, 0));
        assert_eq!(skipped, ["src/a.rs - b (line 9): marked #[ignore]"]);
    }

    #[test]
    fn program_that_ends_during_a_test_has_failed() {
        let (passed, failed, _) = read("running 2 tests\ntest a ... ok\ntest b ... ");
        assert_eq!((passed, failed.as_slice()), (0, &["p: ended in the middle of a test".to_owned()][..]));
    }

    #[test]
    fn closing_line_contains_all_counts() {
        let mut total = Report::read("p", "");
        assert!(total.is_empty());
        total.add(Report { passed: 3, failed: vec!["x".into()], skipped: vec!["y: z".into()] });
        assert_eq!(total.closing_line(), "3 passed, 1 failed, 1 skipped");
        assert!(!total.is_empty());
    }

    #[test]
    fn output_of_this_test_program_is_parsed() {
        let program = std::env::current_exe().unwrap();
        let output = std::process::Command::new(program)
            .args(["closing_line_contains_all_counts", "--show-output"])
            .output()
            .unwrap();
        let report = Report::read("p", &String::from_utf8(output.stdout).unwrap());
        assert_eq!(report, Report { passed: 1, failed: vec![], skipped: vec![] });
    }
}
