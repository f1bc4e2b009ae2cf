//! Comparisons with Go: `go.jsonl` was written by a program that calls the packages of apimachinery v0.36.3
//! and Go 1.26. It has no integers of numbers that are negative or do not fit 64 bits: Go rounds some of them up
//! and others down, and truncates those that do not fit. Also comparisons with another kind of arithmetic.

use proptest::prelude::*;

use super::{Format, GoDuration, Nanos, Quantity, ThresholdValue, parse_percentage};
use crate::units::text::quote;

#[test]
fn quantities_percentages_and_durations_match_go() {
    let mut count = 0;
    for line in include_str!("go.jsonl").lines() {
        let row: Vec<String> = serde_json::from_str(line).unwrap();
        let row: Vec<&str> = row.iter().map(String::as_str).collect();
        let (found, expected) = match row[..] {
            // Numbers beyond the range count as equal, which Go does not know.
            ["q", text, _] | ["p", text, _, _] | ["p" | "i", _, text, _] if is_out_of_range(text) => continue,
            ["q", text, expected] => (quantity(text), expected),
            ["p", left, right, expected] => (pair(left, right), expected),
            ["i", left, right, expected] => (integer(left, right), expected),
            ["f", text, capacity, expected] => (percentage(text, capacity), expected),
            ["d", text, expected] => (duration(text), expected),
            _ => panic!("what is {line}?"),
        };
        assert_eq!(found, expected, "{line}");
        count += 1;
    }
    assert!(count > 680, "only {count} rows");
}

#[test]
fn written_percentages_are_read_again() {
    for text in ["5%", "33.3%", "1e-45%", "NaN%", "Inf%", "-Inf%"] {
        let written = ThresholdValue::parse(text).unwrap().configured();
        assert_eq!(ThresholdValue::parse(&written).map(|value| value.configured()), Ok(written), "{text}");
    }
}

fn is_out_of_range(text: &str) -> bool {
    Quantity::parse(text).is_ok_and(|quantity| quantity.nanos().is_saturated())
}

fn format(quantity: &Quantity) -> &'static str {
    match quantity.format() {
        Format::BinarySi => "BinarySI",
        Format::DecimalExponent => "DecimalExponent",
        Format::DecimalSi => "DecimalSI",
    }
}

fn quantity(text: &str) -> String {
    match Quantity::parse(text) {
        Err(error) => format!("E {error}"),
        Ok(quantity) => {
            let mut canonical = quantity.clone();
            canonical.add(&Quantity::ZERO);
            let integer = Some(quantity.value()).filter(|value| *value < i64::MAX && quantity.signum() >= 0);
            format!(
                "{} {} {} {} {} {}",
                quote(&quantity.to_string()),
                format(&quantity),
                quantity.is_zero(),
                quantity.signum(),
                integer.map_or_else(|| "-".to_owned(), |value| value.to_string()),
                quote(&canonical.to_string()),
            )
        }
    }
}

fn pair(left: &str, right: &str) -> String {
    let (Ok(left), Ok(right)) = (Quantity::parse(left), Quantity::parse(right)) else {
        return "E".to_owned();
    };
    let mut sum = left.clone();
    sum.add(&right);
    format!("{} {} {}", left.cmp(&right) as i8, quote(&sum.to_string()), format(&sum))
}

fn integer(left: &str, right: &str) -> String {
    let left: i64 = left.parse().unwrap();
    let Ok(right) = Quantity::parse(right) else {
        return "E".to_owned();
    };
    let binary = Quantity::from_i64(left, Format::BinarySi);
    let decimal = Quantity::from_i64(left, Format::DecimalSi);
    let mut sum = binary.clone();
    sum.add(&right);
    let order = binary.cmp(&right) as i8;
    let text = |quantity: &Quantity| quote(&quantity.to_string());
    format!("{} {} {order} {}", text(&binary), text(&decimal), text(&sum))
}

fn percentage(text: &str, capacity: &str) -> String {
    match parse_percentage(text) {
        Err(error) => format!("E {error}"),
        Ok(share) => {
            let value = ThresholdValue::Percentage(share).quantity(capacity.parse().unwrap());
            format!("{} {}", !share.is_nan(), value.as_i64().unwrap())
        }
    }
}

fn duration(text: &str) -> String {
    match GoDuration::parse(text) {
        Err(error) => format!("E {error}"),
        Ok(duration) => format!("{} {duration}", duration.as_nanos()),
    }
}

/// Returns digits and an exponent of ten, in a range in which nothing is rounded or limited.
fn number() -> impl Strategy<Value = (i64, u32)> {
    let digits = prop_oneof![any::<i8>().prop_map(i64::from), any::<i64>()];
    (digits, 0u32..=18)
}

/// Returns the number `digits × 10^(exponent − 9)` in one of its notations.
fn text((digits, exponent): (i64, u32), suffix: bool) -> String {
    let exponent = i64::from(exponent) - 9;
    match (suffix, exponent) {
        (true, -9) => format!("{digits}n"),
        (true, -6) => format!("{digits}u"),
        (true, -3) => format!("{digits}m"),
        (true, 0) => digits.to_string(),
        (true, 3) => format!("{digits}k"),
        (true, 9) => format!("{digits}G"),
        _ => format!("{digits}e{exponent}"),
    }
}

fn in_nanos((digits, exponent): (i64, u32)) -> i128 {
    i128::from(digits) * 10i128.pow(exponent)
}

proptest! {
    #[test]
    fn quantities_compare_and_add_like_integers(
        a in number(), b in number(), suffixes in any::<(bool, bool)>(),
    ) {
        let (x, y) = (text(a, suffixes.0), text(b, suffixes.1));
        let (x, y) = (Quantity::parse(&x).unwrap(), Quantity::parse(&y).unwrap());
        let (m, n) = (in_nanos(a), in_nanos(b));
        prop_assert_eq!((x.nanos(), y.nanos()), (Nanos::new(m), Nanos::new(n)));
        prop_assert_eq!(x.cmp(&y), m.cmp(&n));
        let mut sum = x.clone();
        sum.add(&y);
        prop_assert_eq!(sum.nanos(), Nanos::new(m + n));
        let whole = (m % 1_000_000_000 == 0).then(|| i64::try_from(m / 1_000_000_000).ok());
        prop_assert_eq!(x.as_i64(), whole.flatten());
    }

    #[test]
    fn written_quantities_are_read_as_the_same_number(a in number(), suffix in any::<bool>()) {
        let mut quantity = Quantity::parse(&text(a, suffix)).unwrap();
        for _ in 0..2 {
            let again = Quantity::parse(&quantity.to_string()).unwrap();
            // Beyond the largest suffix Go writes none.
            if quantity.format() == Format::DecimalExponent || in_nanos(a).unsigned_abs() < 1 << 98 {
                prop_assert_eq!(&again, &quantity);
                // `e0` is not written.
                prop_assert!(again.format() == quantity.format() || !quantity.to_string().contains('e'));
            }
            quantity.add(&Quantity::ZERO);
        }
    }

    #[test]
    fn written_binary_integers_are_read_as_the_same_integer(value in any::<i64>(), shift in 0u32..63) {
        let value = value >> shift << shift;
        let quantity = Quantity::from_i64(value, Format::BinarySi);
        // Texts have a limit that the smallest integer exceeds.
        if value != i64::MIN {
            let again = Quantity::parse(&quantity.to_string()).unwrap();
            prop_assert_eq!(again.as_i64(), Some(value));
        }
        prop_assert_eq!(quantity.value(), value);
    }

    #[test]
    fn written_durations_are_read_as_the_same_duration(nanos in any::<i64>(), shift in 0u32..63) {
        let duration = GoDuration::from_nanos(nanos >> shift);
        prop_assert_eq!(GoDuration::parse(&duration.to_string()), Ok(duration));
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "\\PC*", close in "[-+]?[0-9.]{0,30}[eEinumkKMGTP+0-9-]{0,14}") {
        for text in [text, close] {
            if let Ok(quantity) = Quantity::parse(&text) {
                let mut sum = quantity.clone();
                sum.add(&quantity);
                sum.add(&Quantity::from_i64(1, Format::BinarySi));
                let _ = (sum.to_string(), sum.value(), sum.as_i64(), sum.cmp(&quantity));
            }
            let _ = GoDuration::parse(&text).map(|duration| duration.to_string());
            let _ = parse_percentage(&text);
        }
    }

    #[test]
    fn no_float_makes_the_parser_panic(
        text in "[-+]?(0[xX])?[0-9a-fA-F._]{0,40}([eEpP][-+]?[0-9_]{0,12})?%{0,2}",
        capacity in any::<i64>(),
    ) {
        if let Ok(share) = parse_percentage(&text) {
            let _ = ThresholdValue::Percentage(share).quantity(capacity);
        }
    }
}
