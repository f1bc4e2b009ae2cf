//! The result of a story: a line of JSON that a program prints, or one that is made of the output of a test.

use serde_json::{Value, json};

use crate::test::report::Report;

/// A story, or another row in the results of a program.
#[derive(Debug, PartialEq)]
pub(crate) struct Story {
    pub(crate) name: String,
    /// The backend that had to be used; empty if the agent could choose.
    pub(crate) forced: String,
    /// `None` if it was skipped.
    pub(crate) ok: Option<bool>,
    pub(crate) why: String,
    /// The line of JSON.
    pub(crate) line: Value,
}

impl Story {
    pub(crate) fn of(line: Value) -> Self {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let skipped = line.get("skipped").is_some_and(|skipped| *skipped != json!(false));
        let ok = if skipped { None } else { Some(line["ok"] == json!(true)) };
        Self { name: text("story"), forced: text("forced"), ok, why: text("why"), line }
    }

    /// Returns the line that the program printed, with the kernel.
    pub(crate) fn line_with_kernel(&self, kernel: &str) -> Value {
        let mut line = self.line.clone();
        line["kernel"] = json!(kernel);
        line
    }

    /// Returns the table's cell for a story that passed: another backend may have been first, and a test may
    /// have a finding.
    pub(crate) fn cell(&self) -> String {
        match self.line["cell"].as_str() {
            Some(cell) => cell.to_owned(),
            None => match self.line["values"]["detected_by"].as_str() {
                Some(by) if !self.forced.is_empty() && !is_backend(by, &self.forced) => {
                    format!("ok, detected by {by}")
                }
                _ => "ok".to_owned(),
            },
        }
    }

    /// Returns its measurements and its result as text.
    pub(crate) fn text(&self) -> String {
        let measurements = [("", "values"), (" us", "timeline")].into_iter().flat_map(|(unit, part)| {
            let fields = self.line[part].as_object().into_iter().flatten();
            fields.map(move |(key, value)| format!("  {key:<24}{value}{unit}\n"))
        });
        let result = match self.ok {
            Some(true) => "  PASSED".to_owned(),
            Some(false) => format!("  FAILED  {}", self.why),
            None => format!("  SKIPPED {}: {}", self.name, self.why),
        };
        measurements.collect::<String>() + &result
    }

    /// Returns a value that it measured.
    pub(crate) fn value(&self, key: &str) -> Option<f64> {
        self.line["values"][key].as_f64()
    }

    /// Returns its name, with the backend that had to be used.
    pub(crate) fn title(&self) -> String {
        if self.forced.is_empty() {
            self.name.clone()
        } else {
            format!("{} ({} forced)", self.name, self.forced)
        }
    }
}

/// Returns whether `detected_by` in the agent's events means this backend.
fn is_backend(detected_by: &str, backend: &str) -> bool {
    match backend {
        "timerfd" => detected_by == "timer",
        "cgroup v1 threshold" => detected_by == "cgroup v1 usage threshold",
        backend => detected_by == backend,
    }
}

/// Returns how many stories have passed, failed and were skipped.
pub(crate) fn counts(stories: &[Story]) -> [usize; 3] {
    [Some(true), Some(false), None].map(|ok| stories.iter().filter(|story| story.ok == ok).count())
}

/// The prefix of the line with the measurements of a story that is a test; as in `tests/src/story.rs`.
const MARK: &str = "STORY ";

/// Returns the story that a test is, from its report and its output.
pub(crate) fn of_test(name: &str, report: &Report, text: &str) -> Story {
    let measurements: Value = text
        .lines()
        .filter_map(|line| line.split_once(MARK))
        .find_map(|(_, rest)| serde_json::from_str(rest).ok())
        .unwrap_or_default();
    let part = |key: &str| measurements.get(key).cloned().unwrap_or_else(|| json!({}));
    let mut line =
        json!({"story": name, "ok": false, "timeline": part("timeline"), "values": part("values")});
    match (report.failed.first(), report.skipped.first()) {
        (Some(failed), _) => line["why"] = json!(panic_message(text).unwrap_or_else(|| failed.clone())),
        (None, Some(skipped)) => {
            line["skipped"] = json!(true);
            line["why"] = json!(skipped.split_once(": ").map_or(skipped.as_str(), |(_, why)| why));
        }
        (None, None) if report.passed == 1 => line["ok"] = json!(true),
        (None, None) => line["why"] = json!("the story was not run"),
    }
    Story::of(line)
}

/// Returns the message of the first panic: libtest prints it after the line with the place.
fn panic_message(text: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|line| !line.contains("panicked at "));
    let place = lines.next()?;
    let message: Vec<&str> = lines
        .take_while(|line| {
            !line.starts_with("note: ") && !line.starts_with("stack backtrace") && !line.is_empty()
        })
        .collect();
    let place = place.split_once("panicked at ").map_or(place, |(_, place)| place);
    Some(format!("{place} {}", message.join(" | ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> Story {
        of_test("a::story", &Report::read("e2e", output), output)
    }

    const END: &str =
        "\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.01s\n";

    #[test]
    fn measurements_are_printed_with_the_result() {
        let text = format!(
            "running 1 test\nSTORY {{\"timeline\":{{\"seen_us\":7}},\"values\":{{\"n\":3}}}}\ntest a::story ... ok\n{END}"
        );
        let line = read(&text).line;
        assert_eq!(
            line,
            json!({"story": "a::story", "ok": true, "timeline": {"seen_us": 7}, "values": {"n": 3}})
        );
    }

    #[test]
    fn failed_story_reports_the_panic_message() {
        let text = "running 1 test\ntest a::story ... FAILED\n\nfailures:\n\n---- a::story stdout ----\n\
            thread 'a::story' (7) panicked at x.rs:1:2:\nassertion failed\n  left: 1\nnote: run with\n\n\
            failures:\n    a::story\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let story = read(text);
        assert_eq!((story.ok, &*story.why), (Some(false), "x.rs:1:2: assertion failed |   left: 1"));
    }

    #[test]
    fn skipped_story_has_not_passed_and_a_missing_result_is_a_failure() {
        let text = format!("running 1 test\nSKIPPED a::story: no Go\ntest a::story ... ok\n{END}");
        let story = read(&text);
        assert_eq!((story.ok, &*story.why), (None, "no Go"));
        assert_eq!(read("running 1 test\n").ok, Some(false));
        assert_eq!(read("").ok, Some(false));
    }
}
