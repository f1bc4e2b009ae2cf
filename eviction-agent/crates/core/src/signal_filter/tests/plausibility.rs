//! Which readings are rejected, and when a signal becomes unavailable.

use super::*;

fn memory(available: u64, working_set: u64, seconds: i64) -> NodeStats {
    let memory =
        MemoryStats { available: Some(available), working_set: Some(working_set), time: Some(at(seconds)) };
    NodeStats { memory: Reading::Known(memory), ..node(1, 900, at(seconds)) }
}

fn memory_and_disk_engine() -> Engine {
    enhanced_engine(enhanced(vec![hard(MemoryAvailable, "100"), hard(NodeFsAvailable, "10")], |_| ()))
}

fn rejections(decision: &Decision) -> Vec<(Signal, Implausible)> {
    decision.evaluation().unwrap().context.rejected.iter().map(|it| (it.signal, it.reason)).collect()
}

#[test]
fn available_below_zero_or_above_capacity_is_always_rejected() {
    let mut engine = memory_and_disk_engine();
    let fs = FsStats { available: Some(u64::MAX), capacity: Some(1000), ..FsStats::default() };
    for seconds in [0, 10, 20, 30, 40, 50] {
        let node = NodeStats { node_fs: Reading::Known(fs), ..node(900, 900, at(seconds)) };
        let decision = sample(&mut engine, seconds, node);
        assert_eq!(rejections(&decision), [(NodeFsAvailable, Implausible::NegativeAvailable)]);
        let fs = FsStats { available: Some(1001), ..fs };
        let node = NodeStats { node_fs: Reading::Known(fs), ..node };
        let decision = sample(&mut engine, seconds + 5, node);
        assert_eq!(rejections(&decision), [(NodeFsAvailable, Implausible::AvailableAboveCapacity)]);
        assert_eq!(
            decision.evaluation().unwrap().observations.reading(NodeFsAvailable),
            Reading::Unknown(UnknownReason::Implausible)
        );
    }
}

#[test]
fn pid_limit_below_the_running_processes_is_plausible() {
    let mut engine = memory_and_disk_engine();
    let processes = ProcessStats { max: Some(1000), running: Some(1200), ..ProcessStats::default() };
    let node = NodeStats { processes: Reading::Known(processes), ..node(900, 900, at(0)) };
    let decision = sample(&mut engine, 0, node);
    assert_eq!(rejections(&decision), []);
    let seen = decision.evaluation().unwrap().observations.get(PidAvailable).unwrap();
    assert_eq!((seen.available, seen.capacity), (-200, 1000));
}

#[test]
fn sudden_drop_to_zero_is_accepted_only_once_it_lasts() {
    let mut engine = memory_and_disk_engine();
    sample(&mut engine, 0, memory(500, 500, 0));
    let rejected = vec![(MemoryAvailable, Implausible::SuddenlyNothing { before: 500 })];
    for seconds in [1, 2, 3, 9] {
        let decision = sample(&mut engine, seconds, memory(0, 1000, seconds));
        assert_eq!(rejections(&decision), rejected, "at {seconds}");
        assert!(!evicts(&decision));
    }
    let same_statistics = sample(&mut engine, 11, memory(0, 1000, 9));
    assert_eq!(rejections(&same_statistics), rejected);
    assert!(evicts(&sample(&mut engine, 12, memory(0, 1000, 12))));
}

#[test]
fn repeated_short_glitches_evict_no_pod() {
    let mut engine = memory_and_disk_engine();
    for seconds in [0, 10, 20, 30, 40, 50, 60] {
        sample(&mut engine, seconds, memory(500, 500, seconds));
        let decision = sample(&mut engine, seconds + 1, memory(0, 1000, seconds + 1));
        assert!(!evicts(&decision), "at {seconds}");
    }
}

#[test]
fn sudden_drop_to_zero_with_an_explanation_is_accepted_at_once() {
    let node_with_detail = |set_detail: fn(&mut MemoryDetail)| {
        let mut node = memory(0, 1000, 1);
        set_detail(&mut node.memory_detail);
        node
    };
    let low_mem_available = node_with_detail(|detail| detail.mem_available = Reading::Known(99));
    let stalls = node_with_detail(|detail| detail.some_avg10 = Reading::Known(1));
    for node in [low_mem_available, stalls] {
        let mut engine = memory_and_disk_engine();
        sample(&mut engine, 0, memory(500, 500, 0));
        assert!(evicts(&sample(&mut engine, 1, node)));
    }
    for (kills, is_evicted) in [(0, false), (1, true)] {
        let mut engine = memory_and_disk_engine();
        sample(&mut engine, 0, memory(500, 500, 0));
        for _ in 0..kills {
            step(&mut engine, 1, Event::OomKill(Box::default()));
        }
        assert_eq!(evicts(&sample(&mut engine, 1, node_with_detail(|_| ()))), is_evicted, "{kills} kills");
    }
    let mut low_before = memory_and_disk_engine();
    sample(&mut low_before, 0, memory(99, 901, 0));
    let decision = sample(&mut low_before, 1, memory(0, 1000, 1));
    assert!(rejections(&decision).is_empty(), "it was not far");
}

#[test]
fn capacity_jump_is_accepted_only_once_it_lasts() {
    let mut engine = enhanced_engine(enhanced(vec![hard(MemoryAvailable, "60%")], |_| ()));
    sample(&mut engine, 0, memory(900, 100, 0));
    assert!(rejections(&sample(&mut engine, 1, memory(1350, 150, 1))).is_empty(), "half more is possible");
    sample(&mut engine, 2, memory(900, 100, 2));
    for seconds in [3, 4, 5, 12] {
        let decision = sample(&mut engine, seconds, memory(100, 1401, seconds));
        let before = Implausible::CapacityChanged { before: 1000 };
        assert_eq!(rejections(&decision), [(MemoryAvailable, before)], "at {seconds}");
        assert!(!evicts(&decision));
    }
    assert!(evicts(&sample(&mut engine, 13, memory(100, 1401, 13))));
}

#[test]
fn implausible_second_sample_evicts_no_pod() {
    let mut engine = memory_and_disk_engine();
    let with_disk = |available, capacity, seconds| {
        let fs = FsStats {
            available: Some(available),
            capacity: Some(capacity),
            time: Some(at(seconds)),
            ..FsStats::default()
        };
        NodeStats { node_fs: Reading::Known(fs), ..node(900, 900, at(seconds)) }
    };
    // However long the reclaim takes, one reading is not a lasting change.
    for (first, second, available, capacity) in [(1, 2, 2000, 1000), (11, 600, 5, 9000)] {
        let decision = sample(&mut engine, first, with_disk(9, 1000, first));
        assert_eq!(decision.evaluation().unwrap().end, EvaluationEnd::AwaitingReclaim);
        let again = snapshot(with_disk(available, capacity, second), &[]);
        let decision = step(&mut engine, second, Event::Reclaimed(Ok(again)));
        assert_eq!(decision.evaluation().unwrap().end, EvaluationEnd::Reclaimed);
    }
}

#[test]
fn signal_unknown_for_long_is_unavailable_until_it_is_read_again() {
    let mut engine = memory_and_disk_engine();
    let unreadable =
        |seconds| NodeStats { memory: Reading::Unknown(UnknownReason::Failed), ..node(1, 900, at(seconds)) };
    for (seconds, is_unavailable) in [(0, false), (1, false), (2, true), (3, true)] {
        let decision = sample(&mut engine, seconds, unreadable(seconds));
        assert_eq!(decision.unavailable.contains(MemoryAvailable), is_unavailable, "at {seconds}");
        assert!(!decision.unavailable.contains(PidAvailable), "no threshold asks for it");
        let unknown: Vec<_> = decision.unknown_conditions().collect();
        assert_eq!(unknown, if is_unavailable { vec![NodeCondition::MemoryPressure] } else { vec![] });
    }
    let failed = step(&mut engine, 4, Event::SampleFailed(UnknownReason::Failed));
    assert!(failed.unavailable.contains(MemoryAvailable) && !failed.unavailable.contains(NodeFsAvailable));
    assert!(sample(&mut engine, 5, node(500, 900, at(5))).unavailable.is_empty());
}

#[test]
fn a_signal_that_a_node_does_not_have_is_not_unavailable() {
    let mut engine = memory_and_disk_engine();
    let without =
        |seconds| NodeStats { node_fs: Reading::Unknown(UnknownReason::Absent), ..node(500, 1, at(seconds)) };
    for seconds in 0..5 {
        assert!(sample(&mut engine, seconds, without(seconds)).unavailable.is_empty());
    }
    sample(&mut engine, 5, node(500, 900, at(5)));
    for seconds in 6..9 {
        let decision = sample(&mut engine, seconds, without(seconds));
        assert_eq!(decision.unavailable.contains(NodeFsAvailable), seconds == 8, "there was one");
    }
}

#[test]
fn unknown_swap_usage_makes_memory_unavailable() {
    let mut engine = enhanced_engine(enhanced(vec![hard(MemoryAvailable, "100")], |preferences| {
        preferences.memory.swap_used_at_least = Limit::parse("50%").ok();
        preferences.unavailable_after_samples = 1;
    }));
    let decision = sample(&mut engine, 1, node(50, 900, at(1)));
    assert!(decision.unavailable.contains(MemoryAvailable) && !evicts(&decision));
}

#[test]
fn kubelet_profile_accepts_every_reading() {
    let mut engine = enhanced_engine(policy(vec![hard(MemoryAvailable, "100")]));
    sample(&mut engine, 0, memory(500, 500, 0));
    let decision = sample(&mut engine, 1, memory(0, 1000, 1));
    assert!(evicts(&decision) && decision.unavailable.is_empty());
    let evaluation = decision.evaluation().unwrap();
    assert!(evaluation.context.slopes.iter().all(Option::is_none) && evaluation.context.rejected.is_empty());
}

#[test]
fn pid_threshold_is_met_with_more_processes_than_the_limit() {
    let mut engine = enhanced_engine(enhanced(vec![hard(PidAvailable, "10")], |_| ()));
    let processes = ProcessStats { max: Some(100), running: Some(101), ..ProcessStats::default() };
    let node = NodeStats { processes: Reading::Known(processes), ..node(900, 900, at(1)) };
    assert!(evicts(&sample(&mut engine, 1, node)));
}
