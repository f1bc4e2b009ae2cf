//! Formats amounts, times, names, colours and tables for readers.

use crate::pod::PodName;
use crate::signal::Resource;
use crate::time::Timestamp;
use crate::units::{Quantity, display_bytes};

/// Formats an amount of a resource with three digits: `1.43Gi`, `12345`.
pub(super) fn amount(resource: Resource, number: i64) -> String {
    match resource {
        Resource::Memory | Resource::EphemeralStorage => bytes(number),
        Resource::Inodes | Resource::Pids => number.to_string(),
    }
}

/// Formats an amount with its unit, for use in a sentence: `1.43Gi`, `12345 inodes`.
pub(super) fn with_unit(resource: Resource, number: i64) -> String {
    let one = number.unsigned_abs() == 1;
    match resource {
        Resource::Memory | Resource::EphemeralStorage => bytes(number),
        Resource::Inodes => format!("{number} {}", if one { "inode" } else { "inodes" }),
        Resource::Pids => format!("{number} {}", if one { "process" } else { "processes" }),
    }
}

/// Formats an amount without rounding: `300Mi and 1 byte`.
pub(super) fn exact(resource: Resource, number: i64) -> String {
    let rounded = with_unit(resource, number);
    if matches!(resource, Resource::Inodes | Resource::Pids) || is_exactly(&rounded, number) {
        return rounded;
    }
    let below = number.saturating_sub(1);
    let rounded_below = bytes(below);
    if is_exactly(&rounded_below, below) {
        return format!("{rounded_below} and 1 byte");
    }
    format!("{rounded} ({number} bytes)")
}

fn is_exactly(text: &str, number: i64) -> bool {
    let read = Quantity::parse(text.trim_end_matches('B')).ok();
    read.and_then(|quantity| quantity.as_i64()) == Some(number)
}

/// Formats a configured quantity like an amount if it is a number of whole units, else as configured.
pub(super) fn quantity(resource: Resource, configured: &Quantity) -> String {
    configured.as_i64().map_or_else(|| configured.to_string(), |number| amount(resource, number))
}

fn bytes(number: i64) -> String {
    display_bytes(number.into())
}

/// Formats a time, without its date if that is the date of `today`.
pub(super) fn clock(time: Timestamp, today: Timestamp) -> String {
    let (time, today) = (time.to_string(), today.to_string());
    match (time.split_once('T'), today.split_once('T')) {
        (Some((date, clock)), Some((same, _))) if date == same => clock.to_owned(),
        _ => time,
    }
}

/// Formats a pod as `namespace/name`.
pub(super) fn pod(name: &PodName) -> String {
    printable(&name.to_string())
}

/// Escapes the control characters of a text from outside, so that it cannot control a terminal.
pub(super) fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// Formats a number of things: `2 pods`, `1 pod`.
pub(super) fn count(number: usize, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

/// The meaning of a text, which selects its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    /// A pod is evicted.
    Bad,
    /// A pod may be evicted soon, or should be evicted but cannot be.
    Warning,
    /// No pod is evicted.
    Good,
    /// Important text, such as labels and names.
    Strong,
    /// Less important text.
    Faint,
}

/// The width of the labels on the left.
const LABEL: usize = 11;

/// Writes lines with labels.
pub(super) struct TextPage {
    /// Whether text is coloured with ANSI escape sequences.
    is_coloured: bool,
    pub(super) out: String,
}

impl TextPage {
    pub(super) fn new(is_coloured: bool) -> Self {
        Self { is_coloured, out: String::new() }
    }

    /// Returns a text in the colour of its meaning, if the page is coloured.
    pub(super) fn paint(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Bad => "1;31",
            Tone::Warning => "33",
            Tone::Good => "32",
            Tone::Strong => "1",
            Tone::Faint => "2",
        };
        if self.is_coloured { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    pub(super) fn heading(&mut self, at: Timestamp, tone: Tone, text: &str) {
        self.out += &format!("{at}  {}\n", self.paint(tone, text));
    }

    /// Writes lines of one kind. The label precedes the first one.
    pub(super) fn lines(&mut self, label: &str, lines: impl IntoIterator<Item = String>) {
        for (index, line) in lines.into_iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            self.out += &format!("  {}{line}\n", self.paint(Tone::Strong, &format!("{label:LABEL$}")));
        }
    }

    /// Writes a table under a heading, indented. Each column has its name, and whether it holds numbers, which
    /// are aligned to the right.
    pub(super) fn table(
        &mut self,
        columns: &[(&str, bool)],
        rows: impl Iterator<Item = (Vec<String>, Option<Tone>)>,
    ) {
        let heading: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let lines: Vec<_> = std::iter::once((heading, Some(Tone::Faint))).chain(rows).collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|(cells, _)| cells.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns.len()).map(width).collect();
        for (cells, tone) in &lines {
            let mut text = String::new();
            for ((cell, &width), (_, is_number)) in cells.iter().zip(&widths).zip(columns) {
                text += &if *is_number { format!("  {cell:>width$}") } else { format!("  {cell:width$}") };
            }
            let text = text.trim_end();
            self.out += &tone.map_or_else(|| text.to_owned(), |tone| self.paint(tone, text));
            self.out.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{exact, printable};
    use crate::signal::Resource::{Inodes, Memory, Pids};

    #[test]
    fn rounded_bytes_are_followed_by_the_exact_number() {
        assert_eq!(exact(Memory, 200 << 20), "200Mi");
        assert_eq!(exact(Memory, (200 << 20) + 1), "200Mi and 1 byte");
        assert_eq!(exact(Memory, (200 << 20) + 2), "200Mi (209715202 bytes)");
        assert_eq!(exact(Memory, 7), "7B");
        assert_eq!(exact(Inodes, 12_345), "12345 inodes");
        assert_eq!(exact(Pids, 1), "1 process");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
    }
}
