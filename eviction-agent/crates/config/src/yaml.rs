//! Parses YAML as Kubernetes tools write it, with a limit on the parsing cost.

use serde::de::DeserializeOwned;

/// The maximum number of open brackets. The parser's time is quadratic in this number.
const MAX_OPEN_BRACKETS: usize = 5_000;

/// Reads one YAML document.
///
/// # Errors
/// If the text is not YAML, does not match the type, or is nested too deeply.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    if max_open_brackets(text) > MAX_OPEN_BRACKETS {
        return Err("not YAML: too many brackets are open".to_owned());
    }
    serde_yaml_ng::from_str(text).map_err(|error| format!("not YAML: {error}"))
}

/// Returns the maximum number of open brackets. Brackets in texts count as well; they usually come in pairs.
fn max_open_brackets(text: &str) -> usize {
    let (mut open, mut most) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => {
                open += 1;
                most = most.max(open);
            }
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::from_str;

    #[test]
    fn deeply_nested_or_repetitive_yaml_is_an_error() {
        let nested = "[".repeat(1_000_000);
        assert_eq!(
            from_str::<serde_json::Value>(&nested),
            Err("not YAML: too many brackets are open".into())
        );
        let aliases = "a: &a [x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c]\ne: &e [*d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e]\ng: [*f, *f, *f, *f, *f, *f, *f, *f]\n";
        assert_eq!(from_str::<serde_json::Value>(aliases), Err("not YAML: repetition limit exceeded".into()));
    }
}
