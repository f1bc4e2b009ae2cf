//! What a right value looks like, for one that has another form.

use eviction_core::units::{GoDuration, Quantity, parse_percentage};

/// For a text that should be a duration.
pub(super) fn of_duration(text: &str) -> Option<String> {
    GoDuration::parse(text).is_err().then(|| "a duration is written as 30s or 1m30s".to_owned())
}

/// For a text that should be a quantity or a percentage.
pub(super) fn of_threshold(text: &str) -> Option<String> {
    let example = if text.ends_with('%') {
        parse_percentage(text).is_err().then_some("a percentage is written as 5% or 7.5%")
    } else {
        Quantity::parse(text)
            .is_err()
            .then_some("a quantity is written as 500Mi or 1.5Gi, a percentage as 5%")
    };
    example.map(str::to_owned)
}

/// For something that should be a text.
pub(super) fn of_text(found: &serde_json::Value) -> Option<String> {
    found.is_number().then(|| "numbers must be in quotes here".to_owned())
}
