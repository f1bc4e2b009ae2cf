//! Resolves the eviction maps to thresholds: `ParseThresholdConfig`.
//!
//! The kubelet stops at the first error, and processes the entries of a map in random order. This code
//! reports all errors, with maps in the kubelet's order and entries by key, so the first error is one that
//! the kubelet could have reported.

use std::collections::BTreeMap;

use eviction_core::policy::Threshold;
use eviction_core::signal::Signal;
use eviction_core::threshold::room;
use eviction_core::units::{GoDuration, ThresholdValue};

use super::super::problem::{Problem, did_you_mean, member};
use super::fields::{KubeletFields, StringMap};
use crate::read::example;

/// Returns the thresholds in the kubelet's order, and within a map by signal. The second value is the
/// capacity of the kubelet's list of them.
pub(super) fn resolve(fields: &KubeletFields, problems: &mut Vec<Problem>) -> (Vec<Threshold>, usize) {
    let hard = entries("evictionHard", &fields.eviction_hard, problems, threshold);
    let soft = entries("evictionSoft", &fields.eviction_soft, problems, threshold);
    let graces = &fields.eviction_soft_grace_period;
    let graces = entries("evictionSoftGracePeriod", graces, problems, grace_period);
    let reclaims = &fields.eviction_minimum_reclaim;
    let reclaims = entries("evictionMinimumReclaim", reclaims, problems, minimum_reclaim);
    for key in fields.eviction_soft.iter().flat_map(BTreeMap::keys) {
        let is_threshold =
            Signal::from_name(key).is_some_and(|signal| matches!(soft.get(&signal), Some(Some(_))));
        let graces = fields.eviction_soft_grace_period.as_ref();
        if is_threshold && graces.is_none_or(|graces| !graces.contains_key(key)) {
            let cause = format!("grace period must be specified for the soft eviction threshold {key}");
            problems.push(Problem::new(member("evictionSoft", key), cause));
        }
    }
    let make = |signal: Signal, value: &Option<ThresholdValue>, grace_period| {
        Some(Threshold {
            signal,
            value: value.clone()?,
            grace_period,
            min_reclaim: reclaims.get(&signal).cloned(),
        })
    };
    let mut thresholds: Vec<Threshold> = Vec::new();
    thresholds.extend(hard.iter().filter_map(|(signal, value)| make(*signal, value, GoDuration::ZERO)));
    thresholds.extend(soft.iter().filter_map(|(signal, value)| make(*signal, value, *graces.get(signal)?)));
    let hards = hard.values().flatten().count();
    let softs = thresholds.len() - hards;
    let mut copied = None;
    if fields.enforced().contains(&"pods") {
        let copies: Vec<Threshold> = thresholds.iter().filter_map(Threshold::copy_for_all_pods).collect();
        copied = Some(copies.len());
        thresholds.extend(copies);
    }
    (thresholds, room(hards, softs, copied))
}

/// Returns the valid entries of one map.
fn entries<T>(
    field: &str,
    map: &Option<StringMap>,
    problems: &mut Vec<Problem>,
    parse: fn(Signal, &str) -> Result<T, String>,
) -> BTreeMap<Signal, T> {
    let mut parsed = BTreeMap::new();
    for (key, text) in map.iter().flatten() {
        let path = || member(field, key);
        let Some(signal) = Signal::from_name(key) else {
            let names = Signal::ALL.map(Signal::name);
            problems.push(
                Problem::new(path(), format!("unsupported eviction signal {key}"))
                    .with_help(did_you_mean(key, names)),
            );
            continue;
        };
        match parse(signal, text) {
            Ok(value) => {
                parsed.insert(signal, value);
            }
            Err(cause) => problems.push(Problem::new(path(), &cause).with_help(example(&cause))),
        }
    }
    parsed
}

/// `parseThresholdStatement`. With `0%` and `100%` there is no threshold.
fn threshold(signal: Signal, text: &str) -> Result<Option<ThresholdValue>, String> {
    if text == "0%" || text == "100%" {
        return Ok(None);
    }
    match ThresholdValue::parse(text)? {
        ThresholdValue::Percentage(share) if share < 0.0 => {
            Err(format!("eviction percentage threshold {signal} must be >= 0%: {text}"))
        }
        ThresholdValue::Percentage(share) if share > 1.0 => {
            Err(format!("eviction percentage threshold {signal} must be <= 100%: {text}"))
        }
        ThresholdValue::Quantity(quantity) if quantity.signum() <= 0 => {
            Err(format!("eviction threshold {signal} must be positive: {quantity}"))
        }
        value => Ok(Some(value)),
    }
}

/// `parseGracePeriods`.
fn grace_period(_: Signal, text: &str) -> Result<GoDuration, String> {
    let duration = GoDuration::parse(text)?;
    if duration < GoDuration::ZERO {
        return Err(format!("invalid eviction grace period specified: {text}, must be a positive value"));
    }
    Ok(duration)
}

/// `parseMinimumReclaims`; a percentage has no upper bound.
fn minimum_reclaim(signal: Signal, text: &str) -> Result<ThresholdValue, String> {
    match ThresholdValue::parse(text)? {
        ThresholdValue::Percentage(share) if share <= 0.0 => {
            Err(format!("eviction percentage minimum reclaim {signal} must be positive: {text}"))
        }
        ThresholdValue::Quantity(quantity) if quantity.signum() < 0 => {
            Err(format!("negative eviction minimum reclaim specified for {signal}"))
        }
        value => Ok(value),
    }
}
