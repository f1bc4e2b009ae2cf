//! YAML as Kubernetes' tools write it, with bounds on what a text can cost.

use serde::de::DeserializeOwned;

/// The parser takes time with the square of the number of open brackets.
const MOST_OPEN_BRACKETS: usize = 5_000;

/// Reads one YAML document.
///
/// # Errors
/// If it is no YAML, has another form, or nests without end.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    if most_open_brackets(text) > MOST_OPEN_BRACKETS {
        return Err("not YAML: too many brackets are open".to_owned());
    }
    serde_yaml_ng::from_str(text).map_err(|error| format!("not YAML: {error}"))
}

/// Brackets in texts count as well: those come in pairs, more or less.
fn most_open_brackets(text: &str) -> usize {
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
    fn what_costs_too_much_is_an_error() {
        let nested = "[".repeat(1_000_000);
        assert_eq!(
            from_str::<serde_json::Value>(&nested),
            Err("not YAML: too many brackets are open".into())
        );
        let aliases = "a: &a [x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c]\ne: &e [*d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e]\ng: [*f, *f, *f, *f, *f, *f, *f, *f]\n";
        assert_eq!(from_str::<serde_json::Value>(aliases), Err("not YAML: repetition limit exceeded".into()));
    }
}
