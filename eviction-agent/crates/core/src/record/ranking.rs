//! The order in which pods would be evicted if a threshold were met now.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::disk_layout::DiskLayout;
use crate::in_flight::InFlightEviction;
use crate::pods::PodSet;
use crate::protection::Refusal;
use crate::rank::{Candidate, Measure, rank};
use crate::record::candidate::RankedPods;
use crate::record::{CandidateOutcome, CandidateRecord};
use crate::signal::Signal;
use crate::snapshot::Snapshot;
use crate::time::Timestamp;

/// A sample of all pods, with the other values that their order depends on.
#[derive(Clone, Debug)]
pub struct PodSample {
    /// When the sample was taken.
    pub at: Timestamp,
    /// The active pods.
    pub pods: Arc<PodSet>,
    /// The usage of the pods. The snapshot is indexed for them.
    pub snapshot: Arc<Snapshot>,
    /// The layout of the file systems.
    pub layout: DiskLayout,
    /// The in-flight evictions. Their pods are not evicted again.
    pub in_flight: Vec<InFlightEviction>,
    /// Whether pods are selected by what each one frees.
    pub sized: bool,
}

impl PodSample {
    /// Returns the pods in the order of eviction.
    pub fn ranked(&self, signal: Signal) -> Vec<Candidate> {
        let mut ranked = Vec::new();
        rank(Measure::of(signal, self.layout), &self.pods, &self.snapshot, &mut ranked);
        ranked
    }

    /// Returns the pods in the order in which they would be evicted if a hard threshold of this signal were met
    /// now, with the reasons. The first one that may be evicted has the result [`CandidateOutcome::Evicted`]. Rate
    /// limits, cool-downs and PodDisruptionBudgets, which change from one evaluation to the next, do not count.
    pub fn ranking(&self, signal: Signal) -> Vec<CandidateRecord> {
        let Self { at, pods, snapshot, layout, in_flight, sized } = self;
        let ranked = self.ranked(signal);
        let refused = |it: &Candidate| Some((it.pod, Refusal::by(&pods.get(it.pod)?.protection)?));
        let refusals: BTreeMap<_, _> = ranked.iter().filter_map(refused).collect();
        let mut ranked_pods = RankedPods {
            at: *at,
            measure: Measure::of(signal, *layout),
            pods,
            snapshot,
            ranked: &ranked,
            in_flight,
            outcomes: refusals.keys().map(|pod| (*pod, CandidateOutcome::Protected)).collect(),
            refusals,
            skipped: BTreeMap::new(),
            is_sized: *sized,
        };
        let first = ranked.iter().find(|candidate| ranked_pods.may_be_evicted(candidate.pod));
        let first = first.map(|candidate| (candidate.pod, CandidateOutcome::Evicted));
        ranked_pods.outcomes.extend(first);
        ranked_pods.records()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::fixture::{at, hard, memory_of, node, pod, policy, set, snapshot, step, victims};
    use crate::input::Event;
    use crate::pod::{Pod, PodName};

    const MI: u64 = 1 << 20;

    fn sample(pods: Vec<Pod>, usage: &[(&str, u64)]) -> PodSample {
        let usage: Vec<_> = usage.iter().map(|(uid, used)| memory_of(uid, *used)).collect();
        let pods = set(pods);
        let snapshot = snapshot(node(50 * MI, 1 << 40, at(0)), &usage).indexed(&pods);
        let (layout, in_flight) = (DiskLayout::default(), Vec::new());
        PodSample { at: at(0), pods, snapshot, layout, in_flight, sized: false }
    }

    fn three_and_a_critical_one() -> PodSample {
        let critical = Pod { priority: Some(2_000_000_000), ..pod("system", "1Mi") };
        let pods = vec![pod("a", "10Mi"), pod("b", "10Mi"), critical, pod("c", "900Mi")];
        sample(pods, &[("a", 30 * MI), ("b", 50 * MI), ("system", 500 * MI), ("c", 600 * MI)])
    }

    #[test]
    fn the_first_pod_is_the_one_that_an_evaluation_evicts() {
        let sample = three_and_a_critical_one();
        let ranking = sample.ranking(Signal::MemoryAvailable);
        let order: Vec<_> = ranking.iter().map(|it| &*it.pod.uid).collect();
        assert_eq!(order, ["b", "a", "system", "c"]);
        let ranks: Vec<_> = ranking.iter().map(|it| it.rank).collect();
        assert_eq!(ranks, [Some(1), Some(2), None, Some(3)]);
        let mut engine = Engine::new(policy(vec![hard(Signal::MemoryAvailable, "100Mi")]));
        step(&mut engine, 0, Event::DiskLayout(Ok(DiskLayout::default())));
        step(&mut engine, 0, Event::Pods(Arc::clone(&sample.pods)));
        let decision = step(&mut engine, 1, Event::Sample(Arc::clone(&sample.snapshot)));
        assert_eq!(victims(&decision)[0].0, "b");
    }

    #[test]
    fn margins_are_the_changes_that_would_change_the_order() {
        let ranking = three_and_a_critical_one().ranking(Signal::MemoryAvailable);
        let margin = |index: usize| ranking[index].margin.unwrap();
        let twenty = i64::try_from(20 * MI).unwrap();
        // Of equal pods, the one with the lower uid is evicted first.
        assert_eq!(margin(0).usage, Some(-twenty));
        assert_eq!(margin(1).usage, Some(twenty));
        assert_eq!(ranking[2].margin, None, "a critical pod is never evicted");
    }

    #[test]
    fn terminating_pod_is_not_the_next_victim() {
        let mut sample = three_and_a_critical_one();
        let pod = Arc::new(PodName::of(&pod("b", "10Mi")));
        let signal = Signal::MemoryAvailable.name();
        sample.in_flight = vec![InFlightEviction::new(pod, signal, true, at(0), 30)];
        let ranking = sample.ranking(Signal::MemoryAvailable);
        assert_eq!(ranking[0].result, CandidateOutcome::Terminating);
        assert_eq!(ranking[1].result, CandidateOutcome::Evicted);
    }

    #[test]
    fn ranking_without_pods_is_empty() {
        assert!(sample(Vec::new(), &[]).ranking(Signal::PidAvailable).is_empty());
    }
}
