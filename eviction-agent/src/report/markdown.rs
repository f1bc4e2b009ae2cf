//! A report as Markdown.

use std::fmt::{self, Write as _};

use eviction_core::units::display_bytes;

use super::Report;

impl Report {
    /// Returns the report as Markdown, for a ticket.
    pub(crate) fn markdown(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = write(self, &mut out);
        out
    }
}

fn write(report: &Report, out: &mut String) -> fmt::Result {
    writeln!(out, "# Node pressure report\n")?;
    writeln!(out, "- source: {}", escaped(&report.source))?;
    writeln!(out, "- time: {} to {}", report.from, report.to)?;
    writeln!(out, "- made by eviction-agent {}", report.version)?;
    for warning in &report.warnings {
        writeln!(out, "- warning: {}", escaped(warning))?;
    }
    let rows = report.signals.iter().map(|it| {
        let amount = |value: i64| amount(it.unit, value);
        let thresholds = it.thresholds.iter().filter_map(|threshold| {
            Some(format!(
                "{} {} ({})",
                threshold.threshold,
                amount(threshold.values.last()?),
                threshold.source
            ))
        });
        let last = it.available.last().map_or_else(String::new, amount);
        [
            it.signal.to_owned(),
            amount(it.capacity),
            amount(it.least),
            last,
            thresholds.collect::<Vec<_>>().join(", "),
        ]
    });
    table(out, "Signals", ["signal", "capacity", "least available", "last", "thresholds"], rows, 0)?;
    let rows = report.pods.iter().map(|it| {
        let bytes = |value: i64| amount("bytes", value);
        let evicted = it.evicted.map_or_else(String::new, |at| at.to_string());
        [name(&it.namespace, &it.pod), bytes(it.request), bytes(it.peak), bytes(it.last), evicted]
    });
    let heading = ["pod", "memory request", "greatest use", "last use", "evicted"];
    table(out, "Memory of pods", heading, rows, report.pods_omitted)?;
    let rows = report.ranking.iter().map(|it| {
        let bytes = |value: Option<i64>| value.map_or_else(|| "?".to_owned(), |it| amount("bytes", it));
        let rank = it.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
        let (usage, over) = (bytes(it.usage), bytes(it.over_request));
        [rank, name(&it.namespace, &it.pod), it.priority.to_string(), usage, over, it.forecast.clone()]
    });
    let heading = ["rank", "pod", "priority", "use", "above request", "forecast"];
    table(out, "Order of eviction for memory at the end", heading, rows, report.ranking_omitted)?;
    let rows = report
        .events
        .iter()
        .map(|it| [it.at.to_string(), it.severity.clone(), it.event.clone(), it.message.clone()]);
    table(out, "Events", ["time", "severity", "event", "message"], rows, report.events_omitted)?;
    writeln!(out, "\n## Decisions")?;
    for decision in &report.decisions {
        writeln!(out, "\n### {} {}\n", decision.at, escaped(&decision.title))?;
        // An indented code block ends only where the indentation ends.
        for line in decision.explanation.trim_end().lines() {
            writeln!(out, "{}", format!("    {line}").trim_end())?;
        }
    }
    match (report.decisions.len(), report.decisions_omitted) {
        (0, _) => writeln!(out, "\nNone under pressure."),
        (_, 0) => Ok(()),
        (_, more) => writeln!(out, "\n{more} more are left out."),
    }
}

fn table<const N: usize>(
    out: &mut String,
    title: &str,
    heading: [&str; N],
    rows: impl ExactSizeIterator<Item = [String; N]>,
    omitted: usize,
) -> fmt::Result {
    writeln!(out, "\n## {title}\n")?;
    if rows.len() == 0 {
        return writeln!(out, "None.");
    }
    writeln!(out, "| {} |\n|{}", heading.join(" | "), "---|".repeat(N))?;
    for row in rows {
        writeln!(out, "| {} |", row.map(|cell| escaped(&cell)).join(" | "))?;
    }
    if omitted > 0 {
        writeln!(out, "\n{omitted} more are left out.")?;
    }
    Ok(())
}

fn name(namespace: &str, pod: &str) -> String {
    format!("{namespace}/{pod}")
}

fn amount(unit: &str, value: i64) -> String {
    if unit == "bytes" { display_bytes(value.into()) } else { value.to_string() }
}

/// Escapes a text, so that it is neither markup nor the end of a table cell.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
