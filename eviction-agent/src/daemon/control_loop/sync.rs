//! A sync: samples the node, makes the compact decision, acts on it, and publishes it.
//!
//! The telemetry thread makes the record of a decision from a copy of the decision and of everything that it points
//! to: the next evaluation uses the same lists. The copy is made after everything that cannot wait.

use std::sync::Arc;

use eviction_core::decision::{Decision, DecisionKind, ProposalState};
use eviction_core::disk_layout::Parts;
use eviction_core::eviction::EvaluationEnd;
use eviction_core::input::{Event, Input};
use eviction_core::observation::Observations;
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::record::PodSample;
use eviction_core::signal::{NodeCondition, Signal, SignalSet};
use eviction_core::signal_filter::observe;
use eviction_core::snapshot::Snapshot;
use eviction_core::time::Timestamp;
use eviction_node::notify::{memory_events, psi};

use super::super::memory_notifier::Trigger;
use super::ControlLoop;
use super::kernel_thresholds::next_grace;
use crate::telemetry::event_log;
use crate::telemetry::queue::{DecisionEvent, TelemetryEvent};
use eviction_node::clock::{Instant, mono_ns};
use eviction_node::sampler::CompleteSample;

/// How many pods are read again, about 10 µs each: the one that would be evicted, and the next one.
const REREAD_PODS: usize = 2;

/// How often pods are read again: with new values other pods may rank first.
const MAX_REREADS: usize = 4;

impl ControlLoop {
    /// Samples the node, lets the engine decide if it may, and sets all thresholds again.
    pub(super) fn sync(&mut self, trigger: Trigger, crossed: Option<u64>) {
        if self.engine.is_proposal_due(self.clock.now().wall) {
            // Before the sample, whose extent depends on the policy in force.
            self.step_configuration(Event::ApplyProposed);
        }
        let (node_sample, decided) = self.sample_and_decide(trigger, crossed);
        self.act_on(&node_sample, decided);
    }

    /// Carries out the decision, sets all thresholds again, and publishes it.
    pub(super) fn act_on(&mut self, node_sample: &CompleteSample, decided: Option<DecisionEvent>) {
        let Some(event) = decided else {
            let is_full_sample = self.set_thresholds_and_timer(node_sample, None);
            self.arm_kill_orders(node_sample);
            if is_full_sample {
                self.publish_pods(node_sample);
            }
            return;
        };
        let decision = &event.decision;
        self.read_storage_for(decision);
        if let Some(ProposalState::Applied) = decision.proposal {
            self.adopt_policy();
        }
        // Before a pod is evicted: its replacement must not be scheduled here.
        if let Some(node) = &mut self.node
            && node.send(decision, self.engine.policy(), self.state_sender.next_number())
        {
            self.state_sender.is_changed = true;
        }
        self.carry_out(decision, event.decided_mono_ns);
        self.freeze_victim(decision);
        let evicts = self.state.decisions >= event.first_id;
        let changed = self.state.last_change.update(decision) || evicts;
        if changed {
            self.state_sender.is_changed = true;
        }
        if evicts && self.evictions.is_some() {
            // The request is sent when this is written, so it does not wait for the end of the iteration.
            self.persist();
        }
        let is_full_sample = self.set_thresholds_and_timer(node_sample, next_grace(decision));
        if changed {
            self.publish_decision(event);
        } else {
            self.recycle(event.decision);
        }
        self.arm_kill_orders(node_sample);
        if is_full_sample {
            self.warm_up(node_sample);
            self.publish_pods(node_sample);
        }
    }

    /// Samples the node and makes the compact decision, unless the engine is waiting. Once every buffer has its size
    /// this neither allocates nor takes a lock, since the thread that holds a lock may not get to run.
    pub(super) fn sample_and_decide(
        &mut self,
        trigger: Trigger,
        crossed: Option<u64>,
    ) -> (CompleteSample, Option<DecisionEvent>) {
        let at = self.clock.now();
        self.count_sync(trigger, at);
        let events = self.notifier.drain(&mut self.state.charged);
        let crossed = self.handle_bpf_events(events).or(crossed);
        self.decide_due_terminations(at.wall);
        self.publish_group_kills(at.mono_ns);
        let mut node_sample = self.node_sampler.sample_node(at, &self.clock, &self.state.charged);
        self.update_awaited_space();
        let is_counted = self.add_counted_inodes(at.mono_ns);
        node_sample.stats.unmeasured = match self.node_sampler.disks.is_layout_known() {
            true => self.storage.unmeasured(at.mono_ns, is_counted),
            false => Parts::ALL,
        };
        node_sample.stats.awaited_bytes = self.storage.awaited_bytes(at.mono_ns);
        self.mark_sample(node_sample.memory_left, at.mono_ns);
        let (memory, pids) = (node_sample.memory_left, node_sample.pids_left);
        let seen = observe(&node_sample.stats, self.node_sampler.measure());
        self.record_readings(&seen, Signal::ALL, at);
        self.gauges.set_by_measure(&node_sample.by_measure);
        if let Reading::Known(seen) = node_sample.measured {
            self.notifier.observe(at.mono_ns, seen.working_set);
        }
        let pids_pressed = pids.known().is_some_and(|left| self.pid_levels.may_be_met(left));
        let memory_pressed = memory.known().is_some_and(|left| self.memory_levels.may_be_met(left))
            || self.node_sampler.allocatable.may_be_met();
        let disks_pressed = self.node_sampler.disks.may_be_met();
        self.state.disk_crossed_ns = match trigger {
            Trigger::DiskThreshold => crossed,
            _ => self.state.disk_crossed_ns,
        }
        .filter(|_| disks_pressed);
        // Pods that may be evicted by prediction must have been sampled.
        let under_pressure =
            pids_pressed || self.state.last_change.imminent || memory_pressed || disks_pressed;
        self.state.under_pressure = under_pressure;
        if self.engine.is_waiting(at.wall) {
            return (node_sample, None);
        }
        let read_at = node_sample.read_at.wall;
        let ranks = under_pressure && self.engine.needs_pods(read_at, &node_sample.stats);
        let on_trial = self.ranks_on_trial(&node_sample.stats);
        let is_measured = std::mem::take(&mut self.storage.needs_limit_check);
        let with_pods = ranks
            || on_trial
            || self.state.last_change.imminent
            || self.passes_pods_for_trends()
            || is_measured;
        let snapshot = match with_pods {
            true => {
                self.node_sampler.sample_pods(&node_sample);
                if pids_pressed || on_trial {
                    self.node_sampler.cgroups.count_tasks();
                }
                self.snapshot_pods(&node_sample, memory_pressed || on_trial)
            }
            false => self.node_sampler.snapshot_of_node(&node_sample),
        };
        if self.engine.wants_layout() {
            let event = Event::DiskLayout(Ok(self.node_sampler.disks.layout()));
            self.step(Input { at: read_at, event });
        }
        let decision = self.decide(read_at, &snapshot);
        let decided = DecisionEvent {
            first_id: self.state.decisions + 1,
            usage: node_sample.memory.known(),
            detected_by: self.detected_by(trigger),
            crossed_mono_ns: crossed,
            sampled: node_sample.at,
            decided_mono_ns: mono_ns(),
            decision,
        };
        (node_sample, Some(decided))
    }

    /// Takes over file systems that were found after the start: passes on their layout, and publishes how they
    /// are read. The next sample reads them.
    pub(super) fn adopt_late_disks(&mut self) {
        if !self.node_sampler.disks.take_late() {
            return;
        }
        let disks = &self.node_sampler.disks;
        if disks.devices().next().is_some() && self.notifier.bpf.handle().is_some() {
            tracing::warn!(
                "nodefs or imagefs responded too late at the start: no BPF program reports what is written to them before the agent is restarted"
            );
        }
        self.adopt_disks();
    }

    /// Passes on another layout of the disks, and publishes how they are read.
    pub(super) fn adopt_disks(&mut self) {
        let at = self.clock.now().wall;
        let disks = &self.node_sampler.disks;
        let (layout, sources) = (disks.layout(), disks.info());
        self.step_and_discard(Event::DiskLayout(Ok(layout)));
        for info in sources {
            self.telemetry.publish(event_log::Event::Backend(info.into()), at);
        }
    }

    /// Returns a snapshot of the node and its pods. Usages that changed are of this sample, but the memory.stat
    /// of a pod may be that of the last full one. With `reread`, memory.stat is read for the first candidates,
    /// and the pods are ranked once more.
    fn snapshot_pods(&mut self, node_sample: &CompleteSample, reread: bool) -> Arc<Snapshot> {
        let mut snapshot = self.node_sampler.snapshot_of_pods(node_sample, &self.pod_index);
        for _ in 0..if reread { MAX_REREADS } else { 0 } {
            self.engine.rank_ahead(&snapshot, &mut self.state.ahead);
            let first = self.state.ahead.iter().take(REREAD_PODS).map(|candidate| candidate.pod);
            if !self.node_sampler.read_again(node_sample, &self.pod_index, first) {
                break;
            }
            self.node_sampler.recycle(snapshot);
            snapshot = self.node_sampler.snapshot_of_pods(node_sample, &self.pod_index);
        }
        snapshot
    }

    pub(super) fn count_sync(&self, trigger: Trigger, at: Instant) {
        self.gauges.count_sync(trigger);
        self.metrics.last_iteration.set(self.clock.shown(at.wall).as_millisecond() as f64 / 1000.0);
    }

    /// Exports the readings of these signals, and publishes which of them has become unknown.
    pub(super) fn record_readings(
        &mut self,
        seen: &Observations,
        signals: impl IntoIterator<Item = Signal>,
        at: Instant,
    ) {
        for signal in signals {
            let reading = seen.reading(signal);
            self.gauges.set_reading(signal, reading);
            // Like the kubelet: there is no value for all pods if their cgroup has no limit. For the disks: this
            // is not a node, or the file system has no limit of inodes.
            let may_be_absent = signal == Signal::AllocatableMemoryAvailable
                || signal.condition() == NodeCondition::DiskPressure;
            let why = match reading {
                Reading::Known(_) => None,
                Reading::Unknown(UnknownReason::Absent) if may_be_absent => None,
                Reading::Unknown(why) => Some(why),
            };
            let before = std::mem::replace(&mut self.state.unknown[signal as usize], why);
            if let Some(why) = why.filter(|why| before != Some(*why)) {
                self.telemetry.send(TelemetryEvent::Unknown(signal, why, at.wall));
            }
        }
    }

    /// Publishes a copy of a decision, and recycles its memory. If the telemetry thread has no room, the decision
    /// is dropped and counted.
    pub(super) fn publish_decision(&mut self, event: DecisionEvent) {
        self.telemetry.send_decision(|| DecisionEvent { decision: copy_of(&event.decision), ..event });
        self.recycle(event.decision);
    }

    /// Recycles the memory of a decision and of its snapshot.
    pub(super) fn recycle(&mut self, decision: Decision) {
        let snapshot = decision.evaluation().map(|evaluation| Arc::clone(&evaluation.snapshot));
        self.engine.recycle(decision);
        if let Some(snapshot) = snapshot {
            self.node_sampler.recycle(snapshot);
        }
    }

    /// Publishes the pods' usage of the last full sample.
    pub(super) fn publish_pods(&mut self, node_sample: &CompleteSample) {
        let snapshot = self.node_sampler.snapshot_of_pods(node_sample, &self.pod_index);
        self.telemetry.send_pods(|| PodSample {
            at: node_sample.at.wall,
            pods: Arc::clone(self.engine.pods()),
            snapshot: Arc::new((*snapshot).clone()),
            layout: self.node_sampler.disks.layout(),
            in_flight: self.engine.in_flight().to_vec(),
            sized: !self.engine.policy().rules.are_kubelets(),
        });
        self.node_sampler.recycle(snapshot);
    }

    fn detected_by(&self, trigger: Trigger) -> &'static str {
        match trigger {
            Trigger::Charge => self.notifier.bpf.charge_backend(),
            Trigger::DiskThreshold => self.notifier.bpf.disk_backend(),
            Trigger::TaskAlarm => "task alarm",
            Trigger::MemcgV1Threshold => "cgroup v1 usage threshold",
            Trigger::Psi => psi::NAME,
            Trigger::MemoryEvents => memory_events::NAME,
            other => other.name(),
        }
    }
}

/// Returns a deep copy of a decision, including the values of the sample.
fn copy_of(decision: &Decision) -> Decision {
    let mut copy = decision.clone();
    if let DecisionKind::Evaluated(evaluation) = &mut copy.kind {
        evaluation.snapshot = Arc::new((*evaluation.snapshot).clone());
    }
    copy
}

/// The parts of a decision that are published when they change.
#[derive(Debug, Default)]
pub(super) struct LoopDelta {
    /// The indexes of the thresholds that are met.
    pub(super) met: Vec<u8>,
    conditions: Vec<NodeCondition>,
    unavailable: SignalSet,
    rejected: SignalSet,
    /// Whether a threshold was about to be met.
    pub(super) imminent: bool,
    /// Whether an evaluation waited for space that xfs has allocated ahead of files.
    awaits_space: bool,
    /// Since when a changed configuration is pending.
    pub(super) pending_since: Option<Timestamp>,
}

impl LoopDelta {
    /// Records a decision. Returns true if something changed. Otherwise it allocates nothing: the kernel thresholds are
    /// set after this.
    pub(super) fn update(&mut self, decision: &Decision) -> bool {
        let evaluation = decision.evaluation();
        let mut rejected = SignalSet::EMPTY;
        for refusal in evaluation.map_or(&[][..], |it| &it.context.rejected) {
            rejected.insert(refusal.signal);
        }
        let met = evaluation.map_or(&[][..], |it| &it.met).iter().map(|met| met.threshold);
        let awaits_space = evaluation.is_some_and(|it| it.end == EvaluationEnd::AwaitingSpace);
        let pending_since = match decision.proposal {
            Some(ProposalState::Pending { since, .. }) => Some(since),
            _ => None,
        };
        let changes = [
            set_list(&mut self.met, met),
            set_list(&mut self.conditions, decision.conditions.iter().map(|raised| raised.condition)),
            set(&mut self.unavailable, decision.unavailable),
            set(&mut self.rejected, rejected),
            set(&mut self.imminent, evaluation.is_some_and(|it| !it.context.imminent.is_empty())),
            set(&mut self.awaits_space, awaits_space),
            set(&mut self.pending_since, pending_since),
        ];
        let is_decided = matches!(decision.proposal, Some(ProposalState::Unchanged | ProposalState::Applied));
        is_decided || changes.contains(&true)
    }
}

/// Sets a value. Returns whether that changes it.
fn set<T: PartialEq + Copy>(value: &mut T, new: T) -> bool {
    std::mem::replace(value, new) != new
}

/// Sets a list, in its own memory. Returns whether that changes it.
fn set_list<T: PartialEq + Copy>(list: &mut Vec<T>, new: impl Iterator<Item = T> + Clone) -> bool {
    let is_same = new.clone().eq(list.iter().copied());
    if !is_same {
        list.clear();
        list.extend(new);
    }
    !is_same
}

#[cfg(test)]
mod tests {
    use ::tests::allocations::trace_allocations;
    use eviction_core::fixture;

    use super::*;

    #[test]
    fn a_decision_like_the_one_before_is_no_change_and_allocates_nothing() {
        let pods = fixture::set(vec![fixture::pod("a", "50")]);
        let soft = fixture::soft(Signal::MemoryAvailable, "200", 60);
        let mut engine = fixture::engine(fixture::policy(vec![soft]), &pods);
        let mut decide = |seconds, available| {
            let snapshot = fixture::snapshot(fixture::node(available, 900, fixture::at(seconds)), &[]);
            fixture::step(&mut engine, seconds, Event::Sample(snapshot))
        };
        let mut last = LoopDelta::default();
        assert!(!last.update(&decide(1, 900)), "nothing is met");
        assert!(last.update(&decide(2, 150)));
        assert_eq!(
            (last.met.as_slice(), last.conditions.as_slice()),
            (&[0][..], &[NodeCondition::MemoryPressure][..])
        );
        let decision = decide(3, 149);
        let (is_changed, allocated) = trace_allocations(|| last.update(&decision));
        assert!(!is_changed && allocated.blocks == 0, "{allocated}");
        assert!(last.update(&decide(4, 900)) && last.met.is_empty());
    }
}
