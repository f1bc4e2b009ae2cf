//! What the agent decides by: the kubelet's settings, and its own over them.

use super::AgentConfiguration;
use eviction_core::policy::preferences::{Profile, SignalThresholds};
use eviction_core::policy::{Policy, Rules, Threshold};
use eviction_core::signal::Signal;
use eviction_core::units::GoDuration;

impl AgentConfiguration {
    /// The kubelet's settings as this profile takes them.
    pub fn over(&self, kubelet: Policy) -> Policy {
        let (kernel_kill, eviction) = (self.kernel_kill, self.eviction);
        let mut policy = Policy { rules: Rules::kubelet(), kernel_kill, eviction, ..kubelet };
        if self.profile == Profile::Enhanced {
            policy.thresholds = with_own_thresholds(&policy.thresholds, &self.policy.signals);
            policy.rules = Rules::enhanced(&self.policy);
        }
        policy
    }
}

/// The kubelet's thresholds, of which those of the signals given are replaced. The copies that
/// hold allocatable memory to the hard threshold of memory follow it.
pub fn with_own_thresholds(kubelet: &[Threshold], own: &[SignalThresholds]) -> Vec<Threshold> {
    let replaced = |signal: Signal| own.iter().any(|own| own.signal == signal);
    let hard_memory: Vec<&Threshold> = kubelet
        .iter()
        .filter(|threshold| threshold.signal == Signal::MemoryAvailable && threshold.is_hard())
        .collect();
    let is_copy = |threshold: &Threshold| {
        threshold.signal == Signal::AllocatableMemoryAvailable
            && threshold.is_hard()
            && hard_memory.iter().any(|memory| memory.value == threshold.value)
    };
    let copied = kubelet.iter().any(is_copy);
    let drops = |threshold: &Threshold| {
        replaced(threshold.signal) || replaced(Signal::MemoryAvailable) && is_copy(threshold)
    };
    let mut thresholds: Vec<Threshold> =
        kubelet.iter().filter(|threshold| !drops(threshold)).cloned().collect();
    for own in own {
        let SignalThresholds { signal, hard, soft, grace_period, min_reclaim } = own;
        let min_reclaim = min_reclaim.as_ref().map(|limit| limit.value().clone());
        let threshold = |signal, value, grace_period| Threshold {
            signal,
            value,
            grace_period,
            min_reclaim: min_reclaim.clone(),
        };
        if let Some(hard) = hard {
            thresholds.push(threshold(*signal, hard.value().clone(), GoDuration::ZERO));
            if copied && *signal == Signal::MemoryAvailable && !replaced(Signal::AllocatableMemoryAvailable) {
                let copy = Signal::AllocatableMemoryAvailable;
                thresholds.push(threshold(copy, hard.value().clone(), GoDuration::ZERO));
            }
        }
        if let (Some(soft), Some(grace_period)) = (soft, grace_period) {
            thresholds.push(threshold(*signal, soft.value().clone(), *grace_period));
        }
    }
    // Hard ones first; the sort is stable.
    thresholds.sort_by_key(|threshold| !threshold.is_hard());
    thresholds
}
