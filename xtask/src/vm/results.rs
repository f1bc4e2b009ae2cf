//! The results of a guest, parsed from its log.

use serde_json::{Value, json};

use super::guest::{ENDED_EARLY, HOST};
use super::init::{END, KERNEL, LEFTOVERS, MARK, RUN, STATUS};
use super::programs::{Kind, PROGRAMS};
use crate::story::{self, Story};
use crate::test::report::Report;

/// The results of a guest.
#[derive(Debug, Default, PartialEq)]
pub(super) struct GuestResults {
    /// `uname -r`; empty if it did not boot.
    pub(super) release: String,
    /// The kernel's package, the day of the run and the host's load.
    pub(super) host: String,
    /// Sources and backends, as `check` prints them.
    pub(super) backends: Vec<(String, String)>,
    pub(super) stories: Vec<Story>,
    /// Errors besides the stories.
    pub(super) errors: Vec<String>,
}

impl GuestResults {
    /// Returns how many stories have passed, failed and were skipped. Other errors count as failures.
    pub(super) fn counts(&self) -> [usize; 3] {
        let [passed, failed, skipped] = story::counts(&self.stories);
        [passed, failed + self.errors.len(), skipped]
    }

    fn failed(&self) -> usize {
        let [_, failed, _] = self.counts();
        failed
    }

    /// Parses the log of a guest.
    pub(super) fn read(text: &str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let mut results = Self::default();
        let host = lines.iter().find_map(|line| after_mark(line)?.strip_prefix(HOST));
        host.unwrap_or_default().clone_into(&mut results.host);
        results.errors.extend(
            lines.iter().filter_map(|line| after_mark(line)?.strip_prefix(ENDED_EARLY)).map(str::to_owned),
        );
        let release = section(&lines, "release");
        results.release = release.first().map(|line| (*line).to_owned()).unwrap_or_default();
        if results.release.is_empty() {
            results.errors.push("it did not boot".to_owned());
            return results;
        }
        results.read_check(&section(&lines, "check").concat());
        for name in lines.iter().filter_map(|line| after_mark(line)?.strip_prefix(RUN)) {
            results.read_program(name, &lines);
        }
        if lines.iter().all(|line| after_mark(line) != Some(END)) && results.errors.is_empty() {
            results.errors.push("its log was cut off".to_owned());
        }
        let leftovers = section(&lines, LEFTOVERS);
        if !leftovers.is_empty() {
            results.errors.push(format!("{} cgroups are left over", leftovers.len()));
        }
        results
    }

    fn read_check(&mut self, text: &str) {
        match serde_json::from_str::<Value>(text) {
            Ok(findings) => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let sources = findings["sources"].as_array().into_iter().flatten();
                self.backends =
                    sources.map(|source| (text(&source["source"]), text(&source["backend"]))).collect();
                if findings["would_start"] != json!(true) {
                    self.errors.push(format!("run would not start: {}", findings["problems"]));
                }
            }
            Err(error) => self.errors.push(format!("check: {error}")),
        }
    }

    fn read_program(&mut self, name: &str, lines: &[&str]) {
        let mut output = section(lines, &format!("{RUN}{name}"));
        output.retain(|line| !line.starts_with(KERNEL));
        let status = lines
            .iter()
            .find_map(|line| after_mark(line)?.strip_prefix(STATUS)?.strip_prefix(name)?.strip_prefix(' '));
        let kind = PROGRAMS.iter().find(|program| program.name == name).map(|program| program.kind);
        let before = self.failed();
        match kind {
            Some(Kind::Stories) => {
                let parsed = output.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
                let stories: Vec<_> =
                    parsed.filter(|line| line.get("story").is_some()).map(Story::of).collect();
                if stories.is_empty() {
                    self.errors.push(format!("{name} reported no story"));
                }
                self.stories.extend(stories);
            }
            Some(Kind::Tests) => {
                self.stories.extend(rows(name, &Report::read(name, &output.join("\n"))));
                self.stories.extend(output.iter().filter_map(|line| finding_of_test(name, line)));
            }
            None => self.errors.push(format!("{name} is not in the list of programs")),
        }
        let failed = self.failed() > before;
        match status {
            Some("0") => {}
            Some(_) if failed => {}
            Some(code) => {
                let last = output.iter().rev().find(|line| !line.is_empty()).copied().unwrap_or("nothing");
                self.errors.push(format!("{name} ended with {code}; it said last: {last}"));
            }
            None => self.errors.push(format!("{name} did not end")),
        }
    }
}

/// Returns a row for the tests of a program, skipped if all of them are, and one for each that skipped itself.
fn rows(name: &str, report: &Report) -> Vec<Story> {
    let Report { passed, failed, skipped } = report;
    let all_skipped = *passed == 0 && failed.is_empty() && !skipped.is_empty();
    let own = json!({
        "story": format!("{name} tests"),
        "ok": failed.is_empty() && *passed > 0,
        "skipped": all_skipped,
        "why": if failed.is_empty() { format!("{passed} passed") } else { failed.join(", ") },
        "values": {"passed": passed, "failed": failed.len(), "skipped": skipped.len()},
    });
    let skips = skipped
        .iter()
        .map(|why| json!({"story": format!("{name} tests, skipped"), "skipped": true, "why": why}));
    std::iter::once(own).chain(skips).map(Story::of).collect()
}

/// Returns what a test has found out about this kernel and printed uncaptured (`tests::report_finding`).
fn finding_of_test(name: &str, line: &str) -> Option<Story> {
    let (what, found) = line.split_once("FOUND ")?.1.split_once(": ")?;
    let title = format!("{name} tests: {what}");
    Some(Story::of(json!({"story": title, "ok": true, "cell": found})))
}

/// Returns what follows a mark.
fn after_mark<'a>(line: &&'a str) -> Option<&'a str> {
    line.strip_prefix(MARK)
}

/// Returns the lines between a mark and the next.
fn section<'a>(lines: &[&'a str], name: &str) -> Vec<&'a str> {
    lines
        .iter()
        .skip_while(|line| after_mark(line) != Some(name))
        .skip(1)
        .take_while(|line| after_mark(line).is_none())
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "SeaBIOS\n@@vm release\n6.1.0\n@@vm check\n{\"would_start\": true,\n \"sources\": [{\"source\": \"oom\", \"backend\": \"r\"}]}\n";

    #[test]
    fn guest_log_is_parsed() {
        let results = GuestResults::read(&format!(
            "{HEAD}@@vm run demo\nhard: text\n{{\"story\": \"hard\", \"ok\": true, \"values\": {{\"x\": 2.5}}}}\n\
             {{\"story\": \"soft\", \"ok\": false, \"why\": \"late\", \"forced\": \"timer\"}}\n\
             {{\"task\": \"demo\"}}\n@@vm status demo 1\n@@vm leftovers\n@@vm end\n"
        ));
        assert_eq!(results.release, "6.1.0");
        assert_eq!(results.backends, [("oom".to_owned(), "r".to_owned())]);
        assert_eq!(results.counts(), [1, 1, 0], "{results:?}");
        assert_eq!(results.stories[1].title(), "soft (timer forced)");
        assert_eq!(results.stories[0].value("x"), Some(2.5));
        assert_eq!(results.stories[0].line_with_kernel("6.1")["kernel"], json!("6.1"));
    }

    #[test]
    fn guest_that_does_not_boot_or_leaves_cgroups_behind_has_failed() {
        assert_eq!(GuestResults::read("SeaBIOS\nKernel panic\n").failed(), 1);
        let results = GuestResults::read(
            "@@vm release\n6.1\n@@vm check\nnothing\n@@vm run demo\n@@vm status demo 0\n\
             @@vm leftovers\n/sys/fs/cgroup/x\n@@vm end\n",
        );
        assert_eq!(results.failed(), 3, "{results:?}");
    }

    #[test]
    fn program_that_fails_or_does_not_end_has_failed() {
        let row = "{\"story\": \"hard\", \"ok\": true}\n";
        let kernel = "@@kernel [ 9.5] Out of memory: Killed process 7";
        let results = GuestResults::read(&format!(
            "{HEAD}@@vm run demo\n{row}error: x\n{kernel}\n@@vm status demo 101\n@@vm end\n"
        ));
        assert_eq!(results.errors, ["demo ended with 101; it said last: error: x"]);
        let results =
            GuestResults::read(&format!("{HEAD}@@vm run demo\n{row}@@vm wrong it did not end in time\n"));
        assert_eq!(results.errors, ["it did not end in time", "demo did not end"]);
        assert_eq!(
            GuestResults::read(&format!("{HEAD}@@vm run demo\n{row}@@vm status demo 0\n")).errors.len(),
            1
        );
    }

    #[test]
    fn test_program_gives_one_row_and_one_for_each_skipped_test() {
        let output = "running 2 tests\ntest a ... ok\ntest b ... SKIPPED b: no BPF\nok\n\n\
            test result: ok. 2 passed; 0 failed; 0 ignored\n";
        let rows = rows("bpf", &Report::read("bpf", output));
        let seen: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.ok, row.why.as_str())).collect();
        assert_eq!(seen, [("bpf tests", Some(true), "1 passed"), ("bpf tests, skipped", None, "b: no BPF")]);
        assert_eq!(super::rows("bpf", &Report::read("bpf", "")).first().and_then(|row| row.ok), Some(false));
        let all_skipped = output.replace("test a ... ok\n", "").replace("2 passed", "1 passed");
        let rows = super::rows("bpf", &Report::read("bpf", &all_skipped));
        assert_eq!(rows.iter().map(|row| row.ok).collect::<Vec<_>>(), [None, None]);
    }
}
