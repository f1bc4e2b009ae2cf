//! Which measure of memory is used, and which further conditions must be fulfilled.

use super::*;

fn measured_by(measure: MemoryMeasure) -> Engine {
    enhanced_engine(enhanced(vec![hard(MemoryAvailable, "100")], |preferences| {
        preferences.memory.measure = measure
    }))
}

#[test]
fn configured_memory_measure_decides_and_all_are_reported() {
    let seen = |seconds| {
        node_with(50, seconds, |detail| {
            detail.mem_available = Reading::Known(400);
            detail.active_file = Reading::Known(60);
        })
    };
    for (measure, available, is_evicted) in [
        (MemoryMeasure::WorkingSet, 50, true),
        (MemoryMeasure::MemAvailable, 400, false),
        (MemoryMeasure::WorkingSetMinusActiveFile, 110, false),
    ] {
        let mut engine = measured_by(measure);
        let decision = sample(&mut engine, 1, seen(1));
        assert_eq!(evicts(&decision), is_evicted, "{measure:?}");
        let observed = decision.evaluation().unwrap().observations.get(MemoryAvailable).unwrap();
        assert_eq!((observed.available, observed.capacity), (available, 1000));
        let report = serde_json::to_value(DecisionRecord::of(&decision)).unwrap();
        let memory = &report["evaluation"]["memory"];
        assert_eq!(memory["available_by_working_set"], 50, "{memory}");
        assert_eq!(memory["mem_available"], 400);
        assert_eq!(memory["available_without_active_file"], 110);
    }
}

#[test]
fn unknown_memory_measure_evicts_no_pod() {
    for measure in [MemoryMeasure::MemAvailable, MemoryMeasure::WorkingSetMinusActiveFile] {
        let mut engine = measured_by(measure);
        let absurd = |detail: &mut MemoryDetail| {
            detail.mem_available = Reading::Known(u64::MAX);
            detail.active_file = Reading::Known(u64::MAX);
        };
        assert!(!evicts(&sample(&mut engine, 1, node_with(50, 1, |_| ()))), "{measure:?}");
        assert!(!evicts(&sample(&mut engine, 2, node_with(50, 2, absurd))), "{measure:?}");
    }
}

#[test]
fn memory_threshold_is_not_met_without_enough_stalls() {
    for stalled in [PsiKind::Some, PsiKind::Full] {
        let mut engine = enhanced_engine(enhanced(vec![hard(MemoryAvailable, "100")], |preferences| {
            preferences.memory.psi = Some(MemoryPsi { kind: stalled, avg10: Some(12.5), trigger: None });
        }));
        let share = |seconds, hundredths| {
            node_with(50, seconds, |detail| match stalled {
                PsiKind::Some => detail.some_avg10 = hundredths,
                PsiKind::Full => detail.full_avg10 = hundredths,
            })
        };
        let few_stalls = sample(&mut engine, 1, share(1, Reading::Known(1249)));
        assert!(few_stalls.evaluation().unwrap().met.is_empty());
        assert_eq!(
            few_stalls.evaluation().unwrap().context.memory_conditions,
            MemoryConditions::TooLittleStall
        );
        assert!(few_stalls.conditions.is_empty(), "not met is not met");
        let unknown = sample(&mut engine, 2, share(2, Reading::Unknown(UnknownReason::Stale)));
        assert!(!evicts(&unknown));
        assert_eq!(
            unknown.evaluation().unwrap().context.memory_conditions,
            MemoryConditions::Unknown(UnknownReason::Stale)
        );
        assert!(evicts(&sample(&mut engine, 3, share(3, Reading::Known(1250)))));
    }
}

#[test]
fn end_of_the_stalls_resets_the_grace_period() {
    let mut engine = enhanced_engine(enhanced(vec![soft(MemoryAvailable, "100", 10)], |preferences| {
        let trigger = PsiTrigger { stall: GoDuration::from_secs(1), window: GoDuration::from_secs(2) };
        let psi = MemoryPsi { kind: PsiKind::Some, avg10: None, trigger: Some(trigger) };
        preferences.memory.psi = Some(psi);
    }));
    for (seconds, stalled, is_evicted) in [
        (0, true, false),
        (9, true, false),
        (10, false, false),
        (11, true, false),
        (20, true, false),
        (21, true, true),
    ] {
        let node = node_with(50, seconds, |detail| detail.stalled = Reading::Known(stalled));
        assert_eq!(evicts(&sample(&mut engine, seconds, node)), is_evicted, "at {seconds}");
    }
}

#[test]
fn memory_threshold_is_not_met_until_enough_swap_is_used() {
    let requiring = |text: &str| {
        let limit = Limit::parse(text).unwrap();
        enhanced_engine(enhanced(vec![hard(MemoryAvailable, "100")], |preferences| {
            preferences.memory.swap_used_at_least = Some(limit);
        }))
    };
    for (required, used, total, is_evicted) in [
        ("50%", 499, 1000, false),
        ("50%", 500, 1000, true),
        ("600", 599, 1000, false),
        ("600", 600, 1000, true),
        ("5Ki", 1000, 1000, true),
        ("50%", 0, 0, true),
        ("600", 0, 0, true),
    ] {
        let node = node_with(50, 1, |detail| {
            detail.swap_used = Reading::Known(used);
            detail.swap_total = Reading::Known(total);
        });
        assert_eq!(
            evicts(&sample(&mut requiring(required), 1, node)),
            is_evicted,
            "{required}: {used} of {total}"
        );
    }
    assert!(!evicts(&sample(&mut requiring("600"), 1, node_with(50, 1, |_| ()))), "not known");
}

#[test]
fn memory_conditions_do_not_apply_to_disk_thresholds() {
    let mut engine = enhanced_engine(enhanced(vec![hard(NodeFsAvailable, "950")], |preferences| {
        let pressure = MemoryPsi { kind: PsiKind::Some, avg10: Some(50.0), trigger: None };
        preferences.memory.psi = Some(pressure);
    }));
    assert_eq!(sample(&mut engine, 1, node(500, 900, at(1))).evaluation().unwrap().met.len(), 1);
}
