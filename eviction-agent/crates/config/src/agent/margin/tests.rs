use proptest::prelude::*;
use serde_json::json;

use super::super::parse_agent;
use super::{Capacities, ThresholdMargin};
use eviction_core::policy::Threshold;
use eviction_core::signal::Signal;
use eviction_core::units::{Format, GoDuration, Limit, Quantity, ThresholdValue};

const GIB: i64 = 1 << 30;
const NODE: Capacities = Capacities { memory: Some(16 * GIB), pids: Some(32768) };

fn threshold(signal: Signal, value: ThresholdValue) -> Threshold {
    Threshold { signal, value, grace_period: GoDuration::ZERO, min_reclaim: None }
}

fn raised(margin: &ThresholdMargin, signal: Signal, value: &str, node: Capacities) -> String {
    let value = Limit::parse(value).unwrap().value().clone();
    match margin.apply(vec![threshold(signal, value)], node) {
        Err(problems) => problems.to_string(),
        Ok(raised) => match &raised[0].value {
            ThresholdValue::Quantity(quantity) => quantity.to_string(),
            ThresholdValue::Percentage(share) => format!("{:.2}%", share * 100.0),
        },
    }
}

fn parsed(margin: serde_json::Value) -> ThresholdMargin {
    parse_agent(&json!({"thresholdMargin": margin})).unwrap().threshold_margin
}

#[test]
fn default_margin_is_5_percent_and_at_least_32_mi_for_memory() {
    let default = ThresholdMargin::default();
    let memory = |value: &str| raised(&default, Signal::MemoryAvailable, value, NODE);
    assert_eq!(memory("100Mi"), "132Mi");
    assert_eq!(memory("1Gi"), "1076Mi", "51.2Mi, rounded up");
    assert_eq!(memory("2000Mi"), "2100Mi");
    assert_eq!(memory("10%"), "10.50%");
    assert_eq!(memory("1%"), "1.20%", "32Mi of 16Gi are 0.195 %");
    assert_eq!(raised(&default, Signal::AllocatableMemoryAvailable, "100Mi", NODE), "132Mi");
    assert_eq!(raised(&default, Signal::PidAvailable, "1000", NODE), "1050");
    assert_eq!(raised(&default, Signal::NodeFsAvailable, "10%", NODE), "10.00%");
    let unknown = Capacities::default();
    assert_eq!(raised(&default, Signal::MemoryAvailable, "1%", unknown), "1.05%");
    assert_eq!(raised(&default, Signal::MemoryAvailable, "100Mi", unknown), "132Mi");
}

#[test]
fn margin_is_at_most_half_of_the_remaining_capacity() {
    let small = Capacities { memory: Some(120 << 20), pids: Some(100) };
    let default = ThresholdMargin::default();
    assert_eq!(raised(&default, Signal::MemoryAvailable, "100Mi", small), "110Mi");
    assert_eq!(raised(&default, Signal::MemoryAvailable, "200Mi", small), "200Mi");
    assert_eq!(raised(&default, Signal::MemoryAvailable, "99%", small), "99.50%");
    let large = parsed(json!({"value": "1Ti"}));
    assert_eq!(raised(&large, Signal::MemoryAvailable, "2Gi", NODE), "9Gi");
    assert_eq!(raised(&large, Signal::PidAvailable, "100", NODE), "16434");
}

#[test]
fn per_signal_margins_replace_the_general_margin() {
    let margin = parsed(json!({"value": "10%", "perSignal": [
        {"signal": "memory.available", "value": "1%"},
        {"signal": "pid.available", "value": "64"},
        {"signal": "nodefs.available", "value": "20%"},
        {"signal": "imagefs.available", "value": "1Gi"},
        {"signal": "allocatableMemory.available", "value": "0"},
    ]}));
    assert_eq!(raised(&margin, Signal::MemoryAvailable, "1000Mi", NODE), "1010Mi");
    assert_eq!(raised(&margin, Signal::PidAvailable, "1000", NODE), "1064");
    assert_eq!(raised(&margin, Signal::NodeFsAvailable, "10%", NODE), "12.00%");
    assert_eq!(raised(&margin, Signal::ImageFsAvailable, "10Gi", NODE), "11Gi");
    assert_eq!(raised(&margin, Signal::AllocatableMemoryAvailable, "1Gi", NODE), "1Gi");
    assert_eq!(raised(&margin, Signal::AllocatableMemoryAvailable, "10%", NODE), "10.00%");
    assert_eq!(
        raised(&margin, Signal::ImageFsAvailable, "10%", NODE),
        "thresholdMargin.perSignal[3].value: 1Gi cannot be added to a percentage: how much there is in all of what \
         imagefs.available measures is not known here (give a percentage of the threshold)"
    );
}

#[test]
fn values_that_disable_a_signal_get_no_margin() {
    let values = [
        ThresholdValue::Percentage(0.0),
        ThresholdValue::Percentage(1.0),
        ThresholdValue::Percentage(f32::NAN),
        ThresholdValue::Quantity(Quantity::ZERO),
    ];
    for value in values {
        let before = threshold(Signal::MemoryAvailable, value);
        let after = ThresholdMargin::default().apply(vec![before.clone()], NODE).unwrap();
        assert_eq!(format!("{after:?}"), format!("{:?}", [before]));
    }
}

proptest! {
    #[test]
    fn margin_never_lowers_a_threshold_or_exceeds_the_capacity(
        by in prop_oneof!["[0-9]{1,2}%", "[0-9]{1,6}(Ki|Mi|Gi|m)?"],
        value in 1..i64::MAX,
        share in 0.0001..1.0_f32,
        capacity in prop::option::of(1..i64::MAX),
        signal in prop::sample::select(Signal::ALL.to_vec()),
    ) {
        let margin = parsed(json!({"value": by, "perSignal": [{"signal": signal, "value": by}]}));
        let capacities = Capacities { memory: capacity, pids: capacity };
        let quantity = ThresholdValue::Quantity(Quantity::from_i64(value, Format::BinarySi));
        for before in [quantity, ThresholdValue::Percentage(share)] {
            let given = vec![threshold(signal, before.clone())];
            let Ok(after) = margin.apply(given, capacities) else { continue };
            let all = capacity.unwrap_or(GIB);
            let (before, after) = (before.quantity(all), after[0].value.quantity(all));
            prop_assert!(after >= before, "{before} {after}");
            let disk = matches!(signal.condition(), eviction_core::signal::NodeCondition::DiskPressure);
            if let Some(all) = capacity.filter(|_| !disk) {
                let all = Quantity::from_i64(all, Format::BinarySi);
                prop_assert!(before >= all || after <= all, "{before} {after} of {all}");
            }
        }
    }
}
