//! The two ways in which a pass evicts.

use crate::core::decision::{Action, Cause, Eviction, Pass, PassEnd};
use crate::core::local_storage::judge;
use crate::core::pods::KnownPod;
use crate::core::rank::{Measure, rank};

use super::Engine;

/// `immediateEvictionGracePeriodSeconds`.
const IMMEDIATE_GRACE_SECONDS: i64 = 1;

impl Engine {
    /// Evicts every pod that is above its own limits: `localStorageEviction`. Whether there
    /// was one.
    pub(super) fn evict_above_limits(&mut self, pass: &mut Pass, actions: &mut Vec<Action>) -> bool {
        if pass.pods.limited().len() == 0 || pass.snapshot.is_empty() {
            return false;
        }
        let before = actions.len();
        let joined = pass.snapshot.joined(&pass.pods, &mut self.joined);
        for pod in pass.pods.limited() {
            let place = pod.place();
            let stats = joined.get(place as usize).and_then(|&at| pass.snapshot.pod(at));
            let Some(stats) = stats else {
                continue;
            };
            let verdict = judge(pod, stats, pass.layout.dedicated_image_fs);
            pass.unknown_volumes += verdict.unknown_volumes;
            match verdict.cause {
                Some(_) if pod.critical() => pass.spared.push(place),
                Some(cause) => actions.push(Action::Evict(Eviction {
                    place,
                    grace_period_seconds: IMMEDIATE_GRACE_SECONDS,
                    cause,
                })),
                None => {}
            }
        }
        actions.len() > before
    }

    /// Ranks the pods for the threshold of the pass and evicts the first that is not critical:
    /// the end of `synchronize`. A failed kill would end the pass as well.
    pub(super) fn evict_for_threshold(&mut self, pass: &mut Pass, actions: &mut Vec<Action>) {
        let handled = pass.handled.zip(pass.handled_signal());
        let Some((line, signal)) = handled.filter(|_| self.has_tables()) else {
            pass.end = PassEnd::CannotRank;
            return;
        };
        if pass.pods.is_empty() {
            pass.end = PassEnd::NoPods;
            return;
        }
        let joined = pass.snapshot.joined(&pass.pods, &mut self.joined);
        let measure = Measure::of(signal, pass.layout);
        rank(measure, &pass.pods, &pass.snapshot, joined, &mut pass.ranked);
        pass.end = PassEnd::OnlyCritical;
        for candidate in &pass.ranked {
            let Some(known) = pass.pods.get(candidate.place) else {
                continue;
            };
            if known.critical {
                pass.spared.push(candidate.place);
                continue;
            }
            actions.push(Action::Evict(Eviction {
                place: candidate.place,
                grace_period_seconds: self.grace_period(pass, line, known),
                cause: Cause::Threshold { line },
            }));
            pass.end = PassEnd::Evicted;
            return;
        }
    }

    /// One second for a hard threshold; for a soft one the pod's own, up to the configured
    /// bound, which is 0 unless it is set.
    fn grace_period(&self, pass: &Pass, line: u8, known: &KnownPod) -> i64 {
        let is_hard = |line: &crate::core::threshold::Line| line.threshold.is_hard();
        if pass.line(line).is_some_and(is_hard) {
            return IMMEDIATE_GRACE_SECONDS;
        }
        let bound = self.policy.max_pod_grace_period_seconds;
        known.pod.termination_grace_period_seconds.map_or(bound, |own| own.min(bound))
    }
}
