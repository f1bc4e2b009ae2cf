//! The table of pods: its columns, and those that are omitted on a narrow terminal.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::text::{bytes, pad, plain, seconds, shorten, signed};
use crate::telemetry::live::state::PodState;

/// A column of the table.
struct Column {
    heading: &'static str,
    /// The minimum width, in columns of the terminal.
    width: usize,
    is_number: bool,
    cell: fn(&PodState) -> String,
}

const fn text(heading: &'static str, width: usize, cell: fn(&PodState) -> String) -> Column {
    Column { heading, width, is_number: false, cell }
}

const fn number(heading: &'static str, width: usize, cell: fn(&PodState) -> String) -> Column {
    Column { heading, width, is_number: true, cell }
}

const POD: &str = "POD";

const COLUMNS: [Column; 13] = [
    number("RANK", 5, |pod| pod.rank.map_or_else(none, |rank| rank.to_string())),
    text(POD, 19, |pod| format!("{}/{}", pod.namespace, pod.pod)),
    text("OWNER", 22, |pod| pod.owner.clone().unwrap_or_else(none)),
    text("QOS", 3, qos),
    number("PRIO", 6, priority),
    number("USAGE", 6, |pod| pod.usage.map_or_else(unknown, bytes)),
    number("REQUEST", 7, |pod| if pod.request == 0 { none() } else { bytes(pod.request) }),
    number("LIMIT", 6, |pod| pod.limit.map_or_else(none, bytes)),
    number("OVER", 7, |pod| pod.over_request.map_or_else(unknown, signed)),
    number("RATE/s", 7, |pod| pod.usage_per_second.map_or_else(none, rate)),
    number("STALL", 5, |pod| pod.reclaim_stall_ratio.map_or_else(none, |it| format!("{:.0}%", 100.0 * it))),
    number("LIMIT IN", 8, |pod| pod.limit_eta_seconds.map_or_else(none, seconds)),
    text("FORECAST", 24, |pod| pod.forecast.clone()),
];

/// The headings of columns in the order in which they are omitted if there is not enough room.
const OMIT_ORDER: [&str; 8] = ["FORECAST", "OWNER", "LIMIT", "STALL", "PRIO", "QOS", "LIMIT IN", "RATE/s"];

fn none() -> String {
    "-".to_owned()
}

fn unknown() -> String {
    "?".to_owned()
}

fn qos(pod: &PodState) -> String {
    match &*pod.qos {
        "Guaranteed" => "Gu".to_owned(),
        "Burstable" => "Bu".to_owned(),
        "BestEffort" => "BE".to_owned(),
        _ => none(),
    }
}

fn priority(pod: &PodState) -> String {
    match pod.priority {
        2_000_000_000.. => "system".to_owned(),
        number if number.unsigned_abs() >= 1_000_000 => format!("{}M", number / 1_000_000),
        number => number.to_string(),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a rate, shown with three digits")]
fn rate(bytes_per_second: f64) -> String {
    // Less than a page per second is noise.
    if bytes_per_second.abs() < 4096.0 { "0".to_owned() } else { signed(bytes_per_second as i64) }
}

/// Returns the lines of the table, the heading first: a window of at most `lines` lines around the
/// selected pod.
pub(super) fn table(
    pods: &[&PodState],
    selected: usize,
    columns: usize,
    lines: usize,
    is_ascii: bool,
) -> Vec<Line<'static>> {
    let visible_columns = visible_columns(columns);
    let fixed: usize = visible_columns.iter().map(|it| it.width + 1).sum();
    let row = |cell: &dyn Fn(&Column) -> String| {
        let cells = visible_columns.iter().map(|column| {
            let more = if column.heading == POD { columns.saturating_sub(fixed).min(60) } else { 0 };
            let width = column.width + more;
            pad(&shorten(&plain(&cell(column), is_ascii), width, is_ascii), width, column.is_number)
        });
        cells.collect::<Vec<_>>().join(" ")
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut text = vec![Line::from(Span::styled(row(&|column| column.heading.to_owned()), bold))];
    let rows = lines.saturating_sub(1);
    let first = selected.saturating_sub(rows / 2).min(pods.len().saturating_sub(rows));
    for (index, pod) in pods.iter().enumerate().skip(first).take(rows) {
        let mut style = match pod.rank {
            Some(1) => Style::new().fg(Color::Red),
            Some(_) => Style::new(),
            None => Style::new().add_modifier(Modifier::DIM),
        };
        if index == selected {
            style = style.add_modifier(Modifier::REVERSED);
        }
        let mark = if index == selected { ">" } else { " " };
        let line = row(&|column| (column.cell)(pod));
        // The mark replaces the first column, which no rank reaches.
        let line = format!("{mark}{}", line.get(1..).unwrap_or_default());
        text.push(Line::from(Span::styled(line, style)));
    }
    text
}

/// Returns the columns that fit.
fn visible_columns(columns: usize) -> Vec<Column> {
    let mut visible_columns = Vec::from(COLUMNS);
    for omitted in OMIT_ORDER {
        if visible_columns.iter().map(|it| it.width + 1).sum::<usize>() <= columns + 1 {
            break;
        }
        visible_columns.retain(|it| it.heading != omitted);
    }
    visible_columns
}
