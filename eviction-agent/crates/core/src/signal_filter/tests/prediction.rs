//! Thresholds that are predicted to be met, and trends of values.

use super::*;

fn predicting(predict: PredictionMode) -> Engine {
    enhanced_engine(enhanced(vec![hard(MemoryAvailable, "100")], |preferences| {
        preferences.prediction.mode = predict
    }))
}

/// Returns a node on which memory falls by 20 a second from 500: 100 is reached after 20 s.
fn falling(seconds: i64) -> NodeStats {
    node((500 - 20 * seconds).unsigned_abs(), 900, at(seconds))
}

#[test]
fn imminent_threshold_is_reported_raises_conditions_or_evicts() {
    for (predict, raised, is_evicted) in [
        (PredictionMode::Off, 0, false),
        (PredictionMode::Condition, 1, false),
        (PredictionMode::Evict, 1, true),
    ] {
        let mut engine = predicting(predict);
        for seconds in 0..3 {
            let decision = sample(&mut engine, seconds, falling(seconds));
            assert!(!evicts(&decision) && decision.conditions.is_empty(), "too few samples");
        }
        let decision = sample(&mut engine, 3, falling(3));
        assert_eq!(decision.evaluation().unwrap().context.imminent, [0], "{predict:?}");
        assert_eq!((decision.conditions.len(), evicts(&decision)), (raised, is_evicted), "{predict:?}");
        let report = serde_json::to_value(DecisionRecord::of(&decision)).unwrap();
        let evaluation = &report["evaluation"];
        assert_eq!(evaluation["signals"][0]["trend"]["per_second"], -20.0);
        if !is_evicted {
            assert_eq!(evaluation["thresholds"][0]["eta"]["expected"], "17s", "{evaluation}");
            assert_eq!(evaluation["thresholds"][0]["imminent"], true);
        } else {
            assert_eq!(evaluation["thresholds"][0]["met"]["by_prediction"], true);
        }
    }
}

#[test]
fn far_or_uncertain_thresholds_are_not_imminent() {
    let mut slow = predicting(PredictionMode::Evict);
    for seconds in 0..8_i64 {
        let node = node(900 - 10 * seconds.unsigned_abs(), 900, at(seconds));
        assert!(!evicts(&sample(&mut slow, seconds, node)), "80 s away");
    }
    let mut uneven = predicting(PredictionMode::Evict);
    for (seconds, available) in (0..8).zip([300, 500, 290, 480, 280, 470, 270, 460]) {
        assert!(
            !evicts(&sample(&mut uneven, seconds, node(available, 900, at(seconds)))),
            "it goes up as well"
        );
    }
}

#[test]
fn no_threshold_is_predicted_while_memory_conditions_are_not_met() {
    let mut engine = enhanced_engine(enhanced(vec![hard(MemoryAvailable, "100")], |preferences| {
        preferences.prediction.mode = PredictionMode::Evict;
        let pressure = MemoryPsi { kind: PsiKind::Some, avg10: Some(1.0), trigger: None };
        preferences.memory.psi = Some(pressure);
    }));
    for seconds in 0..15 {
        let mut node = falling(seconds);
        node.memory_detail.some_avg10 = Reading::Known(0);
        let decision = sample(&mut engine, seconds, node);
        assert!(!evicts(&decision) && decision.conditions.is_empty());
    }
}
