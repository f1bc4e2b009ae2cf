use proptest::prelude::*;

use super::*;
use crate::core::decision::{Decision, PassEnd};
use crate::core::engine::Engine;
use crate::core::fixture::arbitrary::{inputs, policy as any_policy};
use crate::core::fixture::{
    at, engine, enhanced, hard, memory_of, node, pod, policy, set, snapshot, soft, tell, victims,
};
use crate::core::input::{Event, Input};
use crate::core::policy::Policy;
use crate::core::preferences::{
    MemoryMeasure, MemoryPressure, Predict, Preferences, PressureTrigger, Stalled,
};
use crate::core::reading::Why;
use crate::core::report::Report;
use crate::core::signal::NodeCondition;
use crate::core::signal::Signal::{MemoryAvailable, NodeFsAvailable, PidAvailable};
use crate::core::snapshot::{FsStats, MemoryDetail, MemoryStats, ProcessStats};
use crate::core::units::{GoDuration, Limit};

/// An engine of the enhanced profile with a pod that is above its request.
fn watching(policy: Policy) -> Engine {
    engine(policy, &set(vec![pod("greedy", "10")]))
}

fn look(engine: &mut Engine, seconds: i64, node: NodeStats) -> Decision {
    tell(engine, seconds, Event::Look(snapshot(node, &[memory_of("greedy", 500)])))
}

/// 1,000 bytes of memory, so many of them available, and what else is told of them.
fn with(available: u64, seconds: i64, tell: impl FnOnce(&mut MemoryDetail)) -> NodeStats {
    let mut node = node(available, 900, at(seconds));
    tell(&mut node.memory_detail);
    node
}

fn evicts(decision: &Decision) -> bool {
    !victims(decision).is_empty()
}

fn measured_by(measure: MemoryMeasure) -> Engine {
    watching(enhanced(vec![hard(MemoryAvailable, "100")], |preferences| preferences.memory.measure = measure))
}

#[test]
fn the_measure_decides_and_all_are_told() {
    let seen = |seconds| {
        with(50, seconds, |detail| {
            detail.mem_available = Reading::Known(400);
            detail.active_file = Reading::Known(60);
        })
    };
    for (measure, available, goes) in [
        (MemoryMeasure::WorkingSet, 50, true),
        (MemoryMeasure::MemAvailable, 400, false),
        (MemoryMeasure::WorkingSetMinusActiveFile, 110, false),
    ] {
        let mut engine = measured_by(measure);
        let decision = look(&mut engine, 1, seen(1));
        assert_eq!(evicts(&decision), goes, "{measure:?}");
        let observed = decision.pass().unwrap().seen.get(MemoryAvailable).unwrap();
        assert_eq!((observed.available, observed.capacity), (available, 1000));
        let report = serde_json::to_value(Report::of(&decision, engine.policy())).unwrap();
        let memory = &report["pass"]["memory"];
        assert_eq!(memory["available_by_working_set"], 50, "{memory}");
        assert_eq!(memory["mem_available"], 400);
        assert_eq!(memory["available_without_active_file"], 110);
    }
}

#[test]
fn a_measure_that_is_not_known_evicts_nobody() {
    for measure in [MemoryMeasure::MemAvailable, MemoryMeasure::WorkingSetMinusActiveFile] {
        let mut engine = measured_by(measure);
        let absurd = |detail: &mut MemoryDetail| {
            detail.mem_available = Reading::Known(u64::MAX);
            detail.active_file = Reading::Known(u64::MAX);
        };
        assert!(!evicts(&look(&mut engine, 1, with(50, 1, |_| ()))), "{measure:?}");
        assert!(!evicts(&look(&mut engine, 2, with(50, 2, absurd))), "{measure:?}");
    }
}

#[test]
fn without_stalls_a_threshold_is_not_met() {
    for stalled in [Stalled::Some, Stalled::Full] {
        let mut engine = watching(enhanced(vec![hard(MemoryAvailable, "100")], |preferences| {
            preferences.memory.pressure = Some(MemoryPressure { stalled, avg10: Some(12.5), trigger: None });
        }));
        let share = |seconds, hundredths| {
            with(50, seconds, |detail| match stalled {
                Stalled::Some => detail.some_avg10 = hundredths,
                Stalled::Full => detail.full_avg10 = hundredths,
            })
        };
        let calm = look(&mut engine, 1, share(1, Reading::Known(1249)));
        assert!(calm.pass().unwrap().met.is_empty());
        assert_eq!(calm.pass().unwrap().sight.gate, Gate::TooLittleStall);
        assert!(calm.conditions.is_empty(), "not met is not met");
        let unknown = look(&mut engine, 2, share(2, Reading::Unknown(Why::Stale)));
        assert!(!evicts(&unknown));
        assert_eq!(unknown.pass().unwrap().sight.gate, Gate::Unknown(Why::Stale));
        assert!(evicts(&look(&mut engine, 3, share(3, Reading::Known(1250)))));
    }
}

#[test]
fn a_stall_that_ends_ends_the_grace_period() {
    let mut engine = watching(enhanced(vec![soft(MemoryAvailable, "100", 10)], |preferences| {
        let trigger = PressureTrigger { stall: GoDuration::from_secs(1), window: GoDuration::from_secs(2) };
        let asked = MemoryPressure { stalled: Stalled::Some, avg10: None, trigger: Some(trigger) };
        preferences.memory.pressure = Some(asked);
    }));
    for (seconds, stalled, goes) in [
        (0, true, false),
        (9, true, false),
        (10, false, false),
        (11, true, false),
        (20, true, false),
        (21, true, true),
    ] {
        let node = with(50, seconds, |detail| detail.stalled = Reading::Known(stalled));
        assert_eq!(evicts(&look(&mut engine, seconds, node)), goes, "at {seconds}");
    }
}

#[test]
fn swap_that_is_free_is_used_first() {
    let asking = |text: &str| {
        let limit = Limit::parse(text).unwrap();
        watching(enhanced(vec![hard(MemoryAvailable, "100")], |preferences| {
            preferences.memory.swap_used = Some(limit);
        }))
    };
    for (asked, used, total, goes) in [
        ("50%", 499, 1000, false),
        ("50%", 500, 1000, true),
        ("600", 599, 1000, false),
        ("600", 600, 1000, true),
        ("5Ki", 1000, 1000, true),
        ("50%", 0, 0, true),
        ("600", 0, 0, true),
    ] {
        let node = with(50, 1, |detail| {
            detail.swap_used = Reading::Known(used);
            detail.swap_total = Reading::Known(total);
        });
        assert_eq!(evicts(&look(&mut asking(asked), 1, node)), goes, "{asked}: {used} of {total}");
    }
    assert!(!evicts(&look(&mut asking("600"), 1, with(50, 1, |_| ()))), "not known");
}

#[test]
fn what_is_asked_of_memory_is_not_asked_of_disks() {
    let mut engine = watching(enhanced(vec![hard(NodeFsAvailable, "950")], |preferences| {
        let pressure = MemoryPressure { stalled: Stalled::Some, avg10: Some(50.0), trigger: None };
        preferences.memory.pressure = Some(pressure);
    }));
    assert_eq!(look(&mut engine, 1, node(500, 900, at(1))).pass().unwrap().met.len(), 1);
}

fn memory(available: u64, working_set: u64, seconds: i64) -> NodeStats {
    let memory = MemoryStats {
        available: Some(available),
        working_set: Some(working_set),
        time: Some(at(seconds)),
        ..MemoryStats::default()
    };
    NodeStats { memory: Reading::Known(memory), ..node(1, 900, at(seconds)) }
}

fn doubtful() -> Engine {
    watching(enhanced(vec![hard(MemoryAvailable, "100"), hard(NodeFsAvailable, "10")], |_| ()))
}

fn refusals(decision: &Decision) -> Vec<(Signal, Implausible)> {
    decision.pass().unwrap().sight.refused.iter().map(|it| (it.signal, it.why)).collect()
}

#[test]
fn less_than_nothing_and_more_than_there_is_are_never_believed() {
    let mut engine = doubtful();
    let fs = FsStats { available: Some(u64::MAX), capacity: Some(1000), ..FsStats::default() };
    for seconds in [0, 10, 20, 30, 40, 50] {
        let node = NodeStats { node_fs: Reading::Known(fs), ..node(900, 900, at(seconds)) };
        let decision = look(&mut engine, seconds, node);
        assert_eq!(refusals(&decision), [(NodeFsAvailable, Implausible::NegativeAvailable)]);
        let fs = FsStats { available: Some(1001), ..fs };
        let node = NodeStats { node_fs: Reading::Known(fs), ..node };
        let decision = look(&mut engine, seconds + 5, node);
        assert_eq!(refusals(&decision), [(NodeFsAvailable, Implausible::AvailableAboveCapacity)]);
        assert_eq!(
            decision.pass().unwrap().seen.reading(NodeFsAvailable),
            Reading::Unknown(Why::Implausible)
        );
    }
}

#[test]
fn a_limit_of_process_ids_can_be_below_those_that_run() {
    let mut engine = doubtful();
    let processes = ProcessStats { max: Some(1000), running: Some(1200), ..ProcessStats::default() };
    let node = NodeStats { processes: Reading::Known(processes), ..node(900, 900, at(0)) };
    let decision = look(&mut engine, 0, node);
    assert_eq!(refusals(&decision), []);
    let seen = decision.pass().unwrap().seen.get(PidAvailable).unwrap();
    assert_eq!((seen.available, seen.capacity), (-200, 1000));
}

#[test]
fn a_sudden_nothing_is_not_believed_at_once_but_when_it_lasts() {
    let mut engine = doubtful();
    look(&mut engine, 0, memory(500, 500, 0));
    let refused = vec![(MemoryAvailable, Implausible::SuddenlyNothing { before: 500 })];
    for seconds in [1, 2, 3, 9] {
        let decision = look(&mut engine, seconds, memory(0, 1000, seconds));
        assert_eq!(refusals(&decision), refused, "at {seconds}");
        assert!(!evicts(&decision));
    }
    let same_statistics = look(&mut engine, 11, memory(0, 1000, 9));
    assert_eq!(refusals(&same_statistics), refused);
    assert!(evicts(&look(&mut engine, 12, memory(0, 1000, 12))));
}

#[test]
fn a_glitch_is_forgotten() {
    let mut engine = doubtful();
    for seconds in [0, 10, 20, 30, 40, 50, 60] {
        look(&mut engine, seconds, memory(500, 500, seconds));
        let decision = look(&mut engine, seconds + 1, memory(0, 1000, seconds + 1));
        assert!(!evicts(&decision), "at {seconds}");
    }
}

#[test]
fn what_explains_a_sudden_nothing() {
    let near = |tell: fn(&mut MemoryDetail)| {
        let mut node = memory(0, 1000, 1);
        tell(&mut node.memory_detail);
        node
    };
    let little = near(|detail| detail.mem_available = Reading::Known(99));
    let stalls = near(|detail| detail.some_avg10 = Reading::Known(1));
    for node in [little, stalls] {
        let mut engine = doubtful();
        look(&mut engine, 0, memory(500, 500, 0));
        assert!(evicts(&look(&mut engine, 1, node)));
    }
    for (kills, goes) in [(0, false), (1, true)] {
        let mut engine = doubtful();
        look(&mut engine, 0, memory(500, 500, 0));
        for _ in 0..kills {
            tell(&mut engine, 1, Event::OomKill(Box::default()));
        }
        assert_eq!(evicts(&look(&mut engine, 1, near(|_| ()))), goes, "{kills} kills");
    }
    let mut near_already = doubtful();
    look(&mut near_already, 0, memory(99, 901, 0));
    let decision = look(&mut near_already, 1, memory(0, 1000, 1));
    assert!(refusals(&decision).is_empty(), "it was not far");
}

#[test]
fn a_capacity_that_jumps_is_believed_when_it_lasts() {
    let mut engine = watching(enhanced(vec![hard(MemoryAvailable, "60%")], |_| ()));
    look(&mut engine, 0, memory(900, 100, 0));
    assert!(refusals(&look(&mut engine, 1, memory(1350, 150, 1))).is_empty(), "half more is possible");
    look(&mut engine, 2, memory(900, 100, 2));
    for seconds in [3, 4, 5, 12] {
        let decision = look(&mut engine, seconds, memory(100, 1401, seconds));
        let before = Implausible::CapacityChanged { before: 1000 };
        assert_eq!(refusals(&decision), [(MemoryAvailable, before)], "at {seconds}");
        assert!(!evicts(&decision));
    }
    assert!(evicts(&look(&mut engine, 13, memory(100, 1401, 13))));
}

#[test]
fn a_second_look_that_cannot_be_true_evicts_nobody() {
    let mut engine = doubtful();
    let with_disk = |available, seconds| {
        let fs = FsStats {
            available: Some(available),
            capacity: Some(1000),
            time: Some(at(seconds)),
            ..FsStats::default()
        };
        NodeStats { node_fs: Reading::Known(fs), ..node(900, 900, at(seconds)) }
    };
    let decision = look(&mut engine, 1, with_disk(9, 1));
    assert_eq!(decision.pass().unwrap().end, PassEnd::AwaitingReclaim);
    let again = snapshot(with_disk(2000, 2), &[]);
    let decision = tell(&mut engine, 2, Event::Reclaimed(Ok(again)));
    assert_eq!(decision.pass().unwrap().end, PassEnd::Reclaimed);
}

#[test]
fn a_signal_that_is_unknown_for_long_is_blind_and_sees_again() {
    let mut engine = doubtful();
    let dark = |seconds| NodeStats { memory: Reading::Unknown(Why::Failed), ..node(1, 900, at(seconds)) };
    for (seconds, blind) in [(0, false), (1, false), (2, true), (3, true)] {
        let decision = look(&mut engine, seconds, dark(seconds));
        assert_eq!(decision.blind.contains(MemoryAvailable), blind, "at {seconds}");
        assert!(!decision.blind.contains(PidAvailable), "no threshold asks for it");
        let unknown: Vec<_> = decision.unknown_conditions().collect();
        assert_eq!(unknown, if blind { vec![NodeCondition::MemoryPressure] } else { vec![] });
    }
    let failed = tell(&mut engine, 4, Event::LookFailed(Why::Failed));
    assert!(failed.blind.contains(MemoryAvailable) && !failed.blind.contains(NodeFsAvailable));
    assert!(look(&mut engine, 5, node(500, 900, at(5))).blind.is_empty());
}

#[test]
fn what_a_node_does_not_have_blinds_nobody() {
    let mut engine = doubtful();
    let without = |seconds| NodeStats { node_fs: Reading::Unknown(Why::Absent), ..node(500, 1, at(seconds)) };
    for seconds in 0..5 {
        assert!(look(&mut engine, seconds, without(seconds)).blind.is_empty());
    }
    look(&mut engine, 5, node(500, 900, at(5)));
    for seconds in 6..9 {
        let decision = look(&mut engine, seconds, without(seconds));
        assert_eq!(decision.blind.contains(NodeFsAvailable), seconds == 8, "there was one");
    }
}

#[test]
fn a_condition_that_is_not_known_blinds_as_well() {
    let mut engine = watching(enhanced(vec![hard(MemoryAvailable, "100")], |preferences| {
        preferences.memory.swap_used = Limit::parse("50%").ok();
        preferences.max_unknown = 1;
    }));
    let decision = look(&mut engine, 1, node(50, 900, at(1)));
    assert!(decision.blind.contains(MemoryAvailable) && !evicts(&decision));
}

#[test]
fn the_kubelet_believes_everything() {
    let mut engine = watching(policy(vec![hard(MemoryAvailable, "100")]));
    look(&mut engine, 0, memory(500, 500, 0));
    let decision = look(&mut engine, 1, memory(0, 1000, 1));
    assert!(evicts(&decision) && decision.blind.is_empty());
    let pass = decision.pass().unwrap();
    assert!(pass.sight.slopes.iter().all(Option::is_none) && pass.sight.refused.is_empty());
}

fn predicting(predict: Predict) -> Engine {
    watching(enhanced(vec![hard(MemoryAvailable, "100")], |preferences| preferences.predict = predict))
}

/// Falls by 20 a second from 500: 100 is reached after 20 s.
fn falling(seconds: i64) -> NodeStats {
    node((500 - 20 * seconds).unsigned_abs(), 900, at(seconds))
}

#[test]
fn a_threshold_about_to_be_met_is_told_raises_or_evicts() {
    for (predict, raised, goes) in
        [(Predict::Off, 0, false), (Predict::Condition, 1, false), (Predict::Evict, 1, true)]
    {
        let mut engine = predicting(predict);
        for seconds in 0..3 {
            let decision = look(&mut engine, seconds, falling(seconds));
            assert!(!evicts(&decision) && decision.conditions.is_empty(), "too few samples");
        }
        let decision = look(&mut engine, 3, falling(3));
        assert_eq!(decision.pass().unwrap().sight.imminent, [0], "{predict:?}");
        assert_eq!((decision.conditions.len(), evicts(&decision)), (raised, goes), "{predict:?}");
        let report = serde_json::to_value(Report::of(&decision, engine.policy())).unwrap();
        let pass = &report["pass"];
        assert_eq!(pass["signals"][0]["trend"]["per_second"], -20.0);
        if !goes {
            assert_eq!(pass["thresholds"][0]["eta"]["expected"], "17s", "{pass}");
            assert_eq!(pass["thresholds"][0]["imminent"], true);
        } else {
            assert_eq!(pass["thresholds"][0]["met"]["by_prediction"], true);
        }
    }
}

#[test]
fn what_is_far_away_or_uncertain_is_not_imminent() {
    let mut slow = predicting(Predict::Evict);
    for seconds in 0..8_i64 {
        let node = node(900 - 10 * seconds.unsigned_abs(), 900, at(seconds));
        assert!(!evicts(&look(&mut slow, seconds, node)), "80 s away");
    }
    let mut uneven = predicting(Predict::Evict);
    for (seconds, available) in (0..8).zip([300, 500, 290, 480, 280, 470, 270, 460]) {
        assert!(
            !evicts(&look(&mut uneven, seconds, node(available, 900, at(seconds)))),
            "it goes up as well"
        );
    }
}

#[test]
fn a_closed_gate_predicts_nothing() {
    let mut engine = watching(enhanced(vec![hard(MemoryAvailable, "100")], |preferences| {
        preferences.predict = Predict::Evict;
        let pressure = MemoryPressure { stalled: Stalled::Some, avg10: Some(1.0), trigger: None };
        preferences.memory.pressure = Some(pressure);
    }));
    for seconds in 0..15 {
        let mut node = falling(seconds);
        node.memory_detail.some_avg10 = Reading::Known(0);
        let decision = look(&mut engine, seconds, node);
        assert!(!evicts(&decision) && decision.conditions.is_empty());
    }
}

#[test]
fn the_pods_that_grow_fastest_are_told() {
    let pods = set(vec![pod("fast", "1"), pod("slow", "1"), pod("still", "1"), pod("shrinks", "1")]);
    let mut engine = engine(enhanced(vec![hard(MemoryAvailable, "1")], |_| ()), &pods);
    let mut last = None;
    for second in 0..6_i64 {
        let used = |base: i64, growth: i64| (base + growth * second).unsigned_abs();
        let usage = [
            memory_of("still", 900),
            memory_of("slow", used(100, 1)),
            memory_of("fast", used(50, 30)),
            memory_of("shrinks", used(500, -40)),
        ];
        last = Some(tell(&mut engine, second, Event::Look(snapshot(node(900, 900, at(second)), &usage))));
    }
    let report = Report::of(&last.unwrap(), engine.policy());
    let report = serde_json::to_value(report).unwrap();
    let growing = report["pass"]["growing"].as_array().unwrap();
    let told: Vec<_> = growing.iter().map(|it| (&it["uid"], &it["per_second"])).collect();
    assert_eq!(told, [(&"fast".into(), &30.0.into()), (&"slow".into(), &1.0.into())]);
    let no_pods = look(&mut engine, 6, node(900, 900, at(6)));
    let told = no_pods.pass().unwrap().sight.growing;
    assert_eq!(told, Growing::default(), "the look saw none of them for long enough");
}

/// Any policy, under rules of the enhanced profile.
fn any_enhanced() -> impl Strategy<Value = Policy> {
    let predict = prop::sample::select(&[Predict::Off, Predict::Condition, Predict::Evict][..]);
    let measure = prop::sample::select(
        &[MemoryMeasure::WorkingSet, MemoryMeasure::MemAvailable, MemoryMeasure::WorkingSetMinusActiveFile][..],
    );
    let avg10 = prop::option::of(0.01..100.0_f64);
    let swap = prop::option::of(prop::sample::select(&["50%", "1", "1Ei"][..]));
    (any_policy(), predict, measure, avg10, swap, 1..4_u32).prop_map(
        |(policy, predict, measure, avg10, swap, max_unknown)| {
            let mut preferences = Preferences { predict, max_unknown, ..Preferences::default() };
            preferences.memory.measure = measure;
            preferences.memory.pressure = avg10.map(|avg10| MemoryPressure {
                stalled: Stalled::Full,
                avg10: Some(avg10),
                trigger: None,
            });
            preferences.memory.swap_used = swap.map(|text| Limit::parse(text).unwrap());
            Policy { rules: Rules::enhanced(&preferences), ..policy }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever comes in, and whatever policies are proposed in between: nothing unknown or
    /// implausible is acted on, and the same inputs give the same bytes.
    #[test]
    fn only_what_is_known_and_possible_is_acted_on(
        policy in any_enhanced(),
        other in any_enhanced(),
        inputs in inputs(),
    ) {
        let run = || {
            let mut engine = Engine::new(policy.clone());
            let mut decisions = Vec::new();
            for (place, input) in inputs.iter().cloned().enumerate() {
                if place % 5 == 2 {
                    let changed = if place % 2 == 0 { other.clone() } else { policy.clone() };
                    decisions.push(engine.step(Input { at: input.at, event: Event::Propose(changed.into()) }));
                }
                if place % 7 == 6 {
                    decisions.push(engine.step(Input { at: input.at, event: Event::Accept }));
                }
                decisions.push(engine.step(input));
            }
            decisions
        };
        let (once, twice) = (run(), run());
        let bytes = |decisions: &[Decision]| -> Vec<String> {
            let report = |decision| serde_json::to_string(&Report::of(decision, &policy)).unwrap();
            decisions.iter().map(report).collect()
        };
        prop_assert_eq!(bytes(&once), bytes(&twice));
        for decision in &once {
            let Some(pass) = decision.pass() else { continue };
            for refused in &pass.sight.refused {
                prop_assert_eq!(pass.seen.reading(refused.signal), Reading::Unknown(Why::Implausible));
            }
            for met in &pass.met {
                let signal = pass.line(met.line).unwrap().threshold.signal;
                let seen = pass.seen.get(signal);
                prop_assert!(seen.is_some_and(|seen| seen.available <= seen.capacity));
                if signal.resource() == Resource::Memory {
                    prop_assert_eq!(pass.sight.gate, Gate::Open);
                }
            }
        }
    }
}

#[test]
fn process_ids_may_be_overdrawn() {
    let mut engine = watching(enhanced(vec![hard(PidAvailable, "10")], |_| ()));
    let processes = ProcessStats { max: Some(100), running: Some(101), ..ProcessStats::default() };
    let node = NodeStats { processes: Reading::Known(processes), ..node(900, 900, at(1)) };
    assert!(evicts(&look(&mut engine, 1, node)));
}
