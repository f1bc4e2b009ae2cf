//! What is accepted but will surprise: the kubelet says nothing about it.

use super::super::problem::{Problem, member};
use super::fields::{KubeletFields, StringMap};
use eviction_core::policy::Policy;
use eviction_core::signal::Signal;
use eviction_core::units::{GoDuration, ThresholdValue, parse_percentage};

/// Notes on a configuration that is right.
pub(super) fn collect(fields: &KubeletFields, policy: &Policy) -> Vec<Problem> {
    let mut notes = Vec::new();
    let hard = ("evictionHard", &fields.eviction_hard);
    let soft = ("evictionSoft", &fields.eviction_soft);
    for (field, map) in [hard, soft] {
        for (signal, text) in map.iter().flatten() {
            let mut note = |cause: &str| notes.push(Problem::new(member(field, signal), cause));
            if text == "0%" || text == "100%" {
                note("makes no threshold: 0% and 100% turn the signal off");
            }
            if text.ends_with('%') && parse_percentage(text).is_ok_and(f32::is_nan) {
                note("is not a number and is never met");
            }
            if signal.starts_with("containerfs.") {
                note("is ignored: containerfs follows nodefs or imagefs");
            }
        }
    }
    notes.extend(idle("evictionSoftGracePeriod", &fields.eviction_soft_grace_period, |key| {
        has(&fields.eviction_soft, key)
    }));
    notes.extend(idle("evictionMinimumReclaim", &fields.eviction_minimum_reclaim, |key| {
        has(&fields.eviction_hard, key) || has(&fields.eviction_soft, key)
    }));
    for (key, text) in fields.eviction_soft_grace_period.iter().flatten() {
        let zero = GoDuration::parse(text) == Ok(GoDuration::ZERO);
        if zero && has(&fields.eviction_soft, key) {
            let path = member("evictionSoftGracePeriod", key);
            notes.push(Problem::new(path, "is zero, which makes the soft threshold a hard one"));
        }
    }
    for (signal, reclaim) in policy.thresholds.iter().filter_map(reclaim) {
        if matches!(reclaim, ThresholdValue::Percentage(share) if *share > 1.0 || share.is_nan()) {
            let path = member("evictionMinimumReclaim", signal.name());
            notes.push(Problem::new(path, "is more than all there is: once met, never resolved"));
        }
    }
    notes.extend(periods(fields, policy));
    notes
}

fn periods(fields: &KubeletFields, policy: &Policy) -> Vec<Problem> {
    let mut notes = Vec::new();
    let path = "evictionPressureTransitionPeriod";
    if fields.eviction_pressure_transition_period == Some(GoDuration::ZERO) {
        notes.push(Problem::new(path, "zero means the default, 5m0s"));
    }
    if policy.pressure_transition_period < GoDuration::ZERO {
        notes.push(Problem::new(path, "is negative: node conditions never show"));
    }
    let soft = policy.thresholds.iter().any(|threshold| !threshold.is_hard());
    if soft && policy.max_pod_grace_period_seconds <= 0 {
        notes.push(Problem::new(
            "evictionMaxPodGracePeriod",
            "is not above zero: soft evictions give pods no time to end",
        ));
    }
    notes
}

fn reclaim(threshold: &eviction_core::policy::Threshold) -> Option<(Signal, &ThresholdValue)> {
    Some((threshold.signal, threshold.min_reclaim.as_ref()?))
}

fn has(map: &Option<StringMap>, key: &str) -> bool {
    map.as_ref().is_some_and(|map| map.contains_key(key))
}

fn idle<'a>(
    field: &'a str,
    map: &'a Option<StringMap>,
    used: impl Fn(&str) -> bool + 'a,
) -> impl Iterator<Item = Problem> + 'a {
    map.iter()
        .flatten()
        .filter(move |(key, _)| !used(key))
        .map(move |(key, _)| Problem::new(member(field, key), "is idle: there is no such threshold"))
}
