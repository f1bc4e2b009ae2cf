//! Rules between fields, which a schema cannot say. They look at the document, not at the
//! types, so that they are checked even where something else is wrong.

use std::cmp::Ordering;

use serde_json::Value;

use super::super::problem::{Problem, member};
use super::labels;
use eviction_core::units::{GoDuration, Limit, ThresholdValue};

/// Checks a whole document.
pub(super) fn check(document: &Value, problems: &mut Vec<Problem>) {
    let policy = &document["policy"];
    for (index, signal) in list(&policy["signals"]) {
        thresholds(signal, &format!("policy.signals[{index}]"), problems);
    }
    repeated(&policy["signals"], "policy.signals", "signal", problems);
    repeated(&policy["rateLimits"], "policy.rateLimits", "scope", problems);
    source(&document["thresholds"], problems);
    repeated(&document["thresholdMargin"]["perSignal"], "thresholdMargin.perSignal", "signal", problems);
    psi(&policy["memory"]["psi"], problems);
    for (index, rule) in list(&policy["protection"]) {
        protection(rule, &format!("policy.protection[{index}]"), problems);
    }
}

fn source(thresholds: &Value, problems: &mut Vec<Problem>) {
    let is_inline = thresholds["source"] == "Inline";
    if given(&thresholds["inline"]) && !is_inline {
        let cause = "needs `source: Inline`; here the thresholds come from elsewhere";
        problems.push(Problem::new("thresholds.inline", cause));
    }
    if is_inline && !given(&thresholds["inline"]) {
        problems.push(Problem::new("thresholds.inline", "is missing: `source: Inline` needs it"));
    }
}

fn list(value: &Value) -> impl Iterator<Item = (usize, &Value)> {
    value.as_array().into_iter().flatten().enumerate().filter(|(_, value)| value.is_object())
}

fn given(value: &Value) -> bool {
    !value.is_null()
}

fn thresholds(signal: &Value, path: &str, problems: &mut Vec<Problem>) {
    let (hard, soft, grace) = (&signal["hard"], &signal["soft"], &signal["gracePeriod"]);
    let mut wrong = |key: &str, cause: String| problems.push(Problem::new(member(path, key), cause));
    if !given(hard) && !given(soft) {
        wrong("hard", "is missing: `hard`, `soft` or both must be given".to_owned());
    }
    if given(soft) && !given(grace) {
        wrong("gracePeriod", "is missing: `soft` needs it".to_owned());
    }
    if given(grace) && !given(soft) {
        wrong("gracePeriod", "goes with `soft`, which is missing".to_owned());
    }
    let limit = |value: &Value| value.as_str().and_then(|text| Limit::parse(text).ok());
    if let (Some(hard), Some(soft)) = (limit(hard), limit(soft)) {
        let order = match (hard.value(), soft.value()) {
            (ThresholdValue::Quantity(hard), ThresholdValue::Quantity(soft)) => Some(hard.cmp(soft)),
            (ThresholdValue::Percentage(hard), ThresholdValue::Percentage(soft)) => hard.partial_cmp(soft),
            // Which is more depends on the node.
            _ => None,
        };
        if order.is_some_and(|order| order != Ordering::Less) {
            wrong("soft", format!("must be more than `hard`, {hard}, got {soft}"));
        }
    }
}

fn repeated(values: &Value, path: &str, key: &str, problems: &mut Vec<Problem>) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, value) in list(values) {
        let Some(name) = value[key].as_str() else { continue };
        if seen.contains(&name) {
            let path = format!("{path}[{index}].{key}");
            problems.push(Problem::new(path, format!("`{name}` is given twice")));
        }
        seen.push(name);
    }
}

fn psi(psi: &Value, problems: &mut Vec<Problem>) {
    let path = "policy.memory.psi";
    let trigger = &psi["trigger"];
    if psi.is_object() && given(&psi["avg10"]) == given(trigger) {
        problems.push(Problem::new(path, "needs one of `avg10` and `trigger`, and not both"));
    }
    let duration = |key: &str| trigger[key].as_str().and_then(|text| GoDuration::parse(text).ok());
    let (stall, window) = (duration("stall"), duration("window"));
    let path = format!("{path}.trigger");
    let bounds = GoDuration::from_nanos(500_000_000)..=GoDuration::from_secs(10);
    if let Some(window) = window.filter(|window| !bounds.contains(window)) {
        problems.push(Problem::new(member(&path, "window"), format!("must be 500ms to 10s, got {window}")));
    }
    if let (Some(stall), Some(window)) = (stall, window)
        && stall > window
    {
        let cause = format!("must be at most `window`, {window}, got {stall}");
        problems.push(Problem::new(member(&path, "stall"), cause));
    }
}

fn protection(rule: &Value, path: &str, problems: &mut Vec<Problem>) {
    let lists = ["namespaces", "priorityClasses"];
    let named = lists.iter().any(|key| rule[*key].as_array().is_some_and(|list| !list.is_empty()));
    if !named && !given(&rule["selector"]) {
        let cause = "fits nothing: give `namespaces`, `selector` or `priorityClasses`";
        problems.push(Problem::new(path, cause));
    }
    for key in lists {
        let names = rule[key].as_array().into_iter().flatten().enumerate();
        for (index, name) in names.filter_map(|(index, name)| Some((index, name.as_str()?))) {
            if let Err(cause) = labels::check_name(name, if key == "namespaces" { 63 } else { 253 }) {
                problems.push(Problem::new(format!("{}[{index}]", member(path, key)), cause));
            }
        }
    }
    selector(&rule["selector"], &member(path, "selector"), problems);
}

fn selector(selector: &Value, path: &str, problems: &mut Vec<Problem>) {
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        let path = member(&member(path, "matchLabels"), key);
        let wrong_value = value.as_str().and_then(|value| labels::check_value(value).err());
        let wrong = labels::check_key(key).err().or(wrong_value);
        problems.extend(wrong.map(|cause| Problem::new(path, cause)));
    }
    for (index, expression) in list(&selector["matchExpressions"]) {
        let path = format!("{path}.matchExpressions[{index}]");
        if let Some(Err(cause)) = expression["key"].as_str().map(labels::check_key) {
            problems.push(Problem::new(member(&path, "key"), cause));
        }
        let values = expression["values"].as_array().map_or(&[][..], Vec::as_slice);
        match expression["operator"].as_str() {
            Some("In" | "NotIn") if values.is_empty() => {
                let cause = "is missing: `In` and `NotIn` need at least one";
                problems.push(Problem::new(member(&path, "values"), cause));
            }
            Some(operator @ ("Exists" | "DoesNotExist")) if !values.is_empty() => {
                let cause = format!("must be empty: `{operator}` compares with nothing");
                problems.push(Problem::new(member(&path, "values"), cause));
            }
            _ => {}
        }
        for (index, value) in values.iter().enumerate() {
            if let Some(Err(cause)) = value.as_str().map(labels::check_value) {
                let path = format!("{path}.values[{index}]");
                problems.push(Problem::new(path, cause));
            }
        }
    }
}
