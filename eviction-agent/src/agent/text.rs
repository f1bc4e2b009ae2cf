//! Figures as people read them.

/// Bytes with a binary suffix and at most one digit after the point.
#[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
pub(crate) fn bytes(value: u64) -> String {
    const SUFFIXES: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if value < 1024 {
        return format!("{value} B");
    }
    let mut scaled = value as f64 / 1024.0;
    let mut suffix = 0;
    while scaled >= 1024.0 && suffix + 1 < SUFFIXES.len() {
        scaled /= 1024.0;
        suffix += 1;
    }
    let text = format!("{scaled:.1}");
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), SUFFIXES[suffix])
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_are_short() {
        for (value, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536 << 20, "1.5 GiB"),
            (5 << 40, "5 TiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
    }
}
