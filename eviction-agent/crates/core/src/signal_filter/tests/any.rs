//! For any inputs, no unknown or impossible value is acted on.

use proptest::prelude::*;

use super::*;

fn any_enhanced() -> impl Strategy<Value = Policy> {
    let predict =
        prop::sample::select(&[PredictionMode::Off, PredictionMode::Condition, PredictionMode::Evict][..]);
    let measure = prop::sample::select(
        &[MemoryMeasure::WorkingSet, MemoryMeasure::MemAvailable, MemoryMeasure::WorkingSetMinusActiveFile][..],
    );
    let avg10 = prop::option::of(0.01..100.0_f64);
    let swap = prop::option::of(prop::sample::select(&["50%", "1", "1Ei"][..]));
    (any_policy(), predict, measure, avg10, swap, 1..4_u32).prop_map(
        |(policy, predict, measure, avg10, swap, max_unknown)| {
            let mut preferences =
                Preferences { unavailable_after_samples: max_unknown, ..Preferences::default() };
            preferences.prediction.mode = predict;
            preferences.memory.measure = measure;
            preferences.memory.psi =
                avg10.map(|avg10| MemoryPsi { kind: PsiKind::Full, avg10: Some(avg10), trigger: None });
            preferences.memory.swap_used_at_least = swap.map(|text| Limit::parse(text).unwrap());
            Policy { rules: Rules::enhanced(&preferences), ..policy }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// This holds for any inputs, and for any policies that are proposed in between. Also, the same inputs
    /// give the same bytes.
    #[test]
    fn only_known_and_plausible_readings_meet_thresholds(
        policy in any_enhanced(),
        other in any_enhanced(),
        inputs in inputs(),
    ) {
        let run = || {
            let mut engine = Engine::new(policy.clone());
            let mut decisions = Vec::new();
            for (index, input) in inputs.iter().cloned().enumerate() {
                if index % 5 == 2 {
                    let changed = if index % 2 == 0 { other.clone() } else { policy.clone() };
                    decisions.push(engine.step(Input { at: input.at, event: Event::Propose(changed.into()) }));
                }
                if index % 7 == 6 {
                    decisions.push(engine.step(Input { at: input.at, event: Event::ApplyProposed }));
                }
                decisions.push(engine.step(input));
            }
            decisions
        };
        let (once, twice) = (run(), run());
        let bytes = |decisions: &[Decision]| -> Vec<String> {
            let report = |decision| serde_json::to_string(&DecisionRecord::of(decision)).unwrap();
            decisions.iter().map(report).collect()
        };
        prop_assert_eq!(bytes(&once), bytes(&twice));
        for decision in &once {
            let Some(evaluation) = decision.evaluation() else { continue };
            for rejected in &evaluation.context.rejected {
                prop_assert_eq!(evaluation.observations.reading(rejected.signal), Reading::Unknown(UnknownReason::Implausible));
            }
            for met in &evaluation.met {
                let signal = evaluation.threshold(met.threshold).unwrap().signal;
                let seen = evaluation.observations.get(signal);
                prop_assert!(seen.is_some_and(|seen| seen.available <= seen.capacity));
                if signal.resource() == Resource::Memory {
                    prop_assert_eq!(evaluation.context.memory_conditions, MemoryConditions::Fulfilled);
                }
            }
        }
    }
}
