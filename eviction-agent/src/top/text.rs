//! Text of amounts, times and names with a given width.

use eviction_core::units::display_bytes;
use ratatui::text::Span;

/// Returns the width of a text in columns. A wide character has two.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Returns a text that is safe for the terminal: without control characters, and only with ASCII characters
/// if `is_ascii` is set.
pub(super) fn plain(text: &str, is_ascii: bool) -> String {
    let shown = |c: char| match c {
        c if c.is_control() => ' ',
        c if is_ascii && !c.is_ascii() => '?',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// Returns the beginning of a text in at most `columns` columns.
fn head(text: &str, columns: usize) -> String {
    let mut taken = String::new();
    for c in text.chars() {
        taken.push(c);
        if width(&taken) > columns {
            taken.pop();
            break;
        }
    }
    taken
}

/// Returns a text in at most `columns` columns. A longer text loses its middle, because the ends of names
/// distinguish them.
pub(super) fn shorten(text: &str, columns: usize, is_ascii: bool) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let Some(room) = columns.checked_sub(1) else { return String::new() };
    let head = head(text, room.div_ceil(2));
    let room = room - width(&head);
    let start = text.char_indices().map(|(at, _)| at).find(|at| width(&text[*at..]) <= room);
    let tail = start.map_or("", |at| &text[at..]);
    format!("{head}{}{tail}", if is_ascii { '~' } else { '…' })
}

/// Returns a text in exactly `columns` columns. A number is right-aligned.
pub(super) fn pad(text: &str, columns: usize, is_number: bool) -> String {
    let text = if width(text) > columns { head(text, columns) } else { text.to_owned() };
    let blanks = " ".repeat(columns - width(&text));
    if is_number { blanks + &text } else { text + &blanks }
}

/// Wraps a text at blanks into lines of at most `columns` columns. Lines after the first are indented.
pub(crate) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace().flat_map(|word| pieces(word, columns.saturating_sub(2).max(2))) {
        let line = lines.last().map_or(0, |line| width(line));
        if line > 2 && line + 1 + width(&word) > columns {
            lines.push(" ".to_owned());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(&word);
        }
    }
    lines
}

/// Splits a word into pieces of at most `columns` columns.
fn pieces(word: &str, columns: usize) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while !rest.is_empty() {
        let piece = head(rest, columns);
        if piece.is_empty() {
            pieces.push(rest.to_owned());
            break;
        }
        rest = &rest[piece.len()..];
        pieces.push(piece);
    }
    pieces
}

/// Formats a number of bytes, such as `1.43Gi`.
pub(super) fn bytes(number: impl Into<i128>) -> String {
    display_bytes(number.into())
}

/// Formats a number of bytes with its sign, such as `+1.43Gi`, `-12Mi`, `0`.
pub(super) fn signed(number: i64) -> String {
    match number {
        0 => "0".to_owned(),
        1.. => format!("+{}", bytes(number)),
        _ => bytes(number),
    }
}

/// Formats seconds, such as `42s`, `12m`, `3h`, `2d`.
pub(super) fn seconds(seconds: f64) -> String {
    let whole = seconds.max(0.0).round();
    let [minute, hour, day] = [60.0, 3600.0, 86_400.0];
    match whole {
        _ if whole < 2.0 * minute => format!("{whole}s"),
        _ if whole < 2.0 * hour => format!("{}m", (whole / minute).floor()),
        _ if whole < 2.0 * day => format!("{}h", (whole / hour).floor()),
        _ if whole < 1000.0 * day => format!("{}d", (whole / day).floor()),
        _ => "years".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_into_their_columns() {
        assert_eq!(shorten("shop/checkout-5f6d8-2", 12, false), "shop/c…6d8-2");
        assert_eq!(shorten("shop/checkout-5f6d8-2", 12, true), "shop/c~6d8-2");
        assert_eq!(shorten("名前空間/ポッド", 7, false), "名…ッド");
        for columns in 0..20 {
            for text in ["", "shop/checkout-5f6d8-2", "名前空間/ポッド-1", "e\u{301}e\u{301}e\u{301}"]
            {
                assert!(width(&shorten(text, columns, false)) <= columns, "{text} {columns}");
                assert_eq!(width(&pad(text, columns, true)), columns, "{text} {columns}");
            }
        }
        assert_eq!(plain("a\u{1b}名", true), "a ?");
    }

    #[test]
    fn sentences_are_wrapped_at_blanks() {
        assert_eq!(wrap("one two three four", 9), ["one two", "  three", "  four"]);
        assert_eq!(wrap("名前名前 a", 6), ["名前", "  名前", "  a"]);
    }

    #[test]
    fn seconds_are_formatted_with_one_unit() {
        let times = [0.4, 119.0, 121.0, 7300.0, 200_000.0, 1e12].map(seconds);
        assert_eq!(times, ["0s", "119s", "2m", "2h", "2d", "years"]);
    }
}
