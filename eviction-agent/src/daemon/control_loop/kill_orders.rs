//! The kill orders of the control loop: the victim, the sample it was chosen on, and when the choice expires.
//!
//! For memory: the choice needs the usage of all pods. It is made again after 100 ms or when a quarter of the
//! headroom is used. The headroom of an order is that of the latest sample. A choice that is older than two
//! full samples near a threshold is not carried out.

use std::time::Duration;

use crate::telemetry::metrics::Metrics;
use eviction_bpf::{BpfHandle, KernelKillCause};
use eviction_core::engine::kernel_kill::{ArmedKillOrder, NotArmedReason};
use eviction_core::pods::KnownPod;
use eviction_core::time::nanos;
use eviction_node::clock::{Instant, mono_ns};
use eviction_node::notify::sample_interval;

use super::super::memory_notifier::BpfBackend;

/// Kill orders are armed when the headroom is at most the node's memory divided by this.
const HEADROOM_DIVISOR: u64 = 8;

/// Kill orders are armed at least within this headroom: the agent must get to run before it is used up.
const MIN_HEADROOM_BYTES: u64 = 256 << 20;

/// A pod is chosen again after this time.
const CHOICE_INTERVAL: Duration = Duration::from_millis(100);

/// How long a choice for memory is valid.
pub(super) const CHOICE_VALIDITY: Duration = sample_interval::FULL_NEAR.saturating_mul(2);

/// How long after a sample usage at the limit is attributed to page cache that is being reclaimed.
pub(super) const RECLAIM_WINDOW: Duration = Duration::from_millis(100);

/// By how much a pod that is being evicted already may grow within 100 ms, so that it can terminate gracefully.
pub(super) const EXTRA_GROWTH_BYTES: u64 = 1 << 20;

/// How long the agent waits for the event of a kill order that was carried out. No pod is chosen meanwhile: one
/// crossing kills one pod.
const EVENT_WAIT: Duration = Duration::from_secs(1);

/// A chosen victim.
#[derive(Debug)]
pub(super) struct VictimChoice {
    pub(super) order: ArmedKillOrder,
    pub(super) victim_id: u64,
    /// When the victim was chosen.
    pub(super) chosen: Instant,
    /// When the choice expires, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) expires_ns: u64,
    /// The ordinary decision by which the victim is being evicted already.
    pub(super) evicting_decision: Option<u64>,
    /// The number of the last order that was armed for it.
    number: Option<u64>,
}

/// The armed kill order for memory or for a disk. An order is armed only if the one before was disarmed in time, or
/// if its event is overdue ([`EVENT_WAIT`]). So only the events of the last two orders may still arrive.
#[derive(Debug)]
pub(crate) struct KillOrders {
    cause: KernelKillCause,
    /// The epoch of the last sample, for memory.
    pub(super) epoch: Option<u64>,
    /// The pod that is chosen now.
    pub(super) choice: Option<VictimChoice>,
    /// The pod of the last order that was not made for `choice`.
    previous: Option<VictimChoice>,
    /// When the last order was armed, in nanoseconds of `CLOCK_MONOTONIC`.
    armed_mono_ns: u64,
    /// Until when the agent waits for the event of an order that was carried out, in nanoseconds of
    /// `CLOCK_MONOTONIC`.
    event_awaited_until_ns: u64,
    /// Why no order is armed, since that was counted.
    idle: Option<NotArmedReason>,
}

/// Returns the headroom, in bytes, within which kill orders are armed.
pub(super) fn arming_headroom(memory_capacity: u64) -> u64 {
    (memory_capacity / HEADROOM_DIVISOR).max(MIN_HEADROOM_BYTES)
}

impl KillOrders {
    pub(crate) fn new(cause: KernelKillCause) -> Self {
        Self {
            cause,
            epoch: None,
            choice: None,
            previous: None,
            armed_mono_ns: 0,
            event_awaited_until_ns: 0,
            idle: None,
        }
    }

    /// Marks the sample that was just taken of a level near its threshold. Ends the marks if no level is near.
    pub(super) fn mark(&mut self, bpf: &mut BpfBackend, near: Option<u64>) {
        self.epoch =
            near.and_then(|id| bpf.change_kernel_kill("marking a sample", |handle| handle.mark_sample(id)));
        if near.is_none() {
            self.withdraw(bpf);
            bpf.change_kernel_kill("ending the marks of samples", BpfHandle::stop_marking_samples);
        }
    }

    /// Returns whether the armed order counts from a sample of the last 100 ms.
    pub(super) fn is_recent(&self, mono_ns: u64) -> bool {
        mono_ns.saturating_sub(self.armed_mono_ns) < nanos(RECLAIM_WINDOW)
    }

    /// Leaves the armed order as it is, so that growth counts from the sample that it was made on.
    pub(super) fn keep_armed(&mut self) {
        self.epoch = None;
    }

    /// Returns the victim of the armed kill order while the choice is valid.
    pub(super) fn victim(&self, mono_ns: u64) -> Option<&KnownPod> {
        let choice = self.choice.as_ref()?;
        (mono_ns < choice.expires_ns).then_some(&*choice.order.victim)
    }

    /// Returns whether the last sample was marked.
    pub(super) fn is_marked(&self) -> bool {
        self.epoch.is_some()
    }

    /// Returns whether a pod must be chosen again, at a sample with this working set in bytes.
    pub(super) fn needs_choice(&self, now: Instant, working_set: u64) -> bool {
        let Some(choice) = &self.choice else { return true };
        let age = now.mono_ns.saturating_sub(choice.chosen.mono_ns);
        // Not the headroom to the nearest threshold, which may be a soft one.
        let threshold = &choice.order.threshold;
        let headroom = threshold.max_working_set().saturating_sub(working_set);
        u128::from(age) >= CHOICE_INTERVAL.as_nanos() || headroom < threshold.headroom() / 4 * 3
    }

    /// Returns whether a pod is chosen, and the choice expires at `expires_ns`.
    pub(super) fn is_chosen_until(&self, expires_ns: u64) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.expires_ns == expires_ns)
    }

    /// Sets the pod that was chosen.
    pub(super) fn choose(&mut self, order: ArmedKillOrder, victim_id: u64, at: Instant, expires_ns: u64) {
        self.drop_choice();
        self.choice = Some(VictimChoice {
            order,
            victim_id,
            chosen: at,
            expires_ns,
            evicting_decision: None,
            number: None,
        });
    }

    /// Drops the choice. If an order was armed for it, the event of that order may still arrive.
    fn drop_choice(&mut self) {
        let choice = self.choice.take().filter(|choice| choice.number.is_some());
        self.previous = choice.or(self.previous.take());
    }

    /// Withdraws the order for a reason, and counts the reason when it changes.
    pub(super) fn withdraw_because(&mut self, idle: NotArmedReason, bpf: &mut BpfBackend, metrics: &Metrics) {
        self.withdraw(bpf);
        if self.idle != Some(idle) {
            self.idle = Some(idle);
            metrics.kernel_kill_not_armed.with([idle.name()]).inc();
        }
    }

    /// Disarms the order. Returns whether it was carried out before.
    pub(super) fn withdraw(&mut self, bpf: &mut BpfBackend) -> bool {
        self.drop_choice();
        let is_carried_out = bpf.disarm_kill(self.cause);
        if is_carried_out {
            self.await_event();
        }
        is_carried_out
    }

    /// Starts to wait for the event of a kill order that was carried out.
    fn await_event(&mut self) {
        self.event_awaited_until_ns = mono_ns().saturating_add(nanos(EVENT_WAIT));
    }

    /// Returns whether the event of a kill order that was carried out has not arrived yet.
    pub(super) fn awaits_event(&self, mono_ns: u64) -> bool {
        mono_ns < self.event_awaited_until_ns
    }

    /// Records an order that was armed for the present choice, or why it was not.
    pub(super) fn record_armed(
        &mut self,
        armed: Result<u64, NotArmedReason>,
        at: Instant,
        evicting_decision: Option<u64>,
    ) -> Result<(), NotArmedReason> {
        if armed == Err(NotArmedReason::JustCarriedOut) {
            self.await_event();
        }
        let number = armed?;
        if let Some(choice) = &mut self.choice {
            (choice.number, choice.evicting_decision) = (Some(number), evicting_decision);
        }
        self.idle = None;
        self.armed_mono_ns = at.mono_ns;
        Ok(())
    }

    /// Takes the choice that a carried out kill order was made for. The present choice is used up.
    pub(super) fn take_choice(&mut self, order: u64) -> Option<VictimChoice> {
        let is_made_for = |choice: &mut VictimChoice| choice.number == Some(order);
        let found = self.choice.take_if(is_made_for).or_else(|| self.previous.take_if(is_made_for))?;
        self.event_awaited_until_ns = 0;
        self.drop_choice();
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use eviction_core::fixture;
    use eviction_core::policy::Policy;
    use eviction_core::policy::eviction_settings::KernelKillMode;
    use eviction_core::signal::Signal;

    use super::*;

    fn order() -> ArmedKillOrder {
        let threshold = fixture::hard(Signal::MemoryAvailable, "100");
        let policy = Policy { kernel_kill: KernelKillMode::HardMemory, ..fixture::policy(vec![threshold]) };
        let pods = fixture::set_by(&policy, vec![fixture::pod("a", "50"), fixture::pod("b", "50")]);
        let at = fixture::at(1);
        let sample = fixture::snapshot_of(fixture::node(300, 900, at), &[("a", 300), ("b", 200)]);
        fixture::engine(policy, &pods).kill_order(at, &sample, Signal::MemoryAvailable, 500).unwrap()
    }

    /// Returns kill orders after two were armed: number 41 for the victim with that id, then 42 in the same way.
    fn armed_twice() -> KillOrders {
        let mut orders = KillOrders::new(KernelKillCause::Memory);
        let (order, at) = (order(), Instant::default());
        for number in [41, 42] {
            orders.choose(order.clone(), number, at, 1);
            orders.record_armed(Ok(number), at, None).unwrap();
        }
        orders
    }

    #[test]
    fn the_choice_of_the_last_order_is_kept_however_often_others_are_chosen_without_one() {
        let mut orders = armed_twice();
        for _ in 0..3 {
            orders.choose(order(), 7, Instant::default(), 1);
        }
        orders.drop_choice();
        let mut victim_of = |number| orders.take_choice(number).map(|choice| choice.victim_id);
        assert_eq!([41, 42, 43].map(&mut victim_of), [None, Some(42), None], "41 was disarmed in time");
        assert_eq!(victim_of(42), None, "it is carried out once");
    }

    #[test]
    fn an_event_that_is_later_than_the_next_order_finds_its_choice() {
        let mut orders = armed_twice();
        let mut victim_of = |number| orders.take_choice(number).map(|choice| choice.victim_id);
        assert_eq!([41, 42].map(&mut victim_of), [Some(41), Some(42)]);
    }

    #[test]
    fn a_pod_is_chosen_again_after_a_quarter_of_the_hard_thresholds_headroom() {
        let mut orders = KillOrders::new(KernelKillCause::Memory);
        let at = |mono_ns| Instant { mono_ns, ..Instant::default() };
        assert!(orders.needs_choice(at(0), 700), "none is chosen");
        // At a working set of 700, 200 below the threshold.
        orders.choose(order(), 7, at(0), u64::MAX);
        assert_eq!([700, 750, 751].map(|seen| orders.needs_choice(at(1), seen)), [false, false, true]);
        assert!(orders.needs_choice(at(nanos(CHOICE_INTERVAL)), 700));
    }

    #[test]
    fn a_withdrawn_or_expired_order_has_no_victim() {
        let mut orders = KillOrders::new(KernelKillCause::Memory);
        assert!(orders.victim(0).is_none(), "none is chosen");
        orders.choose(order(), 7, Instant::default(), 2);
        assert_eq!([1, 2].map(|now_ns| orders.victim(now_ns).is_some()), [true, false], "until it expires");
        orders.record_armed(Ok(1), Instant::default(), None).unwrap();
        orders.drop_choice();
        assert!(orders.victim(1).is_none() && orders.take_choice(1).is_some());
    }

    #[test]
    fn an_order_that_was_carried_out_is_awaited_until_its_event_arrives() {
        let mut orders = KillOrders::new(KernelKillCause::Memory);
        assert!(!orders.awaits_event(mono_ns()));
        orders.choose(order(), 7, Instant::default(), u64::MAX);
        orders.record_armed(Ok(1), Instant::default(), None).unwrap();
        let armed = orders.record_armed(Err(NotArmedReason::JustCarriedOut), Instant::default(), None);
        assert_eq!(armed, Err(NotArmedReason::JustCarriedOut));
        let until_ns = orders.event_awaited_until_ns;
        assert!(orders.awaits_event(until_ns - 1) && !orders.awaits_event(until_ns));
        assert!(orders.take_choice(1).is_some());
        assert!(!orders.awaits_event(0) && orders.victim(0).is_none());
    }
}
