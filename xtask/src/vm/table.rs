//! Tables of kernels, stories and backends, for the terminal and for docs/reference/kernel-matrix.md.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::Machine;
use super::results::GuestResults;
use crate::shell;
use crate::story::Story;

/// Returns a line for one guest, and its errors.
pub(super) fn summary(machine: &Machine, results: &GuestResults) -> String {
    let [passed, failed, skipped] = results.counts();
    let mut text = format!("vm: {}: {passed} passed, {failed} failed, {skipped} skipped\n", machine.name);
    for story in results.stories.iter().filter(|story| story.ok != Some(true)) {
        let _ = writeln!(text, "vm: {}: {}: {}", machine.name, story.title(), story.why);
    }
    for error in &results.errors {
        let _ = writeln!(text, "vm: {}: {error}", machine.name);
    }
    text
}

type Guests<'a> = &'a [(&'a Machine, GuestResults)];

/// Returns tables in Markdown: the guests, the backends of each kernel, the results of the stories, and the
/// values that they measured.
pub(super) fn render(all: Guests<'_>) -> String {
    let mut tables = vec![guests(all), backends(all), stories(all)];
    tables.extend(VALUE_TABLES.iter().filter_map(|table| table.rows(all)));
    let text: Vec<_> = tables.iter().map(markdown).collect();
    text.join("\n")
}

/// The cell of a story that failed.
const FAILED: &str = "**FAILED**";

/// The cell of a story that was not run.
const NOT_RUN: &str = "–";

/// Rows of cells; the first one is the head.
type Rows = Vec<Vec<String>>;

fn guests(all: Guests<'_>) -> Rows {
    let mut rows =
        vec![["kernel", "release", "run", "passed", "failed", "skipped"].map(str::to_owned).to_vec()];
    for (machine, results) in all {
        let counts = results.counts().map(|count| count.to_string());
        let release = if results.release.is_empty() { "DID NOT BOOT" } else { &results.release };
        let words = [machine.name, release, &results.host].map(str::to_owned);
        rows.push(words.into_iter().chain(counts).collect());
    }
    rows
}

/// Returns a row for each source, with a column for each guest.
fn backends(all: Guests<'_>) -> Rows {
    let mut sources: Vec<&str> = Vec::new();
    for (source, _) in all.iter().flat_map(|(_, results)| &results.backends) {
        if !sources.contains(&source.as_str()) {
            sources.push(source);
        }
    }
    let cell = |results: &GuestResults, source: &str| {
        let found = results.backends.iter().find(|(name, _)| name == source);
        found.map_or(NOT_RUN, |(_, backend)| if backend.is_empty() { "none" } else { backend }).to_owned()
    };
    by_guest("source", all, &sources, |results, source| cell(results, source))
}

/// Returns a row for each story and forced backend, with a column for each guest.
fn stories(all: Guests<'_>) -> Rows {
    let mut titles: Vec<String> = Vec::new();
    for title in all.iter().flat_map(|(_, results)| results.stories.iter().map(Story::title)) {
        if !titles.contains(&title) {
            titles.push(title);
        }
    }
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    by_guest("story", all, &titles, |results, title| {
        let found: Vec<_> = results.stories.iter().filter(|story| story.title() == title).collect();
        let count = |ok: Option<bool>| found.iter().filter(|story| story.ok == ok).count();
        match (count(Some(false)), count(None), count(Some(true))) {
            (0, 0, 0) => NOT_RUN.to_owned(),
            (0, 0, _) => found[0].cell(),
            (0, 1, _) => "skipped".to_owned(),
            (0, skipped, _) => format!("{skipped} skipped"),
            _ => FAILED.to_owned(),
        }
    })
}

fn by_guest(
    corner: &str,
    all: Guests<'_>,
    lines: &[&str],
    cell: impl Fn(&GuestResults, &str) -> String,
) -> Rows {
    let names = all.iter().map(|(machine, _)| machine.name.to_owned());
    let mut rows = vec![std::iter::once(corner.to_owned()).chain(names).collect::<Vec<_>>()];
    for line in lines {
        let cells = all.iter().map(|(_, results)| cell(results, line));
        rows.push(std::iter::once((*line).to_owned()).chain(cells).collect());
    }
    rows
}

/// A table of values that stories measured, with a row for each guest and story.
#[derive(Debug)]
struct ValueTable {
    /// The heading of the column with the stories.
    title: &'static str,
    /// A story belongs to it if it has this value.
    measured_by: &'static str,
    decimals: usize,
    /// The values and their titles.
    columns: &'static [(&'static str, &'static str)],
}

const VALUE_TABLES: [ValueTable; 2] = [
    // Ratios to other programs in the same guest; above 1 the agent is better.
    ValueTable {
        title: "overshoot beyond the threshold",
        measured_by: "times_less_at_death",
        decimals: 1,
        columns: &[
            ("agent_signal_mib", "agent at the signal, MiB"),
            ("agent_death_mib", "agent at death, MiB"),
            ("peer_signal_mib", "earlyoom at the signal, MiB"),
            ("peer_death_mib", "earlyoom at death, MiB"),
            ("times_less_at_signal", "times less at the signal"),
            ("times_less_at_death", "times less at death"),
            ("reflex_death_mib", "agent with kernel kill, MiB"),
            ("times_less_with_reflex", "times less"),
            ("by_reflex", "runs ended by kernel kill"),
        ],
    },
    ValueTable {
        title: "slowdown by the agent",
        measured_by: "slowdown",
        decimals: 2,
        columns: &[
            ("slowdown", "slower, %"),
            ("noise", "without the agent, %"),
            ("programs", "BPF programs alone, %"),
        ],
    },
];

impl ValueTable {
    /// Returns the rows; `None` if nothing was measured.
    fn rows(&self, all: Guests<'_>) -> Option<Rows> {
        let Self { title, measured_by, decimals, columns } = self;
        let measured: Vec<_> = all
            .iter()
            .flat_map(|(machine, results)| results.stories.iter().map(|story| (machine.name, story)))
            .filter(|(_, story)| story.value(measured_by).is_some())
            .collect();
        if measured.is_empty() {
            return None;
        }
        let head = ["kernel", title].into_iter().chain(columns.iter().map(|(_, title)| *title));
        let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
        for (kernel, story) in measured {
            let values = columns.iter().map(|(key, _)| {
                story.value(key).map_or_else(|| NOT_RUN.to_owned(), |value| format!("{value:.decimals$}"))
            });
            rows.push([kernel.to_owned(), story.title()].into_iter().chain(values).collect());
        }
        Some(rows)
    }
}

fn markdown(rows: &Rows) -> String {
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<_> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if index == 0 {
            let _ = writeln!(text, "|{}", " --- |".repeat(row.len()));
        }
    }
    text
}

/// The page with the tables, between two marks.
const FILE: &str = "docs/reference/kernel-matrix.md";
const BEGIN: &str = "<!-- from here on written by `cargo xtask vm --write` -->\n";
const END: &str = "<!-- up to here -->\n";

/// Replaces the tables in docs/reference/kernel-matrix.md.
pub(super) fn write_page(all: Guests<'_>) -> Result<()> {
    let path = shell::root().join(FILE);
    let page = std::fs::read_to_string(&path).with_context(|| format!("read {FILE}"))?;
    let page = replace(&page, &render(all)).with_context(|| format!("{FILE} lacks its two marks"))?;
    std::fs::write(&path, page).with_context(|| format!("write {FILE}"))
}

/// Returns the page with other tables between its marks.
fn replace(page: &str, tables: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{tables}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::MACHINES;

    #[test]
    fn table_has_a_cell_for_each_guest_and_marks_failures() {
        let head = "@@vm host k, load 1\n@@vm release\n6.1.0\n@@vm check\n{\"would_start\": true, \"sources\": []}\n";
        let one = format!(
            "{head}@@vm run demo\n{{\"story\": \"a\", \"ok\": true}}\n{{\"story\": \"b\", \"ok\": false}}\n@@vm end\n"
        );
        let two = format!(
            "{head}@@vm run demo\n{{\"story\": \"a\", \"ok\": true, \"forced\": \"x\", \"values\": {{\"detected_by\": \"timer\"}}}}\n\
             @@vm run bpf-oom\nrunning 1 test\ntest one ... FOUND what holds: this much\nok\n@@vm end\n"
        );
        let text =
            render(&[(&MACHINES[0], GuestResults::read(&one)), (&MACHINES[1], GuestResults::read(&two))]);
        for line in [
            "| a | ok | – |",
            "| b | **FAILED** | – |",
            "| a (x forced) | – | ok, detected by timer |",
            "| bpf-oom tests: what holds | – | this much |",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert!(text.contains("| 5.10 | 6.1.0 | k, load 1 | 1 | 2 | 0 |"), "{text}");
    }

    #[test]
    fn only_text_between_the_marks_is_replaced() {
        let page = format!("a\n{BEGIN}old\n{END}b\n");
        let new = replace(&page, "| x |\n").unwrap();
        assert_eq!(new, format!("a\n{BEGIN}\n| x |\n\n{END}b\n"));
        assert_eq!(replace(&new, "| x |\n").as_deref(), Some(new.as_str()));
        assert_eq!(replace("no marks", ""), None);
    }
}
