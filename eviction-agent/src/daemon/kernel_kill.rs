//! The kill orders as the loop keeps them: who was chosen, on which sample, until when.
//!
//! For memory: the choice needs the usage of all pods and is made again when a tenth of a second has
//! passed or a quarter of the headroom is used; the distance is that of each sample. A choice that is
//! older than two full samples near a threshold is not carried out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::telemetry::metrics::Metrics;
use eviction_bpf::{ArmedDiskOrder, ArmedOrder, KernelKillCause, OrderNumber, SampleEpoch};
use eviction_core::engine::kernel_kill::{ArmedKillOrder, NotArmedReason};
use eviction_core::pods::KnownPod;
use eviction_core::time::nanos;
use eviction_node::notify::sample_interval;

use eviction_node::clock::{Instant, mono_ns};
use eviction_node::sampler::MemoryUsage;

use super::memory_notifier::{BpfBackend, NotArmed};

/// Kill orders are made within this part of the node's memory before a threshold.
const SHARE: u64 = 8;

/// And within this at least: the agent must get to run before it is used up.
const LEAST_BYTES: u64 = 256 << 20;

/// A choice is made anew after this time.
const CHOICE: Duration = Duration::from_millis(100);

/// So long a choice is good.
const GOOD: Duration = sample_interval::FULL_NEAR.saturating_mul(2);

/// So long after a sample usage that stands still is taken for page cache that makes room.
const STILL: Duration = Duration::from_millis(100);

/// By how much a pod that is evicted already may grow within a tenth of a second, in order to end in good order.
const BEYOND: u64 = 1 << 20;

/// How many choices are remembered: the event of one that was replaced may come yet.
const REMEMBERED: usize = 4;

/// How long the event of a kill order that was carried out is waited for. No pod is chosen meanwhile: one crossing costs
/// one pod.
const EVENT_WAIT: Duration = Duration::from_secs(1);

/// So long pods' storage may be ranked by a reading of it, from its begin: as for an ordinary eviction.
pub(crate) const GOOD_STORAGE: Duration = Duration::from_secs(1);

/// Why no kill order is armed, besides the reasons of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelKillIdle {
    /// The engine has none.
    NoOrder(NotArmedReason),
    /// An eviction is under way, or a kill order was just carried out.
    UnderWay,
    /// The executor would refuse: too soon, too often, or not a cgroup to be killed.
    KillerRefuses,
    /// The pod has no cgroup, or several.
    SeveralCgroups,
    /// A BPF map could not be written.
    NotSet,
    /// Unused images or dead containers are removed first.
    ReclaimFirst,
}

impl KernelKillIdle {
    /// Each of them.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let ours =
            [Self::UnderWay, Self::KillerRefuses, Self::SeveralCgroups, Self::NotSet, Self::ReclaimFirst];
        NotArmedReason::ALL.map(Self::NoOrder).into_iter().chain(ours)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoOrder(why) => why.name(),
            Self::UnderWay => "just_carried_out",
            Self::KillerRefuses => "kill_refused",
            Self::SeveralCgroups => "no_single_cgroup",
            Self::NotSet => "map_write_failed",
            Self::ReclaimFirst => "reclaim_first",
        }
    }
}

/// A choice, and the kill orders that were made of it.
#[derive(Debug)]
pub(crate) struct VictimChoice {
    pub(crate) order: ArmedKillOrder,
    pub(crate) victim_id: u64,
    /// When it was chosen.
    pub(crate) chosen: Instant,
    /// Until when it is good.
    expires_ns: u64,
    /// The ordinary decision by which the victim goes meanwhile.
    pub(crate) goes_by: Option<u64>,
    numbers: Option<(u64, u64)>,
}

/// The cgroup whose threshold is guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuardedLevel {
    pub(crate) id: u64,
    /// Its page counter has all that counts as used.
    pub(crate) is_all: bool,
    /// What can be taken until page cache must make room, where the level is the machine: it has no
    /// limit at which its usage would stand.
    pub(crate) room: Option<u64>,
}

/// The armed kill order for memory or for a disk, and the choices that orders were made of.
#[derive(Debug)]
pub(crate) struct KillOrders {
    cause: KernelKillCause,
    /// The mark of the last sample, for memory.
    epoch: Option<SampleEpoch>,
    /// The last one is the present one, if `stands`.
    choices: VecDeque<Arc<VictimChoice>>,
    is_chosen: bool,
    /// When the last order was armed.
    armed_mono_ns: u64,
    /// Until then the event of a kill order that was carried out while it was withdrawn may come.
    event_awaited_until_ns: u64,
    idle: Option<KernelKillIdle>,
}

/// How near a threshold must be for a kill order to be armed.
pub(crate) fn reach(memory_capacity: u64) -> u64 {
    (memory_capacity / SHARE).max(LEAST_BYTES)
}

impl KillOrders {
    pub(crate) fn new(cause: KernelKillCause) -> Self {
        Self {
            cause,
            epoch: None,
            choices: VecDeque::new(),
            is_chosen: false,
            armed_mono_ns: 0,
            event_awaited_until_ns: 0,
            idle: None,
        }
    }

    /// Marks the sample that was just taken of a level that is near its threshold, or ends the marks where it is far.
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

    /// Whether the armed order counts from a sample of this moment.
    pub(crate) fn is_young(&self, mono_ns: u64) -> bool {
        mono_ns.saturating_sub(self.armed_mono_ns) < nanos(STILL)
    }

    /// Leaves the armed order as it is: growth is to count from the sample that it was made on.
    pub(crate) fn keep(&mut self) {
        self.epoch = None;
    }

    /// The victim of the armed kill order, while it is good.
    pub(crate) fn victim(&self, mono_ns: u64) -> Option<&KnownPod> {
        let choice = self.present()?;
        (mono_ns < choice.expires_ns).then_some(&*choice.order.victim)
    }

    /// Whether the last sample was marked.
    pub(crate) fn is_marked(&self) -> bool {
        self.epoch.is_some()
    }

    /// Whether a pod must be chosen anew, with so much left to the threshold.
    pub(crate) fn wants_choice(&self, now: Instant, distance: u64) -> bool {
        let Some(choice) = self.present() else { return true };
        let age = now.mono_ns.saturating_sub(choice.chosen.mono_ns);
        u128::from(age) >= CHOICE.as_nanos() || distance < choice.order.headroom() / 4 * 3
    }

    /// Whether a pod is chosen.
    pub(crate) fn is_chosen(&self) -> bool {
        self.is_chosen
    }

    /// Whether the pod was chosen on a reading of pods' storage that began then.
    pub(crate) fn is_chosen_on(&self, read_ns: u64) -> bool {
        let expires_ns = read_ns.saturating_add(nanos(GOOD_STORAGE));
        self.present().is_some_and(|choice| choice.expires_ns == expires_ns)
    }

    /// Sets the pod that was chosen for memory.
    pub(crate) fn choose(&mut self, order: ArmedKillOrder, victim_id: u64, chosen: Instant) {
        self.choose_until(order, victim_id, chosen, after(chosen, GOOD));
    }

    /// Sets the pod that was chosen for a disk, on a reading of pods' storage that began then.
    pub(crate) fn choose_writer(
        &mut self,
        order: ArmedKillOrder,
        victim_id: u64,
        chosen: Instant,
        read_ns: u64,
    ) {
        self.choose_until(order, victim_id, chosen, read_ns.saturating_add(nanos(GOOD_STORAGE)));
    }

    fn choose_until(&mut self, order: ArmedKillOrder, victim_id: u64, chosen: Instant, expires_ns: u64) {
        if self.choices.len() == REMEMBERED {
            self.choices.pop_front();
        }
        self.choices.push_back(Arc::new(VictimChoice {
            order,
            victim_id,
            chosen,
            expires_ns,
            goes_by: None,
            numbers: None,
        }));
        self.is_chosen = true;
    }

    /// No pod may be chosen, or no order armed.
    pub(crate) fn stay_idle(&mut self, idle: KernelKillIdle, bpf: &mut BpfBackend, metrics: &Metrics) {
        self.withdraw(bpf);
        if self.idle != Some(idle) {
            self.idle = Some(idle);
            metrics.kernel_kill_not_armed.with([idle.name()]).inc();
        }
    }

    /// Disarms the order; whether it was carried out before.
    pub(crate) fn withdraw(&mut self, bpf: &mut BpfBackend) -> bool {
        self.is_chosen = false;
        let is_carried_out = bpf.disarm_kill(self.cause);
        if is_carried_out {
            self.await_event();
        }
        is_carried_out
    }

    /// A kill order was carried out, and its event has not come yet.
    fn await_event(&mut self) {
        self.event_awaited_until_ns = mono_ns().saturating_add(nanos(EVENT_WAIT));
    }

    /// Arms the present choice at the distance of this sample, and a little beyond it if the victim is evicted by an
    /// ordinary decision already.
    pub(crate) fn arm(
        &mut self,
        bpf: &mut BpfBackend,
        level: GuardedLevel,
        seen: MemoryUsage,
        at: Instant,
        goes_by: Option<u64>,
    ) -> Result<(), KernelKillIdle> {
        let (Some(epoch), true) = (self.epoch, self.is_chosen) else { return Err(KernelKillIdle::NotSet) };
        if at.mono_ns < self.event_awaited_until_ns {
            return Err(KernelKillIdle::UnderWay);
        }
        let Some(choice) = self.choices.back() else { return Err(KernelKillIdle::NotSet) };
        let most = choice.order.max_working_set();
        let distance = most.saturating_sub(seen.working_set) + if goes_by.is_some() { BEYOND } else { 0 };
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
            still_until_ns: after(at, STILL),
        };
        let armed = bpf.arm_kill(&order);
        self.note_armed(armed, at, goes_by)
    }

    /// Arms the present choice for writers to a file system. `available` reads what is available on it.
    pub(crate) fn arm_for_writers(
        &mut self,
        bpf: &mut BpfBackend,
        device: u64,
        at: Instant,
        available: impl FnOnce() -> Option<u64>,
    ) -> Result<(), KernelKillIdle> {
        if at.mono_ns < self.event_awaited_until_ns {
            return Err(KernelKillIdle::UnderWay);
        }
        let Some(choice) = self.present() else { return Err(KernelKillIdle::NotSet) };
        let &VictimChoice { victim_id, expires_ns, .. } = choice;
        let threshold = choice.order.threshold;
        let order = ArmedDiskOrder { victim_id, device, expires_ns };
        let armed = bpf.arm_disk_kill(&order, || available()?.checked_sub(threshold));
        self.note_armed(armed, at, None)
    }

    fn note_armed(
        &mut self,
        armed: Result<OrderNumber, NotArmed>,
        at: Instant,
        goes_by: Option<u64>,
    ) -> Result<(), KernelKillIdle> {
        let OrderNumber(number) = match armed {
            Ok(number) => number,
            Err(NotArmed::CarriedOut) => {
                self.await_event();
                return Err(KernelKillIdle::UnderWay);
            }
            Err(NotArmed::Refused) => return Err(KernelKillIdle::NotSet),
        };
        // Only an event that is being handled holds the present one too.
        if let Some(choice) = self.choices.back_mut().and_then(Arc::get_mut) {
            let first = choice.numbers.map_or(number, |(first, _)| first);
            choice.numbers = Some((first, number));
            choice.goes_by = goes_by;
        }
        self.idle = None;
        self.armed_mono_ns = at.mono_ns;
        Ok(())
    }

    /// The choice that a kill order was made of.
    pub(crate) fn choice_of(&self, order: u64) -> Option<Arc<VictimChoice>> {
        let made = |choice: &&Arc<VictimChoice>| {
            choice.numbers.is_some_and(|(first, last)| (first..=last).contains(&order))
        };
        self.choices.iter().rev().find(made).map(Arc::clone)
    }

    /// The present choice is used up.
    pub(crate) fn forget(&mut self) {
        self.event_awaited_until_ns = 0;
        self.is_chosen = false;
    }

    fn present(&self) -> Option<&VictimChoice> {
        self.choices.back().filter(|_| self.is_chosen).map(|choice| &**choice)
    }
}

fn after(instant: Instant, duration: Duration) -> u64 {
    instant.mono_ns.saturating_add(nanos(duration))
}
