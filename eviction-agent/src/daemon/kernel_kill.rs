//! The kill orders of the control loop: the victim, the sample it was chosen on, and when the choice expires.
//!
//! For memory: the choice needs the usage of all pods. It is made again after 100 ms or when a quarter of the
//! headroom is used. The headroom of an order is that of the latest sample. A choice that is older than two
//! full samples near a threshold is not carried out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::telemetry::metrics::Metrics;
use eviction_bpf::{ArmedDiskOrder, ArmedOrder, KernelKillCause, SampleEpoch};
use eviction_core::engine::kernel_kill::{ArmedKillOrder, NotArmedReason};
use eviction_core::pods::KnownPod;
use eviction_core::time::nanos;
use eviction_node::notify::sample_interval;

use eviction_node::clock::{Instant, mono_ns};
use eviction_node::sampler::MemoryUsage;

use super::memory_notifier::BpfBackend;

/// Kill orders are armed when the headroom is at most the node's memory divided by this.
const HEADROOM_DIVISOR: u64 = 8;

/// Kill orders are armed at least within this headroom: the agent must get to run before it is used up.
const MIN_HEADROOM_BYTES: u64 = 256 << 20;

/// A pod is chosen again after this time.
const CHOICE_INTERVAL: Duration = Duration::from_millis(100);

/// How long a choice for memory is valid.
pub(crate) const CHOICE_VALIDITY: Duration = sample_interval::FULL_NEAR.saturating_mul(2);

/// How long after a sample usage at the limit is attributed to page cache that is being reclaimed.
const RECLAIM_WINDOW: Duration = Duration::from_millis(100);

/// By how much a pod that is being evicted already may grow within 100 ms, so that it can terminate gracefully.
const EXTRA_GROWTH_BYTES: u64 = 1 << 20;

/// How many choices are kept: the event of one that was replaced may still arrive.
const MAX_CHOICES: usize = 4;

/// How long the agent waits for the event of a kill order that was carried out. No pod is chosen meanwhile: one
/// crossing kills one pod.
const EVENT_WAIT: Duration = Duration::from_secs(1);

/// Why no kill order is armed, besides the reasons of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelKillIdle {
    /// The engine has no kill order.
    NoOrder(NotArmedReason),
    /// An eviction is in flight, or a kill order was just carried out.
    InFlight,
    /// The killer would refuse: too soon, too often, or the cgroup must not be killed.
    KillerRejects,
    /// The pod has no cgroup, or several.
    SeveralCgroups,
    /// A BPF map could not be written.
    NotSet,
    /// Unused images or dead containers are removed first.
    ReclaimFirst,
}

impl KernelKillIdle {
    /// Returns all reasons.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let ours =
            [Self::InFlight, Self::KillerRejects, Self::SeveralCgroups, Self::NotSet, Self::ReclaimFirst];
        NotArmedReason::ALL.map(Self::NoOrder).into_iter().chain(ours)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoOrder(why) => why.name(),
            Self::InFlight => "just_carried_out",
            Self::KillerRejects => "kill_refused",
            Self::SeveralCgroups => "no_single_cgroup",
            Self::NotSet => "map_write_failed",
            Self::ReclaimFirst => "reclaim_first",
        }
    }
}

/// A chosen victim, and the numbers of the kill orders that were made for it.
#[derive(Debug)]
pub(crate) struct VictimChoice {
    pub(crate) order: ArmedKillOrder,
    pub(crate) victim_id: u64,
    /// When the victim was chosen.
    pub(crate) chosen: Instant,
    /// When the choice expires, in nanoseconds of `CLOCK_MONOTONIC`.
    expires_ns: u64,
    /// The ordinary decision by which the victim is being evicted already.
    pub(crate) evicting_decision: Option<u64>,
    numbers: Option<(u64, u64)>,
}

/// The cgroup whose threshold is guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuardedLevel {
    pub(crate) id: u64,
    /// Whether its page counter has all usage that counts.
    pub(crate) is_all: bool,
    /// The bytes that can be taken until page cache must be reclaimed, if the level is the machine: it has no
    /// limit at which its usage would stop.
    pub(crate) room: Option<u64>,
}

/// The armed kill order for memory or for a disk, and the choices that orders were made of.
#[derive(Debug)]
pub(crate) struct KillOrders {
    cause: KernelKillCause,
    /// The epoch of the last sample, for memory.
    epoch: Option<SampleEpoch>,
    /// The last choice is the present one if `is_chosen`.
    choices: VecDeque<Arc<VictimChoice>>,
    /// Whether a pod is chosen.
    pub(crate) is_chosen: bool,
    /// Whether the pod was chosen by the policy in force.
    is_current: bool,
    /// When the last order was armed, in nanoseconds of `CLOCK_MONOTONIC`.
    armed_mono_ns: u64,
    /// Until when the agent waits for the event of an order that was carried out, in nanoseconds of
    /// `CLOCK_MONOTONIC`.
    event_awaited_until_ns: u64,
    idle: Option<KernelKillIdle>,
}

/// Returns the headroom, in bytes, within which kill orders are armed.
pub(crate) fn arming_headroom(memory_capacity: u64) -> u64 {
    (memory_capacity / HEADROOM_DIVISOR).max(MIN_HEADROOM_BYTES)
}

impl KillOrders {
    pub(crate) fn new(cause: KernelKillCause) -> Self {
        Self {
            cause,
            epoch: None,
            choices: VecDeque::new(),
            is_chosen: false,
            is_current: false,
            armed_mono_ns: 0,
            event_awaited_until_ns: 0,
            idle: None,
        }
    }

    /// Marks the sample that was just taken of a level near its threshold. Ends the marks if no level is near.
    pub(crate) fn mark(&mut self, bpf: &mut BpfBackend, near: Option<u64>) {
        self.epoch = match near {
            Some(level_id) => bpf.mark_sample(level_id),
            None => {
                self.is_chosen = false;
                bpf.end_kill_marks();
                None
            }
        };
    }

    /// Returns whether the armed order counts from a sample of the last 100 ms.
    pub(crate) fn is_recent(&self, mono_ns: u64) -> bool {
        mono_ns.saturating_sub(self.armed_mono_ns) < nanos(RECLAIM_WINDOW)
    }

    /// Leaves the armed order as it is, so that growth counts from the sample that it was made on.
    pub(crate) fn keep_armed(&mut self) {
        self.epoch = None;
    }

    /// Returns the victim of the armed kill order while the choice is valid.
    pub(crate) fn victim(&self, mono_ns: u64) -> Option<&KnownPod> {
        let choice = self.current_choice()?;
        (mono_ns < choice.expires_ns).then_some(&*choice.order.victim)
    }

    /// Returns whether the armed order may stay armed: its pod was chosen by the policy in force, and the choice is
    /// valid.
    pub(crate) fn may_stay_armed(&self, mono_ns: u64) -> bool {
        self.is_current && self.victim(mono_ns).is_some()
    }

    /// Returns whether the last sample was marked.
    pub(crate) fn is_marked(&self) -> bool {
        self.epoch.is_some()
    }

    /// Makes the next sample choose a pod again, by another policy. The order stays armed until then, so that
    /// a decision made meanwhile is compared with it.
    pub(crate) fn choose_again(&mut self) {
        self.is_current = false;
    }

    /// Returns whether a pod must be chosen again, at a sample with this working set in bytes.
    pub(crate) fn needs_choice(&self, now: Instant, working_set: u64) -> bool {
        let Some(choice) = self.current_choice().filter(|_| self.is_current) else { return true };
        let age = now.mono_ns.saturating_sub(choice.chosen.mono_ns);
        // Not the headroom to the nearest threshold, which may be a soft one.
        let threshold = &choice.order.threshold;
        let headroom = threshold.max_working_set().saturating_sub(working_set);
        u128::from(age) >= CHOICE_INTERVAL.as_nanos() || headroom < threshold.headroom() / 4 * 3
    }

    /// Returns whether a pod is chosen by the policy in force, and the choice expires at `expires_ns`.
    pub(crate) fn is_chosen_until(&self, expires_ns: u64) -> bool {
        self.is_current && self.current_choice().is_some_and(|choice| choice.expires_ns == expires_ns)
    }

    /// Sets the pod that was chosen.
    pub(crate) fn choose(&mut self, order: ArmedKillOrder, victim_id: u64, at: Instant, expires_ns: u64) {
        // No event refers to a choice that no order was made of.
        self.choices.retain(|choice| choice.numbers.is_some());
        if self.choices.len() == MAX_CHOICES {
            self.choices.pop_front();
        }
        self.choices.push_back(Arc::new(VictimChoice {
            order,
            victim_id,
            chosen: at,
            expires_ns,
            evicting_decision: None,
            numbers: None,
        }));
        (self.is_chosen, self.is_current) = (true, true);
    }

    /// Withdraws the order for a reason, and counts the reason when it changes.
    pub(crate) fn withdraw_because(&mut self, idle: KernelKillIdle, bpf: &mut BpfBackend, metrics: &Metrics) {
        self.withdraw(bpf);
        if self.idle != Some(idle) {
            self.idle = Some(idle);
            metrics.kernel_kill_not_armed.with([idle.name()]).inc();
        }
    }

    /// Disarms the order. Returns whether it was carried out before.
    pub(crate) fn withdraw(&mut self, bpf: &mut BpfBackend) -> bool {
        self.is_chosen = false;
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
    pub(crate) fn awaits_event(&self, mono_ns: u64) -> bool {
        mono_ns < self.event_awaited_until_ns
    }

    /// Arms the present choice with the headroom of this sample, and a little more if the victim is being
    /// evicted by an ordinary decision already.
    pub(crate) fn arm(
        &mut self,
        bpf: &mut BpfBackend,
        level: GuardedLevel,
        seen: MemoryUsage,
        at: Instant,
        evicting_decision: Option<u64>,
    ) -> Result<(), KernelKillIdle> {
        let (Some(epoch), Some(choice)) = (self.epoch, self.current_choice()) else {
            return Err(KernelKillIdle::NotSet);
        };
        let most = choice.order.threshold.max_working_set();
        let distance = most.saturating_sub(seen.working_set)
            + if evicting_decision.is_some() { EXTRA_GROWTH_BYTES } else { 0 };
        if distance == 0 {
            return Err(KernelKillIdle::NoOrder(NotArmedReason::AtThreshold));
        }
        let order = ArmedOrder {
            epoch,
            victim_id: choice.victim_id,
            level_id: level.id,
            max_working_set: level.is_all.then_some(most),
            room: level.room,
            distance,
            expires_ns: choice.expires_ns,
            still_until_ns: at.mono_ns.saturating_add(nanos(RECLAIM_WINDOW)),
        };
        let armed = bpf.arm_kill(&order);
        self.record_armed(armed, at, evicting_decision)
    }

    /// Arms the present choice against writers to a file system. `available` reads what is available on it.
    pub(crate) fn arm_for_writers(
        &mut self,
        bpf: &mut BpfBackend,
        device: u64,
        at: Instant,
        available: impl FnOnce() -> Option<u64>,
    ) -> Result<(), KernelKillIdle> {
        let Some(choice) = self.current_choice() else { return Err(KernelKillIdle::NotSet) };
        let &VictimChoice { victim_id, expires_ns, .. } = choice;
        let threshold = choice.order.threshold.value;
        let order = ArmedDiskOrder { victim_id, device, expires_ns };
        let armed = bpf.arm_disk_kill(&order, || available()?.checked_sub(threshold));
        self.record_armed(armed, at, None)
    }

    fn record_armed(
        &mut self,
        armed: Result<u64, KernelKillIdle>,
        at: Instant,
        evicting_decision: Option<u64>,
    ) -> Result<(), KernelKillIdle> {
        if armed == Err(KernelKillIdle::InFlight) {
            self.await_event();
        }
        let number = armed?;
        // The choice is shared, and not changed, only while an event of it is being handled.
        if let Some(choice) = self.choices.back_mut().and_then(Arc::get_mut) {
            let first = choice.numbers.map_or(number, |(first, _)| first);
            choice.numbers = Some((first, number));
            choice.evicting_decision = evicting_decision;
        }
        self.idle = None;
        self.armed_mono_ns = at.mono_ns;
        Ok(())
    }

    /// Returns the choice that a kill order was made for.
    pub(crate) fn choice_of(&self, order: u64) -> Option<Arc<VictimChoice>> {
        let made = |choice: &&Arc<VictimChoice>| {
            choice.numbers.is_some_and(|(first, last)| (first..=last).contains(&order))
        };
        self.choices.iter().rev().find(made).map(Arc::clone)
    }

    /// Discards the present choice, which is used up.
    pub(crate) fn discard_choice(&mut self) {
        self.event_awaited_until_ns = 0;
        self.is_chosen = false;
    }

    fn current_choice(&self) -> Option<&VictimChoice> {
        self.choices.back().filter(|_| self.is_chosen).map(|choice| &**choice)
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

    #[test]
    fn the_choice_of_an_order_is_kept_however_often_others_are_chosen_without_one() {
        let mut orders = KillOrders::new(KernelKillCause::Memory);
        let (order, at) = (order(), Instant::default());
        for number in [41, 42] {
            orders.choose(order.clone(), number, at, 1);
            orders.record_armed(Ok(number), at, None).unwrap();
        }
        for _ in 0..=MAX_CHOICES {
            orders.choose(order.clone(), 7, at, 1);
        }
        let victim_of = |number| orders.choice_of(number).map(|choice| choice.victim_id);
        assert_eq!([41, 42, 43].map(victim_of), [Some(41), Some(42), None]);
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
    fn an_order_of_another_policy_does_not_stay_armed() {
        let mut orders = KillOrders::new(KernelKillCause::Memory);
        assert!(!orders.may_stay_armed(0), "there is none");
        orders.choose(order(), 7, Instant::default(), 2);
        assert_eq!([1, 2].map(|now_ns| orders.may_stay_armed(now_ns)), [true, false], "until it expires");
        orders.choose_again();
        assert!(!orders.may_stay_armed(1) && orders.victim(1).is_some());
    }

    #[test]
    fn an_order_that_was_carried_out_is_awaited_until_its_event_arrives() {
        let mut orders = KillOrders::new(KernelKillCause::Memory);
        assert!(!orders.awaits_event(mono_ns()));
        let armed = orders.record_armed(Err(KernelKillIdle::InFlight), Instant::default(), None);
        assert_eq!(armed, Err(KernelKillIdle::InFlight));
        let until_ns = orders.event_awaited_until_ns;
        assert!(orders.awaits_event(until_ns - 1) && !orders.awaits_event(until_ns));
        orders.discard_choice();
        assert!(!orders.awaits_event(0));
    }
}
