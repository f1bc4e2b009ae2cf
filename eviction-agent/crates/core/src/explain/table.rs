//! Columns: names to the left, figures to the right, the last one free.

use super::style::{Style, Tone};

/// Rows of cells under a heading.
pub(super) struct Table {
    /// The columns, and whether each holds figures.
    columns: Vec<(&'static str, bool)>,
    rows: Vec<(Vec<String>, Option<Tone>)>,
}

impl Table {
    pub(super) fn new(columns: &[(&'static str, bool)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: Vec<String>, tone: Option<Tone>) {
        self.rows.push((cells, tone));
    }

    /// All of it, indented.
    pub(super) fn write(&self, style: Style, out: &mut String) {
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|(cells, _)| cells.get(column));
            cells.chain(heading.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut line = |cells: &[String], tone: Option<Tone>| {
            let mut text = String::new();
            for ((cell, &width), (_, is_figure)) in cells.iter().zip(&widths).zip(&self.columns) {
                text += &if *is_figure { format!("  {cell:>width$}") } else { format!("  {cell:width$}") };
            }
            let text = text.trim_end();
            *out += &tone.map_or_else(|| text.to_owned(), |tone| style.paint(tone, text));
            out.push('\n');
        };
        line(&heading, Some(Tone::Faint));
        for (cells, tone) in &self.rows {
            line(cells, *tone);
        }
    }
}
