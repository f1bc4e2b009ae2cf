use super::{Format, Quantity};

fn parsed(text: &str) -> Quantity {
    Quantity::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Each text, what Go writes for it, and what Go writes after the text was dropped.
#[test]
fn quantities_are_written_as_in_the_kubelet() {
    for (text, written, canonical) in [
        ("0", "0", "0"),
        ("00", "0", "0"),
        ("-0", "0", "0"),
        (".", "0", "0"),
        ("+", "0", "0"),
        ("+5Mi", "+5Mi", "5Mi"),
        ("00012Mi", "00012Mi", "12Mi"),
        ("8Mi", "8Mi", "8Mi"),
        ("1024Ki", "1Mi", "1Mi"),
        ("1025Ki", "1025Ki", "1025Ki"),
        ("1.5Gi", "1536Mi", "1536Mi"),
        ("1.500M", "1.500M", "1500k"),
        ("1.5G", "1500M", "1500M"),
        ("1.G", "1.G", "1G"),
        ("5E3", "5E3", "5e3"),
        ("1000k", "1M", "1M"),
        ("1000E", "1", "1"),
        ("0.5", "500m", "500m"),
        ("0.5Ki", "512", "512"),
        ("0.5e-9", "1e-9", "1e-9"),
        ("0.0000000001", "1n", "1n"),
        ("-0.0000000011", "-2n", "-2n"),
        ("0.001Ki", "1024m", "1024m"),
        ("0.0001Ki", "102400u", "102400u"),
        ("9Ei", "9223372036854775807", "9223372036854775807"),
        ("-9Ei", "-9223372036854775807", "-9223372036854775807"),
        ("100E", "100E", "100E"),
        ("123456789012345678", "123456789012345678", "123456789012345678"),
        ("1234567890123456789012", "1234567890123456789012", "1234567890123456789012"),
        ("1e4294967299", "1e4294967299", "1e3"),
        ("10e2147483647", "10e2147483647", "10e2147483647"),
    ] {
        let mut quantity = parsed(text);
        assert_eq!(quantity.to_string(), written, "{text}");
        quantity.add(&Quantity::ZERO);
        assert_eq!(quantity.to_string(), canonical, "{text} plus zero");
    }
}

#[test]
fn integers_are_written_in_their_format() {
    for (value, binary, decimal) in [
        (0, "0", "0"),
        (1023, "1023", "1023"),
        (1024, "1Ki", "1024"),
        (-2048, "-2Ki", "-2048"),
        (1000, "1k", "1k"),
        (70_000_000_298, "70000000298", "70000000298"),
        (i64::MAX, "9223372036854775807", "9223372036854775807"),
        (i64::MIN, "-9223372036854775808", "-9223372036854775808"),
    ] {
        assert_eq!(Quantity::from_i64(value, Format::BinarySi).to_string(), binary);
        assert_eq!(Quantity::from_i64(value, Format::DecimalSi).to_string(), decimal);
    }
}

#[test]
fn parse_errors_match_those_of_kubernetes() {
    let format =
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    let numeric = "unable to parse numeric part of quantity";
    let suffix = "unable to parse quantity's suffix";
    for (text, error) in [
        ("", format),
        (" 5", format),
        ("5 ", format),
        ("1..5", format),
        ("5x", format),
        ("5µ", format),
        ("> 5", format),
        ("1K", suffix),
        ("5e", suffix),
        ("5KI", format),
        ("5mi", suffix),
        ("+-5", suffix),
        (".e-10", numeric),
        // The negated exponent does not exist.
        ("e-2147483648", numeric),
        ("5e99999999999999999999", suffix),
    ] {
        assert_eq!(Quantity::parse(text).unwrap_err(), error, "{text:?}");
    }
    let error = Quantity::parse(&"9".repeat(20_000)).unwrap_err();
    assert_eq!(error, "quantity is longer than 10000 characters");
}

/// The kubelet would need gigabytes of memory for some of these.
#[test]
fn numbers_out_of_range_are_equal_and_stay_as_written() {
    let digits = "9".repeat(10_000);
    let (low, high) = (parsed("-1e2147483647"), ["2e29", "12e33", "1e2000000000", &digits].map(parsed));
    for quantity in &high {
        assert!(low < parsed("-1e29") && parsed("1e29") < *quantity);
        assert_eq!(*quantity, high[0]);
        assert_eq!(quantity.value(), i64::MAX);
        let mut sums = [quantity.clone(), parsed("1Ki")];
        let [left, right] = &mut sums;
        left.add(&parsed("1Ki"));
        right.add(quantity);
        assert_eq!(sums.map(|sum| sum.to_string()), [quantity.to_string(), quantity.to_string()]);
    }
    assert_eq!(high.map(|quantity| quantity.to_string()), ["2e29", "12e33", "1e2000000000", &digits]);
    let mut beyond = parsed("1e29");
    beyond.add(&parsed("1.5e29"));
    assert_eq!(beyond, parsed("1.5e29"), "the larger operand");
}
