//! What is accepted but will surprise: the kubelet says nothing about it.

use super::super::problem::{Problem, member};
use super::fields::{KubeletFields, StringMap};
use eviction_core::policy::Policy;
use eviction_core::units::{GoDuration, ThresholdValue, parse_percentage};

/// Notes on a configuration that is right.
pub(super) fn collect(fields: &KubeletFields, policy: &Policy) -> Vec<Problem> {
    let mut notes = Vec::new();
    let has = |map: &Option<StringMap>, key: &str| map.as_ref().is_some_and(|map| map.contains_key(key));
    for (field, map) in [("evictionHard", &fields.eviction_hard), ("evictionSoft", &fields.eviction_soft)] {
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
    let mut note = |path: String, cause: &str| notes.push(Problem::new(path, cause));
    const IDLE: &str = "is idle: there is no such threshold";
    for (key, text) in fields.eviction_soft_grace_period.iter().flatten() {
        let path = member("evictionSoftGracePeriod", key);
        if !has(&fields.eviction_soft, key) {
            note(path, IDLE);
        } else if GoDuration::parse(text) == Ok(GoDuration::ZERO) {
            note(path, "is zero, which makes the soft threshold a hard one");
        }
    }
    for key in fields.eviction_minimum_reclaim.iter().flatten().map(|(key, _)| key) {
        if !has(&fields.eviction_hard, key) && !has(&fields.eviction_soft, key) {
            note(member("evictionMinimumReclaim", key), IDLE);
        }
    }
    for threshold in &policy.thresholds {
        if let Some(ThresholdValue::Percentage(share)) = threshold.min_reclaim
            && (share > 1.0 || share.is_nan())
        {
            let path = member("evictionMinimumReclaim", threshold.signal.name());
            note(path, "is more than all there is: once met, never resolved");
        }
    }
    let period = "evictionPressureTransitionPeriod".to_owned();
    if fields.eviction_pressure_transition_period == Some(GoDuration::ZERO) {
        note(period, "zero means the default, 5m0s");
    } else if policy.pressure_transition_period < GoDuration::ZERO {
        note(period, "is negative: node conditions never show");
    }
    let soft = policy.thresholds.iter().any(|threshold| !threshold.is_hard());
    if soft && policy.max_pod_grace_period_seconds <= 0 {
        let cause = "is not above zero: soft evictions give pods no time to end";
        note("evictionMaxPodGracePeriod".to_owned(), cause);
    }
    notes
}
