//! Quantities of bytes as people read them.

const SUFFIXES: [&str; 7] = ["B", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Bytes as a Kubernetes quantity, rounded to three digits: `8Gi`, `1.43Gi`, `512Mi`.
pub fn display_bytes(number: i128) -> String {
    let size = number.unsigned_abs();
    let sign = if number < 0 { "-" } else { "" };
    let power = (1..SUFFIXES.len()).rfind(|power| size >> (10 * power) > 0).unwrap_or(0);
    let (unit, suffix) = (1_u128 << (10 * power), SUFFIXES[power]);
    if size.is_multiple_of(unit) {
        return format!("{sign}{}{suffix}", size / unit);
    }
    // Tenths and hundredths are enough to tell one from another.
    let hundredths = (size * 100 + unit / 2) / unit;
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    let digits = match whole {
        0..10 => format!("{whole}.{rest:02}"),
        10..100 => format!("{whole}.{}", rest / 10),
        _ => whole.to_string(),
    };
    let digits =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
    format!("{sign}{digits}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::display_bytes;

    #[test]
    fn bytes_have_three_digits() {
        let table = [
            (0, "0B"),
            (-1, "-1B"),
            (1023, "1023B"),
            (1536, "1.5Ki"),
            (100 << 20, "100Mi"),
            ((1 << 30) + 1, "1Gi"),
            (1_531_000_000, "1.43Gi"),
            (15_310_000_000, "14.2Gi"),
            (150 * (1 << 30) + 5, "150Gi"),
            (i128::from(i64::MAX), "8Ei"),
            (i128::from(i64::MIN), "-8Ei"),
            (i128::from(u64::MAX), "16Ei"),
        ];
        for (number, text) in table {
            assert_eq!(display_bytes(number), text, "{number}");
        }
    }
}
