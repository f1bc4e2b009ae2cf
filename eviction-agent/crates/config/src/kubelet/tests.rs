//! Compares with the kubelet: `go.jsonl` was written by a program that calls the packages of v1.36.3. A row
//! has a configuration, the stage at which it fails or an empty text, and the possible error texts, or else
//! the resolved values.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::kubelet_policy;
use eviction_core::policy::{Policy, Threshold};
use eviction_core::units::{Format, Quantity, ThresholdValue};

#[test]
fn every_configuration_resolves_as_in_the_kubelet() {
    let mut count = 0;
    for line in include_str!("go.jsonl").lines() {
        let (configuration, stage, expected): (Value, String, Vec<String>) =
            serde_json::from_str(line).unwrap();
        match kubelet_policy(&configuration) {
            Ok(policy) => {
                assert_eq!(stage, "", "{configuration}");
                assert_eq!(written(&policy), expected, "{configuration}");
            }
            Err((failed, error)) => {
                assert_eq!(failed, stage, "{configuration}: {error}");
                let compared = stage == "thresholds";
                assert!(!compared || expected.contains(&error), "{configuration}: {error}");
            }
        }
        count += 1;
    }
    assert!(count > 250, "only {count} rows");
}

fn written(policy: &Policy) -> Vec<String> {
    let threshold = |threshold: &Threshold| {
        let Threshold { signal, value: limit, grace_period, min_reclaim } = threshold;
        let reclaim = min_reclaim.as_ref().map_or("-".to_owned(), |reclaim| value(reclaim, 1e9));
        format!("{signal} {} {grace_period} {reclaim}", value(limit, 1e15))
    };
    let mut lines: Vec<String> = policy.thresholds.iter().map(threshold).collect();
    lines.sort();
    lines.extend([
        policy.pressure_transition_period.to_string(),
        policy.max_pod_grace_period_seconds.to_string(),
        policy.local_storage_capacity_isolation.to_string(),
        policy.gates.pod_level_resources.to_string(),
        policy.gates.separate_disk_gc.to_string(),
    ]);
    lines
}

fn value(value: &ThresholdValue, scale: f64) -> String {
    match value {
        ThresholdValue::Quantity(quantity) => format!("{quantity} {}", format_of(quantity)),
        ThresholdValue::Percentage(share) => format!("{}%", (f64::from(*share) * scale) as i64),
    }
}

fn format_of(quantity: &Quantity) -> &'static str {
    match quantity.format() {
        Format::BinarySi => "BinarySI",
        Format::DecimalExponent => "DecimalExponent",
        Format::DecimalSi => "DecimalSI",
    }
}

#[test]
fn null_configuration_is_the_default() {
    let policy = kubelet_policy(&Value::Null).unwrap();
    assert_eq!(policy, kubelet_policy(&json!({})).unwrap());
    assert_eq!(policy.thresholds.len(), 6);
}

/// Any JSON, in which keys are often names of fields.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[-+0-9.%eEKMGimsh]{0,8}".prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("evictionHard".to_owned()),
        Just("evictionSoft".to_owned()),
        Just("evictionSoftGracePeriod".to_owned()),
        Just("evictionMinimumReclaim".to_owned()),
        Just("evictionPressureTransitionPeriod".to_owned()),
        Just("enforceNodeAllocatable".to_owned()),
        Just("featureGates".to_owned()),
        Just("memory.available".to_owned()),
        Just("nodefs.inodesFree".to_owned()),
        "\\PC{0,8}",
    ];
    leaf.prop_recursive(3, 40, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_handled_without_panic(configuration in any_json()) {
        let _ = kubelet_policy(&configuration);
    }
}
