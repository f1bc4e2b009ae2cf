//! Kernel kill: arms a kill order for memory and one for writers to nodefs after each sample, and finishes what the
//! kernel carried out.

use eviction_bpf::{ArmedDiskOrder, ArmedOrder, EventClass, KernelKill, KernelKillCause};
use eviction_core::decision::{Decision, Evaluation};
use eviction_core::engine::kernel_kill::{ArmedKillOrder, NotArmedReason};
use eviction_core::in_flight::InFlightEviction;
use eviction_core::pods::KnownPod;
use eviction_core::policy::eviction_settings::NodeReclaim;
use eviction_core::reading::Reading;
use eviction_core::signal::{Resource, Signal};
use eviction_core::time::nanos;

use super::super::memory_notifier::root_id;
use super::super::rate_limit::Admission;
use super::ControlLoop;
use super::evictions::grace_of;
use super::kill_orders::{
    CHOICE_VALIDITY, EXTRA_GROWTH_BYTES, KillOrders, RECLAIM_WINDOW, VictimChoice, arming_headroom,
};
use super::pod_storage::MAX_AGE;
use crate::telemetry::event_log;
use crate::telemetry::queue::DecisionEvent;
use eviction_node::clock::{Instant, mono_ns};
use eviction_node::sampler::CompleteSample;

/// How a decision that the kernel carried out was detected.
const DETECTED_BY: &str = "kernel_kill";

/// The signal for which writers are killed, while its threshold is near.
const WRITERS_SIGNAL: Signal = Signal::NodeFsAvailable;

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

    /// Marks the sample that was just taken, if a kill order may be based on it.
    pub(super) fn mark_sample(&mut self, memory: Reading<i64>, mono_ns: u64) {
        let is_wanted = self.engine.policy().kernel_kill.includes(Signal::MemoryAvailable)
            && self.notifier.bpf.has_kernel_kill();
        if is_wanted
            && self.kill_orders.is_recent(mono_ns)
            && self.evicting_decision_of_victim(mono_ns).is_some()
        {
            return self.kill_orders.keep_armed();
        }
        let max_headroom = arming_headroom(self.node_sampler.capacity().memory);
        let levels = &self.memory_levels;
        let near = is_wanted
            && memory.known().is_some_and(|available| {
                levels.may_be_met(available)
                    || levels.distance(available).is_some_and(|left| left <= max_headroom)
            });
        let near = root_id(&self.node_sampler.cgroups).filter(|_| near);
        self.kill_orders.mark(&mut self.notifier.bpf, near);
    }

    /// Arms the kill orders that may be armed until the next sample, and exports whether there is one.
    pub(super) fn arm_kill_orders(&mut self, node_sample: &CompleteSample) {
        let is_marked = self.kill_orders.is_marked();
        if is_marked {
            match self.try_arm_kill_order(node_sample) {
                Ok(()) => {}
                // The order of the previous sample stays armed for the process that charges the next page.
                Err(NotArmedReason::AtThreshold)
                    if self.kill_orders.victim(node_sample.at.mono_ns).is_some() => {}
                Err(idle) => self.kill_orders.withdraw_because(idle, &mut self.notifier.bpf, &self.metrics),
            }
        }
        let guards_disk = self.engine.policy().kernel_kill.includes(WRITERS_SIGNAL)
            || self.disk_kill_orders.choice.is_some();
        if guards_disk && let Err(idle) = self.try_arm_disk_kill(node_sample) {
            self.disk_kill_orders.withdraw_because(idle, &mut self.notifier.bpf, &self.metrics);
        }
        // It reads a map entry for each reason, so not in each sync.
        if is_marked || guards_disk {
            self.notifier.bpf.export_suppressed();
        }
        let now_ns = mono_ns();
        let orders = [&self.kill_orders, &self.disk_kill_orders];
        let is_armed = orders.into_iter().any(|orders| orders.victim(now_ns).is_some());
        self.metrics.kernel_kill_armed.set(is_armed.into());
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

    /// Arms the order for memory until the next sample.
    fn try_arm_kill_order(&mut self, node_sample: &CompleteSample) -> Result<(), NotArmedReason> {
        let evicting_decision = self.evicting_decision_of_victim(node_sample.at.mono_ns);
        let is_evicting_others = evicting_decision.is_none() && self.executing().next().is_some();
        if is_evicting_others || self.kill_orders.awaits_event(node_sample.at.mono_ns) {
            return Err(NotArmedReason::JustCarriedOut);
        }
        let (Reading::Known(seen), Some(id)) = (node_sample.memory, root_id(&self.node_sampler.cgroups))
        else {
            return Err(NotArmedReason::MapWriteFailed);
        };
        if evicting_decision.is_none() && self.kill_orders.needs_choice(node_sample.at, seen.working_set) {
            let max_headroom = arming_headroom(self.node_sampler.capacity().memory);
            let (order, victim_id) =
                self.choose_victim(node_sample, Signal::MemoryAvailable, max_headroom)?;
            let expires_ns = node_sample.at.mono_ns.saturating_add(nanos(CHOICE_VALIDITY));
            self.kill_orders.choose(order, victim_id, node_sample.at, expires_ns);
        }
        let (Some(epoch), Some(choice)) = (self.kill_orders.epoch, &self.kill_orders.choice) else {
            return Err(NotArmedReason::MapWriteFailed);
        };
        let max_working_set = choice.order.threshold.max_working_set();
        let extra = if evicting_decision.is_some() { EXTRA_GROWTH_BYTES } else { 0 };
        let distance = max_working_set.saturating_sub(seen.working_set) + extra;
        if distance == 0 {
            return Err(NotArmedReason::AtThreshold);
        }
        let whole_machine = self.node_sampler.cgroups.root().whole_machine;
        let order = ArmedOrder {
            epoch,
            victim_id: choice.victim_id,
            level_id: id,
            max_working_set: (!whole_machine).then_some(max_working_set),
            distance,
            room: self.watermarks.above_reserve(node_sample.free).filter(|_| whole_machine),
            expires_ns: choice.expires_ns,
            still_until_ns: node_sample.at.mono_ns.saturating_add(nanos(RECLAIM_WINDOW)),
        };
        let armed = self.notifier.bpf.arm_kill(|handle| handle.arm_kill(&order));
        self.kill_orders.record_armed(armed, node_sample.at, evicting_decision)
    }

    /// Returns whether an order for writers may be armed if it is known what pods use. No order is armed while an
    /// eviction is executed.
    pub(super) fn may_arm_disk_kill(&self) -> bool {
        self.engine.policy().kernel_kill.includes(WRITERS_SIGNAL)
            && self.executing().next().is_none()
            && self.writers_device().is_some()
    }

    /// Returns the file system whose writers can be killed in the kernel: nodefs, while its threshold is near.
    fn writers_device(&self) -> Option<u64> {
        let [node, _] = self.node_sampler.disks.ext4_devices();
        let device = node?;
        self.notifier.bpf.can_kill_writers(device).then_some(device)
    }

    /// Arms the order for writers until the next reading of pods' storage.
    fn try_arm_disk_kill(&mut self, node_sample: &CompleteSample) -> Result<(), NotArmedReason> {
        let (at, now_ns) = (node_sample.at, node_sample.at.mono_ns);
        if !self.engine.policy().kernel_kill.includes(WRITERS_SIGNAL) {
            return Err(NotArmedReason::Off);
        }
        let device = self.writers_device().ok_or(NotArmedReason::Far)?;
        if self.executing().next().is_some() || self.disk_kill_orders.awaits_event(now_ns) {
            return Err(NotArmedReason::JustCarriedOut);
        }
        let read_ns = self.storage.ranked_by(now_ns);
        let read_ns = read_ns.ok_or(NotArmedReason::UsageUnknown)?;
        // An order is valid for as long as the reading that its pod was chosen on.
        let expires_ns = read_ns.saturating_add(nanos(MAX_AGE));
        if !self.disk_kill_orders.is_chosen_until(expires_ns) {
            let (order, victim_id) = self.choose_victim(node_sample, WRITERS_SIGNAL, u64::MAX)?;
            if order.decision.evaluation().is_none_or(|evaluation| self.reclaims_first(evaluation)) {
                return Err(NotArmedReason::ReclaimFirst);
            }
            self.disk_kill_orders.choose(order, victim_id, at, expires_ns);
        }
        let choice = self.disk_kill_orders.choice.as_ref().ok_or(NotArmedReason::MapWriteFailed)?;
        let &VictimChoice { victim_id, expires_ns, .. } = choice;
        let order = ArmedDiskOrder { victim_id, device, expires_ns };
        let threshold = choice.order.threshold.value;
        // In this order: what is taken in between makes the order late, and never early.
        let available = self.node_sampler.disks.node_fs_available();
        let since = self.notifier.bpf.handle().and_then(|handle| handle.disk_total(device));
        let headroom = available.and_then(|available| available.checked_sub(threshold));
        let (Some(headroom), Some(since)) = (headroom, since) else {
            return Err(NotArmedReason::MapWriteFailed);
        };
        let armed = self.notifier.bpf.arm_kill(|handle| handle.arm_disk_kill(&order, since, headroom));
        self.disk_kill_orders.record_armed(armed, at, None)
    }

    /// Returns whether node reclaim is attempted before this evaluation evicts a pod.
    fn reclaims_first(&self, evaluation: &Evaluation) -> bool {
        match self.engine.policy().eviction.node_reclaim {
            NodeReclaim::Off => false,
            NodeReclaim::Cri => true,
            NodeReclaim::Kubelet => self.sufficient_garbage(evaluation, WRITERS_SIGNAL).is_some(),
        }
    }

    /// Returns the pod that the engine would evict for this signal, if it could be killed, and the id of its
    /// cgroup.
    pub(super) fn choose_victim(
        &mut self,
        node_sample: &CompleteSample,
        signal: Signal,
        max_headroom: u64,
    ) -> Result<(ArmedKillOrder, u64), NotArmedReason> {
        self.node_sampler.sample_pods(node_sample);
        let snapshot = self.node_sampler.snapshot_of_pods(node_sample, &self.pod_index);
        let order = self.engine.kill_order(node_sample.read_at.wall, &snapshot, signal, max_headroom);
        self.node_sampler.recycle(snapshot);
        let order = order?;
        let now_ns = mono_ns();
        let evaluation = order.decision.evaluation();
        let it = evaluation.and_then(|it| self.eviction_of(it, &order.eviction, 0, now_ns));
        let target = it.and_then(|it| self.target(&it, now_ns, grace_of(&it)));
        let target = target.ok_or(NotArmedReason::NoSingleCgroup)?;
        let [group] = target.groups.as_slice() else { return Err(NotArmedReason::NoSingleCgroup) };
        let victim_id = group.id.ok_or(NotArmedReason::NoSingleCgroup)?;
        let admitted = self.rate_limit.admit(&target, false, self.executing(), now_ns);
        let is_admitted = admitted == Ok(Admission::Begin);
        if !is_admitted || self.executor.check(&target).is_err() {
            return Err(NotArmedReason::KillRefused);
        }
        Ok((order, victim_id))
    }

    /// Handles a kill that the kernel carried out by a kill order. The engine gets the crossing as the order
    /// supposed it, so that its decision is in force, and the executor ends the rest of the pod.
    pub(super) fn handle_kernel_kill(&mut self, kill: &KernelKill) {
        let carried_out = self.clock.at(kill.ktime_ns);
        let orders = match kill.cause {
            KernelKillCause::Memory => &mut self.kill_orders,
            KernelKillCause::Disk => &mut self.disk_kill_orders,
        };
        let Some(choice) = orders.take_choice(kill.order) else {
            tracing::error!(
                order = kill.order,
                pid = kill.tgid,
                "the kernel carried out an unknown kill order"
            );
            return;
        };
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
        let victim = &choice.order.victim;
        let evicting_decision =
            self.evictions_of(victim).next().and_then(|it| it.decision).or(choice.evicting_decision);
        let id = evicting_decision.or_else(|| self.decide_and_carry_out(&choice.order, carried_out));
        let threshold = choice.order.threshold;
        let used = threshold.capacity.saturating_sub(threshold.available);
        let event = event_log::KernelKillEvent {
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
            killed_mono_ns: kill.ktime_ns,
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
