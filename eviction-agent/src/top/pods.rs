//! The table of pods: its columns, and those that are omitted on a narrow terminal.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::text::{bytes, pad, plain, seconds, shorten, signed};
use crate::telemetry::live::state::PodState;

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Rank,
    Pod,
    Owner,
    Qos,
    Priority,
    Usage,
    Request,
    Limit,
    Over,
    Rate,
    Stall,
    LimitIn,
    Forecast,
}

use Column::{Forecast, Limit, LimitIn, Over, Owner, Pod, Priority, Qos, Rank, Rate, Request, Stall, Usage};

const ALL: [Column; 13] =
    [Rank, Pod, Owner, Qos, Priority, Usage, Request, Limit, Over, Rate, Stall, LimitIn, Forecast];

/// The order in which columns are omitted if there is not enough room.
const OMIT_ORDER: [Column; 8] = [Forecast, Owner, Limit, Stall, Priority, Qos, LimitIn, Rate];

/// The minimum width of pod names, in columns.
const NAME: usize = 19;

impl Column {
    /// Returns the heading, the minimum width, and whether the cells are numbers.
    fn shape(self) -> (&'static str, usize, bool) {
        match self {
            Rank => ("RANK", 5, true),
            Pod => ("POD", NAME, false),
            Owner => ("OWNER", 22, false),
            Qos => ("QOS", 3, false),
            Priority => ("PRIO", 6, true),
            Usage => ("USAGE", 6, true),
            Request => ("REQUEST", 7, true),
            Limit => ("LIMIT", 6, true),
            Over => ("OVER", 7, true),
            Rate => ("RATE/s", 7, true),
            Stall => ("STALL", 5, true),
            LimitIn => ("LIMIT IN", 8, true),
            Forecast => ("FORECAST", 24, false),
        }
    }

    fn width(self) -> usize {
        self.shape().1
    }

    fn cell(self, pod: &PodState) -> String {
        let none = || "-".to_owned();
        match self {
            Rank => pod.rank.map_or_else(none, |rank| rank.to_string()),
            Pod => format!("{}/{}", pod.namespace, pod.pod),
            Owner => pod.owner.clone().unwrap_or_else(none),
            Qos => match &*pod.qos {
                "Guaranteed" => "Gu".to_owned(),
                "Burstable" => "Bu".to_owned(),
                "BestEffort" => "BE".to_owned(),
                _ => none(),
            },
            Priority => match pod.priority {
                2_000_000_000.. => "system".to_owned(),
                number if number.unsigned_abs() >= 1_000_000 => format!("{}M", number / 1_000_000),
                number => number.to_string(),
            },
            Usage => pod.usage.map_or_else(|| "?".to_owned(), bytes),
            Request if pod.request == 0 => none(),
            Request => bytes(pod.request),
            Limit => pod.limit.map_or_else(none, bytes),
            Over => pod.over_request.map_or_else(|| "?".to_owned(), signed),
            #[expect(clippy::cast_possible_truncation, reason = "a rate, shown with three digits")]
            Rate => pod.usage_per_second.map_or_else(none, |rate| {
                // Less than a page per second is noise.
                if rate.abs() < 4096.0 { "0".to_owned() } else { signed(rate as i64) }
            }),
            Stall => pod.reclaim_stall_ratio.map_or_else(none, |ratio| format!("{:.0}%", 100.0 * ratio)),
            LimitIn => pod.limit_eta_seconds.map_or_else(none, seconds),
            Forecast => pod.forecast.clone(),
        }
    }
}

/// Returns the lines of the table, the heading first: a window of at most `lines` lines around the
/// selected pod.
pub(super) fn table(
    pods: &[PodState],
    selected: usize,
    columns: usize,
    lines: usize,
    is_ascii: bool,
) -> Vec<Line<'static>> {
    let visible_columns = visible_columns(columns);
    let fixed: usize = visible_columns.iter().map(|it| it.width() + 1).sum();
    let widths: Vec<usize> = visible_columns
        .iter()
        .map(|it| it.width() + if *it == Pod { columns.saturating_sub(fixed).min(60) } else { 0 })
        .collect();
    let row = |cell: &dyn Fn(Column) -> String| {
        let cells = visible_columns.iter().zip(&widths).map(|(column, width)| {
            let text = shorten(&plain(&cell(*column), is_ascii), *width, is_ascii);
            pad(&text, *width, column.shape().2)
        });
        cells.collect::<Vec<_>>().join(" ")
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut text = vec![Line::from(Span::styled(row(&|column| column.shape().0.to_owned()), bold))];
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
        let line = row(&|column| column.cell(pod));
        // The mark replaces the first column, which no rank reaches.
        let line = format!("{mark}{}", line.get(1..).unwrap_or_default());
        text.push(Line::from(Span::styled(line, style)));
    }
    text
}

/// Returns the columns that fit.
fn visible_columns(columns: usize) -> Vec<Column> {
    let mut visible_columns = ALL.to_vec();
    for omitted in OMIT_ORDER {
        if visible_columns.iter().map(|it| it.width() + 1).sum::<usize>() <= columns + 1 {
            break;
        }
        visible_columns.retain(|it| *it != omitted);
    }
    visible_columns
}
