//! The end of a story and its measurements, from the output of its process.

use serde_json::{Map, Value, json};

use crate::test::report::Report;

/// The prefix of the line with a story's measurements; as in `tests/src/story.rs`.
const MARK: &str = "STORY ";

/// A story that was run.
#[derive(Debug)]
pub(super) struct Outcome {
    name: String,
    pub(super) result: StoryResult,
    /// Microseconds from the first moment, by name.
    timeline: Value,
    values: Value,
}

/// The end of a story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StoryResult {
    Passed,
    Failed(String),
    Skipped(String),
}

impl Outcome {
    pub(super) fn read(name: &str, report: &Report, text: &str) -> Self {
        let result = match (report.failed.first(), report.skipped.first()) {
            (Some(failed), _) => StoryResult::Failed(panic_message(text).unwrap_or_else(|| failed.clone())),
            (None, Some(skipped)) => StoryResult::Skipped(
                skipped.split_once(": ").map_or(skipped.as_str(), |(_, why)| why).to_owned(),
            ),
            (None, None) if report.passed == 1 => StoryResult::Passed,
            (None, None) => StoryResult::Failed("the story was not run".to_owned()),
        };
        let measurements: Option<Value> = text
            .lines()
            .filter_map(|line| line.split_once(MARK))
            .find_map(|(_, rest)| serde_json::from_str(rest).ok());
        let part = |key: &str| {
            measurements.as_ref().and_then(|it| it.get(key).cloned()).unwrap_or(Value::Object(Map::new()))
        };
        Self { name: name.to_owned(), result, timeline: part("timeline"), values: part("values") }
    }

    /// Returns the JSON line.
    pub(super) fn json_line(&self) -> Value {
        let Self { name, result, timeline, values } = self;
        let mut line = json!({"story": name, "ok": *result == StoryResult::Passed, "timeline": timeline, "values": values});
        match result {
            StoryResult::Passed => {}
            StoryResult::Failed(why) => line["why"] = json!(why),
            StoryResult::Skipped(why) => {
                line["skipped"] = json!(true);
                line["why"] = json!(why);
            }
        }
        line
    }

    pub(super) fn text(&self) -> String {
        let values: Vec<String> = [("", &self.values), (" us", &self.timeline)]
            .into_iter()
            .flat_map(|(unit, part)| {
                let fields = part.as_object().into_iter().flatten();
                fields.map(move |(key, value)| format!("  {key:<24}{value}{unit}\n"))
            })
            .collect();
        let label = match &self.result {
            StoryResult::Passed => "  PASSED".to_owned(),
            StoryResult::Failed(why) => format!("  FAILED  {why}"),
            StoryResult::Skipped(why) => format!("  SKIPPED {}: {why}", self.name),
        };
        format!("{}{label}", values.concat())
    }
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

    fn read(output: &str) -> Outcome {
        Outcome::read("a::story", &Report::read("e2e", output), output)
    }

    const END: &str =
        "\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.01s\n";

    #[test]
    fn measurements_are_printed_with_the_result() {
        let text = format!(
            "running 1 test\nSTORY {{\"timeline\":{{\"seen_us\":7}},\"values\":{{\"n\":3}}}}\ntest a::story ... ok\n{END}"
        );
        let line = read(&text).json_line();
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
        assert_eq!(
            read(text).result,
            StoryResult::Failed("x.rs:1:2: assertion failed |   left: 1".to_owned())
        );
    }

    #[test]
    fn skipped_story_has_not_passed_and_a_missing_result_is_a_failure() {
        let text = format!("running 1 test\nSKIPPED a::story: no Go\ntest a::story ... ok\n{END}");
        assert_eq!(read(&text).result, StoryResult::Skipped("no Go".to_owned()));
        assert!(matches!(read("running 1 test\n").result, StoryResult::Failed(_)));
        assert!(matches!(read("").result, StoryResult::Failed(_)));
    }
}
