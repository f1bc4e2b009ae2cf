//! Names of objects, and keys and values of labels: `k8s.io/apimachinery/pkg/util/validation`.

/// `IsDNS1123Subdomain`, or `IsDNS1123Label` for at most 63 characters.
pub(super) fn check_name(name: &str, most: usize) -> Result<(), String> {
    let part = |part: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    let whole = if most > 63 { name.split('.').all(part) } else { part(name) };
    if whole && name.len() <= most {
        return Ok(());
    }
    Err(format!("`{name}` is no name: lower case letters, digits and `-`, at most {most} characters"))
}

/// `IsQualifiedName`: a name, before which there may be a domain and a slash.
pub(super) fn check_key(key: &str) -> Result<(), String> {
    let (domain, name) = match key.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, key),
    };
    let right =
        domain.is_none_or(|domain| check_name(domain, 253).is_ok()) && !name.is_empty() && is_word(name);
    if right {
        return Ok(());
    }
    Err(format!("`{key}` is no label key, such as `app` or `example.com/app`"))
}

/// `IsValidLabelValue`: a word, or nothing.
pub(super) fn check_value(value: &str) -> Result<(), String> {
    if value.is_empty() || is_word(value) {
        return Ok(());
    }
    Err(format!(
        "`{value}` is no label value: letters, digits, `-`, `_` and `.`, at most 63, the first and the last a letter or a digit"
    ))
}

fn is_word(text: &str) -> bool {
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63
        && text.starts_with(outer)
        && text.ends_with(outer)
        && text.chars().all(|c| outer(c) || matches!(c, '-' | '_' | '.'))
}
