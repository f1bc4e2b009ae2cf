//! Standard output and standard error of all verbs, and the option `-o`.

use std::io::{self, BufWriter, IsTerminal as _, StdoutLock, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::daemon::Failure;
use crate::telemetry::recording::reader::SegmentError;
use crate::top::text;

/// Standard output. What is written to it must be flushed.
pub(super) type Out = BufWriter<StdoutLock<'static>>;

/// The reason why a verb ended early.
pub(super) enum VerbError {
    /// The verb failed.
    Failure(Failure),
    /// Standard output could not be written.
    Output(io::Error),
}

impl From<Failure> for VerbError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<io::Error> for VerbError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Locks standard output.
pub(super) fn out() -> Out {
    BufWriter::new(io::stdout().lock())
}

/// Writes to standard error. Errors, such as a closed standard error, are ignored.
pub(super) fn write_stderr(text: &str) {
    let _ignored = io::stderr().write_all(text.as_bytes());
}

/// Reports which segments of a recording cannot be read to their end. Returns the number of those that are an error:
/// a segment that is cut off is not, because a killed agent leaves one.
pub(super) fn report_unreadable(errors: &[SegmentError]) -> usize {
    for SegmentError { text, is_cut } in errors {
        write_stderr(&format!("{}: {text}\n", if *is_cut { "warning" } else { "error" }));
    }
    errors.iter().filter(|error| !error.is_cut).count()
}

/// Flushes standard output and ends a verb.
pub(super) fn end(mut out: Out, result: Result<ExitCode, VerbError>) -> ExitCode {
    let result = result.and_then(|code| out.flush().map(|()| code).map_err(VerbError::Output));
    // The rest of the buffer cannot be written either.
    let _parts = out.into_parts();
    report(result)
}

/// Reports errors of a verb and returns the exit code. A closed pipe counts as success.
pub(super) fn report(result: Result<ExitCode, VerbError>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(VerbError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(VerbError::Output(error)) => {
            write_stderr(&format!("error: write standard output: {error}\n"));
            ExitCode::FAILURE
        }
        Err(VerbError::Failure(failure)) => report_failure(&failure),
    }
}

/// Reports a failure and returns its exit code.
pub(super) fn report_failure(failure: &Failure) -> ExitCode {
    let (text, code) = failure.report();
    write_stderr(&text);
    code
}

/// The format of one document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// Table as wide as the terminal
    #[value(alias = "text")]
    Table,
    /// Table with all columns and details
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// The format of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum StreamFormat {
    /// Text
    #[value(alias = "text", alias = "wide")]
    Table,
    /// One JSON object per line
    #[value(alias = "json")]
    Jsonl,
}

impl OutputFormat {
    /// Writes `what`, which errors call `name`. `table` returns the text for users; its argument is whether
    /// the table is wide.
    pub(super) fn write<T: Serialize>(
        self,
        out: &mut Out,
        name: &str,
        what: &T,
        table: impl FnOnce(&T, bool) -> String,
    ) -> Result<(), VerbError> {
        let failed = |error: &dyn std::error::Error| Failure::because(format!("write {name}"), error);
        let text = match self {
            Self::Table => table(what, false),
            Self::Wide => table(what, true),
            Self::Json => {
                let text = serde_json::to_string_pretty(what).map_err(|error| failed(&error))?;
                format!("{text}\n")
            }
            Self::Yaml => serde_yaml_ng::to_string(what).map_err(|error| failed(&error))?,
        };
        Ok(out.write_all(text.as_bytes())?)
    }
}

/// Writes a value as a line of JSON.
pub(super) fn write_json_line(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Returns whether the stream may have colours: it is a terminal, and NO_COLOR is unset or empty.
pub(super) fn is_coloured(stream: &impl io::IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Waits for one of these events of standard output. Returns the events that occurred.
pub(super) fn poll_stdout(events: PollFlags, timeout: Duration) -> PollFlags {
    let stdout = io::stdout();
    let mut fds = [PollFd::new(&stdout, events)];
    let timeout = Timespec::try_from(timeout).unwrap_or_default();
    // There are no events after an error, such as an interruption by a signal.
    let _error = poll(&mut fds, Some(&timeout));
    fds[0].revents()
}

/// Returns the columns of the terminal: $COLUMNS if set, else those of the terminal that standard output
/// is.
pub(super) fn columns() -> Option<u16> {
    let given =
        std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
    given.or_else(|| {
        let stdout = io::stdout();
        let size = rustix::termios::tcgetwinsize(&stdout).ok().filter(|_| stdout.is_terminal())?;
        Some(size.ws_col).filter(|columns| *columns > 0)
    })
}

/// Returns a table without lines, wrapped to `columns` columns.
pub(super) fn table<const N: usize>(
    heading: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    columns: Option<u16>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(heading);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    match columns {
        Some(columns) => {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(columns.max(20));
        }
        None => {
            table.set_content_arrangement(ContentArrangement::Disabled);
            for column in table.column_iter_mut() {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
    }
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

/// Wraps a text at blanks to `columns` columns. Lines after the first are indented.
pub(super) fn wrap(text: &str, columns: Option<u16>) -> String {
    let columns = columns.map_or(usize::MAX, |columns| usize::from(columns.max(20)));
    text::wrap(text, columns).iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<[String; 2]> {
        vec![["policy.memory".to_owned(), "a rather long value that has many words in it".to_owned()]]
    }

    #[test]
    fn a_table_is_as_wide_as_the_terminal() {
        let narrow = table(["SETTING", "VALUE"], rows(), Some(40));
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
        assert!(narrow.lines().count() > 2, "{narrow}");
        for word in ["SETTING", "policy.memory", "words"] {
            assert!(narrow.contains(word), "{narrow}");
        }
    }

    #[test]
    fn table_is_not_wrapped_without_a_terminal() {
        let wide = table(["SETTING", "VALUE"], rows(), None);
        let expected = "SETTING        VALUE\npolicy.memory  a rather long value that has many words in it\n";
        assert_eq!(wide, expected);
    }

    #[test]
    fn texts_are_wrapped_at_blanks() {
        assert_eq!(wrap("one two three four five", Some(20)), "one two three four\n  five\n");
        assert_eq!(wrap("one two", None), "one two\n");
        let long = wrap(&"x".repeat(50), Some(20));
        assert!(long.lines().all(|line| line.chars().count() <= 20), "{long}");
    }
}
