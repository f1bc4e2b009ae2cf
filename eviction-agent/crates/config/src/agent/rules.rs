//! Ranges of values and rules between fields. They are checked on the document and not on the types, so that
//! they are checked even if other values are invalid.

use std::cmp::Ordering;

use eviction_core::units::{GoDuration, Limit, Quantity, ThresholdValue};
use serde_json::Value;

use crate::problem::{Problem, member, quoted};

/// The ranges of numbers: minimum and maximum. They are the same as in the schema.
pub(super) const RANGES: &[(&str, f64, f64)] = &[
    ("thresholds.configz.port", 1.0, 65535.0),
    ("probes.nearThresholdPercent", 0.0, 100.0),
    ("evictionRequests.maxInFlight", 1.0, 64.0),
    ("memoryLimits.warnPercent", 1.0, 50.0),
    ("policy.maxEvictionsPerSync", 1.0, 100.0),
    ("policy.unavailableAfterSamples", 1.0, 1000.0),
    ("policy.rateLimits[].maxEvictions", 1.0, 10_000.0),
    ("policy.memory.psi.avg10", 0.01, 100.0),
];

/// The durations, and whether they may be zero. They are the same as in the schema.
pub(super) const DURATIONS: &[(&str, bool)] = &[
    ("thresholds.inline.evictionPressureTransitionPeriod", true),
    ("thresholds.inline.imageMinimumGCAge", true),
    ("probes.detachAfter", true),
    ("eviction.freezeTimeout", false),
    ("evictionRequests.timeout", false),
    ("evictionRequests.maxAge", false),
    ("recorder.maxAge", false),
    ("policy.coolDownAfterOomKill", true),
    ("policy.soft.gracePeriodCap", true),
    ("policy.signals[].gracePeriod", false),
    ("policy.rateLimits[].window", false),
    ("policy.prediction.horizon", false),
    ("policy.memory.psi.trigger.stall", false),
    ("policy.memory.psi.trigger.window", false),
];

/// The values that a kubelet accepts in `enforceNodeAllocatable`. No kubelet checks inline values.
const ENFORCED: [&str; 6] = [
    "pods",
    "system-reserved",
    "system-reserved-compressible",
    "kube-reserved",
    "kube-reserved-compressible",
    "none",
];

/// Lists in which each value of this field may occur only once.
const UNIQUE: [&str; 3] =
    ["policy.signals[].signal", "policy.rateLimits[].scope", "thresholdMargin.perSignal[].signal"];

/// Optional paths and names. An empty text would be used as a path or name.
const NOT_EMPTY: [&str; 6] = [
    "recorder.directory",
    "thresholds.files.config",
    "thresholds.files.configDir",
    "thresholds.configz.address",
    "thresholds.configz.certificateAuthority",
    "thresholds.configz.serverName",
];

/// Checks a whole document.
pub(super) fn check(document: &Value, problems: &mut Vec<Problem>) {
    for (place, least, most) in RANGES {
        for (path, value) in values_at(document, place) {
            if value.as_f64().is_some_and(|number| !(*least..=*most).contains(&number)) {
                problems.push(Problem::new(path, format!("must be {least} to {most}, got {value}")));
            }
        }
    }
    for (place, zero) in DURATIONS {
        check_texts(document, place, problems, |text| match GoDuration::parse(text) {
            Ok(it) if it < GoDuration::ZERO && *zero => Err(format!("must not be negative, got {text}")),
            Ok(it) if it <= GoDuration::ZERO && !*zero => Err(format!("must be more than zero, got {text}")),
            _ => Ok(()),
        });
    }
    for place in UNIQUE {
        let mut seen: Vec<String> = Vec::new();
        check_texts(document, place, problems, |text| {
            let is_repeated = seen.iter().any(|other| other == text);
            seen.push(text.to_owned());
            if is_repeated { Err(format!("`{text}` is given twice")) } else { Ok(()) }
        });
    }
    for place in ["thresholdMargin.minimum", "recorder.maxSize", "recorder.minFreeDisk"] {
        check_texts(document, place, problems, |text| match Quantity::parse(text) {
            Ok(quantity) if quantity.signum() < 0 => Err(format!("must not be negative, got {quantity}")),
            _ => Ok(()),
        });
    }
    for place in NOT_EMPTY {
        check_texts(document, place, problems, |text| match text {
            "" => Err("must not be empty; leave it out for none".to_owned()),
            _ => Ok(()),
        });
    }
    check_texts(document, "reclaim.criSocket", problems, |text| {
        let is_absolute = text.strip_prefix("unix://").unwrap_or(text).starts_with('/');
        let cause = || format!("must be `unix:///PATH` or an absolute path, got {text:?}");
        if is_absolute { Ok(()) } else { Err(cause()) }
    });
    check_texts(document, "thresholds.inline.enforceNodeAllocatable[]", problems, |text| {
        let is_known = ENFORCED.contains(&text);
        if is_known { Ok(()) } else { Err(format!("must be one of {}, got {text:?}", quoted(&ENFORCED))) }
    });
    check_source(&document["thresholds"], problems);
    for (path, signal) in values_at(document, "policy.signals[]") {
        check_thresholds(signal, &path, problems);
    }
    for (path, psi) in values_at(document, "policy.memory.psi") {
        check_psi(psi, &path, problems);
    }
    for (path, rule) in values_at(document, "policy.protection[]") {
        check_protection(rule, &path, problems);
    }
}

/// Returns the values at a place, each with its path. `[]` stands for all items of a list.
fn values_at<'a>(document: &'a Value, place: &str) -> Vec<(String, &'a Value)> {
    let mut found = vec![(String::new(), document)];
    for part in place.split('.') {
        let key = part.trim_end_matches("[]");
        found = found
            .into_iter()
            .filter_map(|(path, value)| Some((member(&path, key), value.get(key)?)))
            .flat_map(|(path, value)| match part.ends_with("[]") {
                true => {
                    let items = value.as_array().into_iter().flatten().enumerate();
                    items.map(|(index, item)| (format!("{path}[{index}]"), item)).collect()
                }
                false => vec![(path, value)],
            })
            .collect();
    }
    found
}

/// Checks the texts at a place.
fn check_texts(
    document: &Value,
    place: &str,
    problems: &mut Vec<Problem>,
    mut check: impl FnMut(&str) -> Result<(), String>,
) {
    for (path, value) in values_at(document, place) {
        if let Some(Err(cause)) = value.as_str().map(&mut check) {
            problems.push(Problem::new(path, cause));
        }
    }
}

fn check_source(thresholds: &Value, problems: &mut Vec<Problem>) {
    let is_inline = thresholds["source"] == "Inline";
    let cause = match (is_inline, !thresholds["inline"].is_null()) {
        (false, true) => "needs `source: Inline`; here the thresholds come from elsewhere",
        (true, false) => "is missing: `source: Inline` needs it",
        _ => return,
    };
    problems.push(Problem::new("thresholds.inline", cause));
}

fn check_thresholds(signal: &Value, path: &str, problems: &mut Vec<Problem>) {
    let (hard, soft, grace) = (&signal["hard"], &signal["soft"], &signal["gracePeriod"]);
    let mut wrong = |key: &str, cause: String| problems.push(Problem::new(member(path, key), cause));
    if signal.is_object() && hard.is_null() && soft.is_null() {
        wrong("hard", "is missing: `hard`, `soft` or both must be given".to_owned());
    }
    if !soft.is_null() && grace.is_null() {
        wrong("gracePeriod", "is missing: `soft` needs it".to_owned());
    }
    if !grace.is_null() && soft.is_null() {
        wrong("gracePeriod", "goes with `soft`, which is missing".to_owned());
    }
    let limit = |value: &Value| value.as_str().and_then(|text| Limit::parse(text).ok());
    if let (Some(hard), Some(soft)) = (limit(hard), limit(soft)) {
        let order = match (hard.value(), soft.value()) {
            (ThresholdValue::Quantity(hard), ThresholdValue::Quantity(soft)) => Some(hard.cmp(soft)),
            (ThresholdValue::Percentage(hard), ThresholdValue::Percentage(soft)) => hard.partial_cmp(soft),
            // Which one is larger depends on the node.
            _ => None,
        };
        if order.is_some_and(|order| order != Ordering::Less) {
            wrong("soft", format!("must be more than `hard`, {hard}, got {soft}"));
        }
    }
}

fn check_psi(psi: &Value, path: &str, problems: &mut Vec<Problem>) {
    let trigger = &psi["trigger"];
    if psi.is_object() && psi["avg10"].is_null() == trigger.is_null() {
        problems.push(Problem::new(path, "needs one of `avg10` and `trigger`, and not both"));
    }
    let duration = |key: &str| trigger[key].as_str().and_then(|text| GoDuration::parse(text).ok());
    let path = member(path, "trigger");
    let Some(window) = duration("window").filter(|window| *window > GoDuration::ZERO) else { return };
    if !(GoDuration::from_nanos(500_000_000)..=GoDuration::from_secs(10)).contains(&window) {
        problems.push(Problem::new(member(&path, "window"), format!("must be 500ms to 10s, got {window}")));
    }
    if let Some(stall) = duration("stall").filter(|stall| *stall > window) {
        let cause = format!("must be at most `window`, {window}, got {stall}");
        problems.push(Problem::new(member(&path, "stall"), cause));
    }
}

fn check_protection(rule: &Value, path: &str, problems: &mut Vec<Problem>) {
    let is_filled = |key: &str| rule[key].as_array().is_some_and(|list| !list.is_empty());
    if rule.is_object()
        && !is_filled("namespaces")
        && !is_filled("priorityClasses")
        && rule["selector"].is_null()
    {
        let cause = "fits nothing: give `namespaces`, `selector` or `priorityClasses`";
        problems.push(Problem::new(path, cause));
    }
    let mut found = Vec::new();
    check_texts(rule, "namespaces[]", &mut found, |name| check_name(name, 63));
    check_texts(rule, "priorityClasses[]", &mut found, |name| check_name(name, 253));
    let expressions = "selector.matchExpressions[]";
    check_texts(rule, &format!("{expressions}.key"), &mut found, check_key);
    check_texts(rule, &format!("{expressions}.values[]"), &mut found, check_value);
    for (key, value) in rule["selector"]["matchLabels"].as_object().into_iter().flatten() {
        let wrong_value = value.as_str().and_then(|value| check_value(value).err());
        let cause = check_key(key).err().or(wrong_value);
        found.extend(cause.map(|cause| Problem::new(member("selector.matchLabels", key), cause)));
    }
    for (path, expression) in values_at(rule, expressions) {
        let is_empty = expression["values"].as_array().is_none_or(Vec::is_empty);
        let cause = match expression["operator"].as_str() {
            Some("In" | "NotIn") if is_empty => "is missing: `In` and `NotIn` need at least one".to_owned(),
            Some(operator @ ("Exists" | "DoesNotExist")) if !is_empty => {
                format!("must be empty: `{operator}` compares with nothing")
            }
            _ => continue,
        };
        found.push(Problem::new(member(&path, "values"), cause));
    }
    problems.extend(
        found.into_iter().map(|problem| Problem { path: format!("{path}.{}", problem.path), ..problem }),
    );
}

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

/// `IsQualifiedName`: a name with an optional domain and slash before it.
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

/// `IsValidLabelValue`: a word, or the empty text.
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
