//! Passes a changed configuration to the engine, and applies it to the loop once it is in force.

use std::sync::Arc;

use eviction_core::decision::ProposalState;
use eviction_core::eviction::ExpectedRelease;
use eviction_core::in_flight::{InFlightEviction, TERMINATION_TIMEOUT};
use eviction_core::input::{Event, Input};
use eviction_core::observation::Observation;
use eviction_core::signal::Signal;
use eviction_core::signal_filter::observe;
use eviction_core::snapshot::NodeStats;

use super::ControlLoop;
use crate::telemetry::queue::DecisionEvent;
use eviction_core::threshold::ThresholdLevels;
use eviction_node::clock::mono_ns;

impl ControlLoop {
    /// Passes a changed configuration, or the command to apply it, to the engine. A sync follows.
    pub(super) fn step_configuration(&mut self, event: Event) {
        let now = self.clock.now();
        let decision = self.step(Input { at: now.wall, event });
        if let Some(ProposalState::Applied) = decision.proposal {
            self.adopt_policy();
        }
        if let Some(ProposalState::Pending { .. }) = decision.proposal {
            // The sync that follows finds the pods that the policy would evict. It publishes the pending policy,
            // also one that was pending before.
            self.state.last_change.pending_since = None;
        } else if self.state.last_change.update(&decision) {
            self.publish_decision(DecisionEvent {
                first_id: self.state.decisions + 1,
                usage: None,
                detected_by: "configuration",
                crossed_mono_ns: None,
                sampled: now,
                decided_mono_ns: mono_ns(),
                decision,
            });
        }
    }

    /// Applies the policy in force to thresholds and measures.
    pub(crate) fn apply_policy(&mut self) {
        let policy = self.engine.policy();
        let capacity = self.node_sampler.capacity();
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let levels = |signal, capacity| ThresholdLevels::of(&policy.thresholds, signal, signed(capacity));
        self.memory_levels = levels(Signal::MemoryAvailable, capacity.memory);
        self.gauges.set_policy(policy, &self.metrics);
        self.pid_levels = levels(Signal::PidAvailable, capacity.pids);
        self.node_sampler.apply_rules(&policy.rules);
        self.node_sampler.allocatable.apply_policy(policy);
        self.node_sampler.disks.apply_policy(policy);
    }

    /// Applies the policy in force to thresholds, measures and pods.
    pub(super) fn adopt_policy(&mut self) {
        self.apply_policy();
        // Their pods were chosen by the policy before, for its thresholds.
        for orders in [&mut self.kill_orders, &mut self.disk_kill_orders] {
            orders.withdraw(&mut self.notifier.bpf);
        }
        let pod_index = std::mem::take(&mut self.pod_index).with_policy(self.engine.policy());
        self.adopt_pods(pod_index);
        self.wait_for_unsized_evictions();
        self.warn_without_kernel_kill();
        // The main thread saves it.
        self.policy_in_force.send_replace(Arc::new(self.engine.policy().clone()));
    }

    /// Pauses evictions for those in flight that were chosen by the kubelet's rules: it is not known what they
    /// will release.
    fn wait_for_unsized_evictions(&mut self) {
        let is_unknown = |it: &&InFlightEviction| it.expected == [ExpectedRelease::UNKNOWN; Signal::COUNT];
        let decided = self.executing().filter(is_unknown).map(|it| it.decided_at).max();
        if let Some(decided) = decided.filter(|_| !self.waits_for_victims()) {
            let patience = TERMINATION_TIMEOUT.as_nanos().unsigned_abs();
            self.pause_evictions_until(self.clock.mono_of(decided).saturating_add(patience));
        }
    }

    /// Returns whether a pending policy may rank pods on trial, or as soon as it takes effect.
    pub(super) fn ranks_on_trial(&self, stats: &NodeStats) -> bool {
        let Some(proposed) = self.engine.proposed() else { return false };
        if proposed.rules.prediction().is_some() {
            return true;
        }
        let seen = observe(stats, proposed.rules.memory().measure);
        Signal::ALL.into_iter().any(|signal| {
            let may_be_met = |seen: Observation| {
                ThresholdLevels::of(&proposed.thresholds, signal, seen.capacity).may_be_met(seen.available)
            };
            seen.reading(signal).known().is_some_and(may_be_met)
        })
    }

    /// Returns whether this sync passes the pods to the engine for their trends: once for each full sample.
    pub(super) fn passes_pods_for_trends(&mut self) -> bool {
        let is_new = std::mem::take(&mut self.state.needs_trends);
        is_new && self.engine.policy().rules.prediction().is_some()
    }
}
