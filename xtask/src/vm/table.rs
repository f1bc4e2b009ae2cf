//! Kernel by story by rung, for people and for docs/kernels.md.

use std::fmt::Write as _;

use super::Machine;
use super::guest::Told;

/// Families whose rung is worth a column.
const FAMILIES: [&str; 4] = ["charge", "charge near", "oom", "task"];

/// A line for one guest, and what went wrong in it.
pub(super) fn summary(machine: &Machine, told: &Told) -> String {
    let mut text = format!(
        "vm: {}: {} passed, {} failed, {} skipped\n",
        machine.name,
        told.passed(),
        told.failed(),
        told.skipped()
    );
    for story in told.stories.iter().filter(|story| story.ok != Some(true)) {
        let _ = writeln!(text, "vm: {}: {}: {}", machine.name, story.name, story.why);
    }
    for wrong in &told.wrong {
        let _ = writeln!(text, "vm: {}: {wrong}", machine.name);
    }
    text
}

/// A table in Markdown.
pub(super) fn render(all: &[(&Machine, Told)]) -> String {
    let mut stories: Vec<&str> = Vec::new();
    for story in all.iter().flat_map(|(_, told)| &told.stories) {
        if !stories.contains(&story.name.as_str()) {
            stories.push(&story.name);
        }
    }
    let mut rows = vec![
        ["kernel", "release"]
            .into_iter()
            .chain(FAMILIES)
            .chain(stories.iter().copied())
            .map(str::to_owned)
            .collect::<Vec<_>>(),
    ];
    for (machine, told) in all {
        let rung = |family: &str| {
            let found = told.rungs.iter().find(|(source, _)| source == family);
            found.map_or("?", |(_, rung)| if rung.is_empty() { "none" } else { rung }).to_owned()
        };
        let verdict = |name: &&str| {
            let found = told.stories.iter().find(|story| story.name == **name);
            match found.map(|story| story.ok) {
                Some(Some(true)) => "ok",
                Some(Some(false)) => "FAILED",
                Some(None) => "skipped",
                None => "FAILED: not told",
            }
            .to_owned()
        };
        let names = [machine.name.to_owned(), told.release.clone()];
        rows.push(names.into_iter().chain(FAMILIES.map(rung)).chain(stories.iter().map(verdict)).collect());
    }
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if index == 0 {
            let _ = writeln!(text, "|{}", " --- |".repeat(row.len()));
        }
    }
    text
}
