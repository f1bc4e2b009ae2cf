//! Comparisons with Go: `go.jsonl` was written by a program that calls the packages of apimachinery v0.36.3
//! and Go 1.26. Also comparisons with another kind of arithmetic.

use num_bigint::BigInt;
use proptest::prelude::*;

use super::{Format, GoDuration, Quantity, ThresholdValue, parse_percentage};
use crate::units::text::quote;

#[test]
fn quantities_percentages_and_durations_match_go() {
    let mut count = 0;
    for line in include_str!("go.jsonl").lines() {
        let row: Vec<String> = serde_json::from_str(line).unwrap();
        let row: Vec<&str> = row.iter().map(String::as_str).collect();
        let (found, expected) = match row[..] {
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
    assert!(count > 700, "only {count} rows");
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
            format!(
                "{} {} {} {} {} {}",
                quote(&quantity.to_string()),
                format(&quantity),
                quantity.is_zero(),
                quantity.signum(),
                quantity.value(),
                quote(&canonical.to_string()),
            )
        }
    }
}

fn pair(left: &str, right: &str) -> String {
    let (Ok(left), Ok(right)) = (Quantity::parse(left), Quantity::parse(right)) else {
        return "E".to_owned();
    };
    let (mut sum, mut difference) = (left.clone(), left.clone());
    sum.add(&right);
    difference.sub(&right);
    let written = |q: &Quantity| format!("{} {} {}", quote(&q.to_string()), format(q), q.value());
    let order = left.cmp(&right) as i8;
    format!("{order} {} {}", written(&sum), written(&difference))
}

fn integer(left: &str, right: &str) -> String {
    let left: i64 = left.parse().unwrap();
    let Ok(right) = Quantity::parse(right) else {
        return "E".to_owned();
    };
    let binary = Quantity::from_i64(left, Format::BinarySi);
    let decimal = Quantity::from_i64(left, Format::DecimalSi);
    let (mut sum, mut difference, mut reverse) = (binary.clone(), binary.clone(), right.clone());
    sum.add(&right);
    difference.sub(&right);
    reverse.sub(&binary);
    let order = binary.cmp(&right) as i8;
    let text = |quantity: &Quantity| quote(&quantity.to_string());
    let (binary, decimal) = (text(&binary), text(&decimal));
    let (sum, difference, reverse) = (text(&sum), text(&difference), text(&reverse));
    format!("{binary} {decimal} {order} {sum} {difference} {reverse}")
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
fn number() -> impl Strategy<Value = (BigInt, u32)> {
    let digits = prop_oneof![
        any::<i8>().prop_map(BigInt::from),
        any::<i64>().prop_map(BigInt::from),
        "-?[0-9]{1,40}".prop_map(|digits| digits.parse().unwrap()),
    ];
    (digits, 0u32..=30)
}

/// Returns the number `digits × 10^(exponent − 9)` in one of its notations.
fn text((digits, exponent): &(BigInt, u32), suffix: bool) -> String {
    let exponent = i64::from(*exponent) - 9;
    match (suffix, exponent) {
        (true, -9) => format!("{digits}n"),
        (true, -6) => format!("{digits}u"),
        (true, -3) => format!("{digits}m"),
        (true, 0) => digits.to_string(),
        (true, 3) => format!("{digits}k"),
        (true, 18) => format!("{digits}E"),
        _ => format!("{digits}e{exponent}"),
    }
}

fn in_nanos((digits, exponent): &(BigInt, u32)) -> BigInt {
    digits * BigInt::from(10).pow(*exponent)
}

proptest! {
    #[test]
    fn quantities_compare_and_add_like_exact_decimals(
        a in number(), b in number(), suffixes in any::<(bool, bool)>(),
    ) {
        let (x, y) = (text(&a, suffixes.0), text(&b, suffixes.1));
        let (x, y) = (Quantity::parse(&x).unwrap(), Quantity::parse(&y).unwrap());
        let (m, n) = (in_nanos(&a), in_nanos(&b));
        prop_assert_eq!(x.cmp(&y), m.cmp(&n));
        prop_assert_eq!(y.cmp(&x), n.cmp(&m));
        let exact = |nanos: BigInt| Quantity::parse(&format!("{nanos}n")).unwrap();
        let (mut sum, mut difference) = (x.clone(), x.clone());
        sum.add(&y);
        prop_assert_eq!(&sum, &exact(&m + &n));
        // The smallest integer cannot be negated, which Go does not check.
        if n != BigInt::from(i64::MIN) * in_nanos(&(1.into(), b.1)) {
            difference.sub(&y);
            prop_assert_eq!(&difference, &exact(&m - &n));
        }
        let nano = BigInt::from(1_000_000_000);
        let whole = (&m % &nano == BigInt::ZERO).then(|| i64::try_from(&m / &nano).ok());
        prop_assert_eq!(x.as_i64(), whole.flatten());
    }

    #[test]
    fn written_quantities_are_read_as_the_same_number(a in number(), suffix in any::<bool>()) {
        let mut quantity = Quantity::parse(&text(&a, suffix)).unwrap();
        for _ in 0..2 {
            let again = Quantity::parse(&quantity.to_string()).unwrap();
            // Beyond the largest suffix Go writes none.
            if quantity.format() == Format::DecimalExponent || in_nanos(&a).bits() < 98 {
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
                sum.sub(&Quantity::from_i64(1, Format::BinarySi));
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
