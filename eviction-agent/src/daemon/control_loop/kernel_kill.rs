//! Kernel kill: arms a kill order after each sample, and finishes what the kernel carried out.

use std::sync::Arc;

use eviction_bpf::{EventClass, KernelKill, KernelKillCause};
use eviction_core::decision::Decision;
use eviction_core::engine::kernel_kill::{ArmedKillOrder, NotArmedReason};
use eviction_core::in_flight::InFlightEviction;
use eviction_core::pods::KnownPod;
use eviction_core::reading::Reading;
use eviction_core::signal::{Resource, Signal};
use eviction_core::time::nanos;
use eviction_node::cgroup::sample::Tasks;

use super::super::kernel_kill::{CHOICE_VALIDITY, GuardedLevel, KernelKillIdle, KillOrders, arming_headroom};
use super::super::memory_notifier::root_id;
use super::super::rate_limit::Admission;
use super::ControlLoop;
use crate::telemetry::event_log;
use crate::telemetry::queue::DecisionEvent;
use eviction_node::clock::{Instant, mono_ns};
use eviction_node::sampler::CompleteSample;

/// How a decision that the kernel carried out was detected.
const DETECTED_BY: &str = "kernel_kill";

impl ControlLoop {
    /// Logs that kernel kill is configured but not available.
    pub(super) fn warn_without_kernel_kill(&self) {
        let (mode, bpf) = (self.engine.policy().kernel_kill, &self.notifier.bpf);
        if mode.includes(Signal::MemoryAvailable) && !bpf.has_kernel_kill() {
            tracing::warn!(
                help = "needs --action kill, a charge hook, and kernel kill enabled when the agent starts",
                "kernel kill is on, but no kill order will be armed for memory"
            );
        }
        let [ext4_node, _] = self.node_sampler.disks.ext4_devices();
        let is_hooked = bpf.reports(EventClass::DiskNear) && ext4_node.is_some();
        if mode.includes(Signal::NodeFsAvailable) && !(bpf.is_loaded_for_kernel_kill() && is_hooked) {
            tracing::warn!(
                help = "needs --action kill, a nodefs on ext4, its hook on reservations, and kernel kill enabled when the agent starts",
                "kernel kill is on, but no kill order will be armed for writers"
            );
        }
    }

    /// Exports whether a kill order is armed.
    pub(super) fn export_armed(&self) {
        let now_ns = mono_ns();
        let orders = [&self.kill_orders, &self.disk_kill_orders];
        let is_armed = orders.into_iter().any(|orders| orders.victim(now_ns).is_some());
        self.metrics.kernel_kill_armed.set(is_armed.into());
    }

    /// Marks the sample that was just taken, if a kill order may be based on it.
    pub(super) fn mark_sample(&mut self, memory: Reading<i64>, mono_ns: u64) {
        if !self.notifier.bpf.has_kernel_kill() {
            if self.kill_orders.is_marked() {
                self.kill_orders.mark(&mut self.notifier.bpf, None);
                self.export_armed();
            }
            return;
        }
        let wanted = self.engine.policy().kernel_kill.includes(Signal::MemoryAvailable);
        if wanted
            && self.kill_orders.is_recent(mono_ns)
            && self.evicting_decision_of_victim(mono_ns).is_some()
        {
            return self.kill_orders.keep_armed();
        }
        let max_headroom = arming_headroom(self.node_sampler.capacity().memory);
        let levels = &self.memory_levels;
        let near = wanted
            && memory.known().is_some_and(|available| {
                levels.may_be_met(available)
                    || levels.distance(available).is_some_and(|left| left <= max_headroom)
            });
        let near = root_id(&self.node_sampler.cgroups).filter(|_| near);
        self.kill_orders.mark(&mut self.notifier.bpf, near);
        if near.is_none() {
            self.export_armed();
        }
    }

    /// Arms a kill order for memory until the next sample, if one may be armed.
    pub(super) fn arm_kill_order(&mut self, node_sample: &CompleteSample) {
        if !self.kill_orders.is_marked() {
            return;
        }
        match self.try_arm_kill_order(node_sample) {
            Ok(()) => {}
            // The order of the previous sample stays armed for the process that charges the next page.
            Err(KernelKillIdle::NoOrder(NotArmedReason::AtThreshold))
                if self.kill_orders.may_stay_armed(node_sample.at.mono_ns) => {}
            Err(idle) => self.kill_orders.withdraw_because(idle, &mut self.notifier.bpf, &self.metrics),
        }
        self.notifier.bpf.export_suppressed(&self.metrics);
        self.export_armed();
    }

    /// Withdraws the armed kill order if an ordinary decision evicts other pods than its victim, so that one
    /// crossing costs one pod. Returns true if an order was carried out already, now or at an earlier decision:
    /// then its victim is evicted when the event is read, and the others are not evicted.
    pub(super) fn is_killed_in_kernel(&mut self, decision: &Decision) -> bool {
        let evicts = decision.evictions().next().is_some();
        let now_ns = mono_ns();
        let evicts_others = |orders: &KillOrders| {
            let Some(victim) = orders.victim(now_ns) else { return false };
            evicts && self.evictions_of(victim).next().is_none() && number_of(decision, 0, victim).is_none()
        };
        let orders = [&self.kill_orders, &self.disk_kill_orders];
        let is_awaited = evicts && orders.iter().any(|orders| orders.awaits_event(now_ns));
        let [memory, disk] = orders.map(evicts_others);
        let bpf = &mut self.notifier.bpf;
        let is_killed_for_memory = memory && self.kill_orders.withdraw(bpf);
        let is_killed_for_disk = disk && self.disk_kill_orders.withdraw(bpf);
        is_killed_for_memory || is_killed_for_disk || is_awaited
    }

    /// Returns the ordinary decision by which the victim of the armed kill order is being evicted. The victim
    /// may go on growing until its grace period is over.
    fn evicting_decision_of_victim(&self, mono_ns: u64) -> Option<u64> {
        let mut evictions = self.evictions_of(self.kill_orders.victim(mono_ns)?);
        evictions.find(|it| it.hard && it.resource() == Resource::Memory)?.decision
    }

    fn try_arm_kill_order(&mut self, node_sample: &CompleteSample) -> Result<(), KernelKillIdle> {
        let evicting_decision = self.evicting_decision_of_victim(node_sample.at.mono_ns);
        let is_evicting_others = evicting_decision.is_none() && self.executing().next().is_some();
        if is_evicting_others || self.kill_orders.awaits_event(node_sample.at.mono_ns) {
            return Err(KernelKillIdle::InFlight);
        }
        let (Reading::Known(seen), Some(id)) = (node_sample.memory, root_id(&self.node_sampler.cgroups))
        else {
            return Err(KernelKillIdle::NotSet);
        };
        if evicting_decision.is_none() && self.kill_orders.needs_choice(node_sample.at, seen.working_set) {
            let max_headroom = arming_headroom(self.node_sampler.capacity().memory);
            let (order, victim_id) =
                self.choose_victim(node_sample, Signal::MemoryAvailable, max_headroom)?;
            let expires_ns = node_sample.at.mono_ns.saturating_add(nanos(CHOICE_VALIDITY));
            self.kill_orders.choose(order, victim_id, node_sample.at, expires_ns);
        }
        let is_all = !self.node_sampler.cgroups.root().whole_machine;
        let room = self.watermarks.above_reserve(node_sample.free).filter(|_| !is_all);
        self.kill_orders.arm(
            &mut self.notifier.bpf,
            GuardedLevel { id, is_all, room },
            seen,
            node_sample.at,
            evicting_decision,
        )
    }

    /// Returns the pod that the engine would evict for this signal, if it could be killed, and the id of its
    /// cgroup.
    pub(super) fn choose_victim(
        &mut self,
        node_sample: &CompleteSample,
        signal: Signal,
        max_headroom: u64,
    ) -> Result<(ArmedKillOrder, u64), KernelKillIdle> {
        let snapshot = self.node_sampler.snapshot_with_pods(node_sample, &self.pod_index, Tasks::Leave);
        let order = self.engine.kill_order(node_sample.read_at.wall, &snapshot, signal, max_headroom);
        self.node_sampler.recycle(snapshot);
        let order = order.map_err(KernelKillIdle::NoOrder)?;
        let target = self
            .target(0, &order.decision, &order.eviction, mono_ns())
            .ok_or(KernelKillIdle::SeveralCgroups)?;
        let [group] = target.groups.as_slice() else { return Err(KernelKillIdle::SeveralCgroups) };
        let victim_id = group.id.ok_or(KernelKillIdle::SeveralCgroups)?;
        let admitted = self.rate_limit.admit(&target, false, self.executing(), mono_ns());
        let is_admitted = admitted == Ok(Admission::Begin);
        if !is_admitted || self.executor.check(&target).is_err() {
            return Err(KernelKillIdle::KillerRejects);
        }
        Ok((order, victim_id))
    }

    /// Handles a kill that the kernel carried out by a kill order. The engine gets the crossing as the order
    /// supposed it, so that its decision is in force, and the executor ends the rest of the pod.
    pub(super) fn handle_kernel_kill(&mut self, kill: &KernelKill) {
        let carried_out = self.clock.at(kill.stamp.ktime_ns);
        let orders = match kill.cause {
            KernelKillCause::Memory => &mut self.kill_orders,
            KernelKillCause::Disk => &mut self.disk_kill_orders,
        };
        let Some(choice) = orders.choice_of(kill.order) else {
            tracing::error!(
                order = kill.order,
                pid = kill.tgid,
                "the kernel carried out an unknown kill order"
            );
            return;
        };
        orders.discard_choice();
        self.notifier.bpf.disarm_kill(kill.cause);
        if let Some(error) = kill.error {
            tracing::warn!(
                order = kill.order,
                pid = kill.tgid,
                error,
                "the kernel refused to carry out a kill order"
            );
            return;
        }
        self.metrics.kernel_kills.inc();
        let victim = Arc::clone(&choice.order.victim);
        let evicting_decision =
            self.evictions_of(&victim).next().and_then(|it| it.decision).or(choice.evicting_decision);
        let id = evicting_decision.or_else(|| self.decide_and_carry_out(&choice.order, carried_out));
        let threshold = choice.order.threshold;
        let used = threshold.capacity.saturating_sub(threshold.available);
        let event = event_log::KernelKill {
            id,
            // Telemetry sets it.
            decision_id: None,
            pod: event_log::PodRef::from(&victim.pod),
            pod_uid: victim.pod.uid.to_string(),
            pid: kill.tgid,
            comm: kill.comm_lossy().to_string(),
            signal: threshold.signal,
            threshold_bytes: threshold.value,
            available: threshold.available,
            growth: kill.grown,
            usage: match kill.cause {
                KernelKillCause::Memory => kill.usage,
                KernelKillCause::Disk => used.saturating_add(kill.grown),
            },
            armed_mono_ns: choice.chosen.mono_ns,
            killed_mono_ns: kill.stamp.ktime_ns,
            received_mono_ns: mono_ns(),
        };
        self.telemetry.publish(event_log::Event::KernelKill(event), carried_out.wall);
    }

    /// Returns the evictions of a pod that are in flight.
    fn evictions_of(&self, victim: &KnownPod) -> impl Iterator<Item = &InFlightEviction> {
        self.executing().filter(|it| it.pod.uid == victim.pod.uid)
    }

    /// Lets the engine make the decision of the kill order, and carries it out. Returns the number of the
    /// decision by which the victim is evicted, if it is still the same pod.
    fn decide_and_carry_out(&mut self, order: &ArmedKillOrder, crossed: Instant) -> Option<u64> {
        let at = self.clock.now();
        let snapshot = order.met_at(crossed.wall)?;
        let decision = self.decide(at.wall, &snapshot);
        let decided_mono_ns = mono_ns();
        let first_id = self.state.decisions + 1;
        self.carry_out(&decision, decided_mono_ns);
        let id = number_of(&decision, first_id, &order.victim);
        self.state.last_change.update(&decision);
        self.publish_decision(DecisionEvent {
            first_id,
            usage: None,
            detected_by: DETECTED_BY,
            crossed_mono_ns: Some(crossed.mono_ns),
            sampled: at,
            decided_mono_ns,
            decision,
        });
        id
    }
}

/// Returns the number of the eviction of this pod, if the decision evicts it.
fn number_of(decision: &Decision, first_id: u64, victim: &KnownPod) -> Option<u64> {
    let pods = &decision.evaluation()?.pods;
    let of_victim = |place: u32| pods.get(place).is_some_and(|known| known.pod.uid == victim.pod.uid);
    (first_id..).zip(decision.evictions()).find(|(_, eviction)| of_victim(eviction.pod)).map(|(id, _)| id)
}
