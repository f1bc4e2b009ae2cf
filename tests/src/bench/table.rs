//! Tables with aligned columns.

use std::fmt::Write as _;

/// Renders lines of cells as a table. Columns are right-aligned, except those in `left`.
pub fn render<const N: usize>(lines: &[[String; N]], left: &[usize]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            // Writing to a String cannot fail.
            let _ = match left.contains(&column) {
                true => write!(text, "{gap}{cell:<width$}"),
                false => write!(text, "{gap}{cell:>width$}"),
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// Formats a value with about three significant digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}
