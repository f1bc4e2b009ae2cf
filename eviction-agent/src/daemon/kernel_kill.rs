//! The kill orders as the loop keeps them: who was chosen, on which sample, until when.
//!
//! For memory: whom to choose needs the figures of all pods and is asked anew when a tenth of a second has
//! passed or a quarter of the way to the line is gone; the distance is that of each look. A choice
//! that is older than two full samples of a node that is near is not carried out.

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

/// Verdicts are made within this part of the node's memory before a line.
const SHARE: u64 = 8;

/// And never only nearer than this: somebody must get to run before it is used up.
const LEAST_BYTES: u64 = 256 << 20;

/// A choice is made anew after this time.
const CHOICE: Duration = Duration::from_millis(100);

/// So long a choice is good.
const GOOD: Duration = sample_interval::FULL_NEAR.saturating_mul(2);

/// So long after a look usage that stands still is taken for page cache that makes room.
const STILL: Duration = Duration::from_millis(100);

/// By how much who goes already may grow within a tenth of a second, in order to end in good order.
const BEYOND: u64 = 1 << 20;

/// How many choices are remembered: a record of one that was replaced may be on its way.
const REMEMBERED: usize = 4;

/// How long the record of a verdict that was carried out may be under way: a turn or two. Nobody is chosen meanwhile, since
/// one crossing costs one pod.
const UNTOLD: Duration = Duration::from_secs(1);

/// So long pods' storage may be ranked by a reading of it, from its begin: as for an ordinary eviction.
pub(crate) const GOOD_STORAGE: Duration = Duration::from_secs(1);

/// Why no verdict stands, as far as the engine has no say in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelKillIdle {
    /// The engine has none.
    NoOrder(NotArmedReason),
    /// An eviction is under way, or a verdict was just carried out.
    UnderWay,
    /// The hand would refuse: too soon, too often, or not a group to be killed.
    KillerRefuses,
    /// The pod has no cgroup, or several.
    SeveralCgroups,
    /// The kernel side could not be told.
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

/// A choice, and the verdicts that were made of it.
#[derive(Debug)]
pub(crate) struct VictimChoice {
    pub(crate) verdict: ArmedKillOrder,
    pub(crate) victim_id: u64,
    /// When it was chosen.
    pub(crate) chosen: Instant,
    /// Until when it is good.
    expires_ns: u64,
    /// The ordinary decision by which the victim goes meanwhile.
    pub(crate) goes_by: Option<u64>,
    numbers: Option<(u64, u64)>,
}

/// The group whose line is guarded.
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
    /// When the last verdict was told.
    stood_mono_ns: u64,
    /// Until then a verdict that was carried out while it was withdrawn may still be told of.
    untold_until_ns: u64,
    idle: Option<KernelKillIdle>,
}

/// How near a line must be for a verdict to stand.
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
            stood_mono_ns: 0,
            untold_until_ns: 0,
            idle: None,
        }
    }

    /// Marks the sample that was just taken of a level that is near its line, or lets the kernel side rest where the line is far.
    pub(crate) fn mark(&mut self, bpf: &mut BpfBackend, near: Option<u64>) {
        self.epoch = match near {
            Some(level_id) => bpf.mark_sample(level_id),
            None => {
                self.is_chosen = false;
                bpf.rest_kill();
                None
            }
        };
    }

    /// Whether what stands counts from a sample of this moment.
    pub(crate) fn is_young(&self, mono_ns: u64) -> bool {
        mono_ns.saturating_sub(self.stood_mono_ns) < nanos(STILL)
    }

    /// Leaves what stands as it is, at this look: growth is to count from the sample that it was made on.
    pub(crate) fn keep(&mut self) {
        self.epoch = None;
    }

    /// Whom the verdict that stands is on, while it is good.
    pub(crate) fn victim(&self, mono_ns: u64) -> Option<&KnownPod> {
        let choice = self.present()?;
        (mono_ns < choice.expires_ns).then_some(&*choice.verdict.victim)
    }

    /// Whether the last sample was marked.
    pub(crate) fn is_marked(&self) -> bool {
        self.epoch.is_some()
    }

    /// Whether somebody must be chosen anew, with so much left to the line.
    pub(crate) fn wants_choice(&self, now: Instant, distance: u64) -> bool {
        let Some(choice) = self.present() else { return true };
        let age = now.mono_ns.saturating_sub(choice.chosen.mono_ns);
        u128::from(age) >= CHOICE.as_nanos() || distance < choice.verdict.headroom() / 4 * 3
    }

    /// Whether somebody is chosen.
    pub(crate) fn is_chosen(&self) -> bool {
        self.is_chosen
    }

    /// Whether somebody was chosen on a reading of pods' storage that began then.
    pub(crate) fn is_chosen_on(&self, read_ns: u64) -> bool {
        let expires_ns = read_ns.saturating_add(nanos(GOOD_STORAGE));
        self.present().is_some_and(|choice| choice.expires_ns == expires_ns)
    }

    /// Somebody was chosen for memory.
    pub(crate) fn choose(&mut self, verdict: ArmedKillOrder, victim_id: u64, chosen: Instant) {
        self.choose_until(verdict, victim_id, chosen, after(chosen, GOOD));
    }

    /// Somebody was chosen for a disk, on a reading of pods' storage that began then.
    pub(crate) fn choose_writer(
        &mut self,
        verdict: ArmedKillOrder,
        victim_id: u64,
        chosen: Instant,
        read_ns: u64,
    ) {
        self.choose_until(verdict, victim_id, chosen, read_ns.saturating_add(nanos(GOOD_STORAGE)));
    }

    fn choose_until(&mut self, verdict: ArmedKillOrder, victim_id: u64, chosen: Instant, expires_ns: u64) {
        if self.choices.len() == REMEMBERED {
            self.choices.pop_front();
        }
        self.choices.push_back(Arc::new(VictimChoice {
            verdict,
            victim_id,
            chosen,
            expires_ns,
            goes_by: None,
            numbers: None,
        }));
        self.is_chosen = true;
    }

    /// Nobody may be chosen, or nothing may stand.
    pub(crate) fn stay_idle(&mut self, idle: KernelKillIdle, bpf: &mut BpfBackend, metrics: &Metrics) {
        self.withdraw(bpf);
        if self.idle != Some(idle) {
            self.idle = Some(idle);
            metrics.kernel_kill_not_armed.with([idle.name()]).inc();
        }
    }

    /// Lets nothing stand; whether what stood was carried out before.
    pub(crate) fn withdraw(&mut self, bpf: &mut BpfBackend) -> bool {
        self.is_chosen = false;
        let is_carried_out = bpf.disarm_kill(self.cause);
        if is_carried_out {
            self.await_record();
        }
        is_carried_out
    }

    /// A verdict was carried out, and it was not told yet.
    fn await_record(&mut self) {
        self.untold_until_ns = mono_ns().saturating_add(nanos(UNTOLD));
    }

    /// Lets the present choice stand at the distance of this look, and a little beyond it if the victim
    /// goes by an ordinary decision already.
    pub(crate) fn stand(
        &mut self,
        bpf: &mut BpfBackend,
        level: GuardedLevel,
        seen: MemoryUsage,
        at: Instant,
        goes_by: Option<u64>,
    ) -> Result<(), KernelKillIdle> {
        let (Some(epoch), true) = (self.epoch, self.is_chosen) else { return Err(KernelKillIdle::NotSet) };
        if at.mono_ns < self.untold_until_ns {
            return Err(KernelKillIdle::UnderWay);
        }
        let Some(choice) = self.choices.back() else { return Err(KernelKillIdle::NotSet) };
        let line = choice.verdict.max_working_set();
        let distance = line.saturating_sub(seen.working_set) + if goes_by.is_some() { BEYOND } else { 0 };
        if distance == 0 {
            return Err(KernelKillIdle::NoOrder(NotArmedReason::AtThreshold));
        }
        let standing = ArmedOrder {
            epoch,
            victim_id: choice.victim_id,
            level_id: level.id,
            line: level.is_all.then_some(line),
            room: level.room,
            distance,
            expires_ns: choice.expires_ns,
            still_until_ns: after(at, STILL),
        };
        let armed = bpf.arm_kill(&standing);
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
        if at.mono_ns < self.untold_until_ns {
            return Err(KernelKillIdle::UnderWay);
        }
        let Some(choice) = self.present() else { return Err(KernelKillIdle::NotSet) };
        let &VictimChoice { victim_id, expires_ns, .. } = choice;
        let threshold = choice.verdict.threshold;
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
                self.await_record();
                return Err(KernelKillIdle::UnderWay);
            }
            Err(NotArmed::Refused) => return Err(KernelKillIdle::NotSet),
        };
        // Nobody else holds the present one for longer than it takes to tell of it.
        if let Some(choice) = self.choices.back_mut().and_then(Arc::get_mut) {
            let first = choice.numbers.map_or(number, |(first, _)| first);
            choice.numbers = Some((first, number));
            choice.goes_by = goes_by;
        }
        self.idle = None;
        self.stood_mono_ns = at.mono_ns;
        Ok(())
    }

    /// The choice that a verdict was made of.
    pub(crate) fn choice_of(&self, verdict: u64) -> Option<Arc<VictimChoice>> {
        let made = |choice: &&Arc<VictimChoice>| {
            choice.numbers.is_some_and(|(first, last)| (first..=last).contains(&verdict))
        };
        self.choices.iter().rev().find(made).map(Arc::clone)
    }

    /// The present choice is used up.
    pub(crate) fn forget(&mut self) {
        self.untold_until_ns = 0;
        self.is_chosen = false;
    }

    fn present(&self) -> Option<&VictimChoice> {
        self.choices.back().filter(|_| self.is_chosen).map(|choice| &**choice)
    }
}

fn after(instant: Instant, duration: Duration) -> u64 {
    instant.mono_ns.saturating_add(nanos(duration))
}
