//! The kernel side as the loop sees it: present or not, it is asked and told the same way.

mod counts;
mod replace;

use crate::telemetry::metrics::Metrics;
use crate::telemetry::queue::BpfLosses;
use eviction_bpf::load::ProgramLogReader;
use eviction_bpf::{
    ArmError, ArmedOrder, AsyncRing, AttachWhen, BackendInfo, BpfHandle, CgroupGrowth, EventClass,
    Generation, GrossCharge, LastOrderNumbers, LoadOptions, Loaded, LossCounters, NodePidThreshold,
    OrderNumber, SampleEpoch, ThresholdCrossed, WITHHELD_REASONS,
};
use eviction_config::Probes;
use eviction_node::cgroup::sampler::Sampler;

use super::event_batch::{DeferredEvents, EventBatch};
use super::failover::{self, BackendFailover, BackendFailure};
use super::limit_monitor;
use super::notify_plan::{GrowthSource, ThresholdPlan};
use super::on_demand::{DetachPolicy, NearTracker};
use eviction_node::clock::mono_ns;
pub(crate) use replace::BackendChanged;

/// The programs, their ring, and what was counted so far.
#[derive(Default)]
pub(crate) struct BpfMonitor {
    loaded: Option<(BpfHandle, AsyncRing)>,
    /// Nothing where the kernel refused everything at the start.
    ladder: Option<BackendFailover>,
    /// Kills before this were told by what was loaded before.
    since_ns: u64,
    log: Option<ProgramLogReader>,
    leaves: Vec<CgroupGrowth>,
    /// What was charged to the decisive groups when this look began.
    charged: [Option<(u64, GrossCharge)>; 2],
    range: NearTracker,
    way_down: DetachPolicy,
    losses: BpfLosses,
    /// The last of programs that are gone, not told yet.
    last: Option<BpfLosses>,
    invalid: u64,
    beside: DeferredEvents,
    /// It was said that something cannot be armed.
    is_full: bool,
    /// The total of tasks at which the node's own line is armed.
    tasks_line: Option<u64>,
    withheld: [u64; WITHHELD_REASONS],
    runs_missed: [u64; EventClass::ALL.len()],
    walks_cut: u64,
    /// Some charges were not followed up to the root lately.
    is_cut: bool,
    /// Of programs that are gone.
    numbers: LastOrderNumbers,
    /// What is known to be lost and was not replaced yet, one for each source.
    lapses: Vec<BackendFailure>,
    /// How many of them were told.
    told: usize,
    /// How often nothing could be loaded in its place, one after the other.
    refusals: u32,
}

/// Why a verdict does not stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotArmed {
    /// The one before was carried out, and its record is on its way.
    CarriedOut,
    /// The kernel side cannot be told, which was logged.
    Refused,
}

impl BpfMonitor {
    /// The programs of a kernel side that was loaded with these options.
    ///
    /// # Errors
    /// If the ring cannot be watched.
    pub(crate) fn new(loaded: Loaded, options: LoadOptions, hooks: &Probes) -> std::io::Result<Self> {
        let (range, way_down) = (NearTracker::new(hooks), DetachPolicy::new(hooks));
        let ladder = Some(BackendFailover::new(options));
        let mut this = Self { ladder, range, way_down, ..Self::default() };
        this.adopt(loaded)?;
        Ok(this)
    }

    fn adopt(&mut self, loaded: Loaded) -> std::io::Result<()> {
        let Loaded { mut kernel, ring, missing: _, log } = loaded;
        kernel.go_on_from(self.numbers);
        self.loaded = Some((kernel, AsyncRing::new(ring)?));
        self.log = log;
        // What the programs count begins anew, and nothing is armed.
        let BpfLosses { lost: _, invalid, programs } = self.losses;
        self.losses = BpfLosses { lost: LossCounters::default(), invalid, programs: programs + 1 };
        (self.withheld, self.runs_missed, self.walks_cut, self.is_cut) = Default::default();
        self.tasks_line = None;
        self.lapses.clear();
        (self.told, self.refusals) = (0, 0);
        self.is_full = false;
        self.charged = Default::default();
        Ok(())
    }

    /// How charges are seen at present.
    pub(crate) fn rung(&self) -> Option<GrowthSource> {
        let info = self.charge()?;
        let sees_every_charge = info.sees_every_charge && !self.is_cut && !self.is_lost(info.source);
        Some(GrowthSource { sees_every_charge, grain_bytes: info.grain_bytes })
    }

    /// Of how many groups each CPU holds back what it charged ahead.
    pub(crate) fn stocks(&self) -> u32 {
        self.loaded.as_ref().map_or(1, |(kernel, _)| kernel.stocks())
    }

    /// The name of that rung.
    pub(crate) fn charge_rung(&self) -> &'static str {
        self.charge().map_or("none", |info| info.rung)
    }

    /// How kills are seen; empty where they are not.
    pub(crate) fn oom_rung(&self) -> &'static str {
        self.rung_of(EventClass::Oom)
    }

    /// Whether kills are seen.
    pub(crate) fn tells_of_kills(&self) -> bool {
        self.tells_of(EventClass::Oom)
    }

    fn tells_of(&self, family: EventClass) -> bool {
        !self.rung_of(family).is_empty() && !self.is_lost(family.name())
    }

    /// The rung by which it is told, also if a part of that is lost; empty where there is none.
    fn rung_of(&self, family: EventClass) -> &'static str {
        let sources = self.loaded.as_ref().map_or(&[][..], |(kernel, _)| kernel.sources());
        sources.iter().find(|info| info.source == family.name()).map_or("", |info| info.rung)
    }

    /// Whether cgroups that come and go are told of.
    pub(crate) fn tells_of_cgroups(&self) -> bool {
        self.tells_of(EventClass::Cgroup)
    }

    /// Whether the fork that passes a line of tasks is told.
    pub(crate) fn tells_of_forks(&self) -> bool {
        self.tells_of(EventClass::Task)
    }

    fn charge(&self) -> Option<&BackendInfo> {
        self.loaded.as_ref().and_then(|(kernel, _)| kernel.charge())
    }

    /// Attaches the dense hook while the line is near, and takes it off when it is far again.
    pub(crate) fn approach(&mut self, distance: Option<u64>, memory_capacity: u64, now_ns: u64) {
        let Some((kernel, _)) = &self.loaded else { return };
        let near = kernel.is_attached(AttachWhen::NearLine);
        let wanted = self.range.is_near(distance, memory_capacity, now_ns, near);
        self.attach(AttachWhen::NearLine, wanted);
    }

    /// Attaches the hook on what is given back while the way down is armed.
    pub(crate) fn look_down(&mut self, armed: bool, now_ns: u64) {
        let Some((kernel, _)) = &self.loaded else { return };
        let attached = kernel.is_attached(AttachWhen::WayDown);
        let wanted = self.way_down.wants(armed, now_ns, attached);
        self.attach(AttachWhen::WayDown, wanted);
    }

    /// Attaches a hook for a time, or takes it off. One that the kernel refuses is lost like any other.
    fn attach(&mut self, when: AttachWhen, wanted: bool) {
        let Some((kernel, _)) = &mut self.loaded else { return };
        let source = EventClass::Near.name();
        let rung = kernel.sources().iter().find(|info| info.source == source).map_or("", |info| info.rung);
        if let Err(error) = kernel.ask(when, wanted) {
            tracing::warn!(%error, ?when, "a hook for a time is given up: the timer goes on");
            let why = format!("it cannot be attached any more: {error}");
            failover::note(&mut self.lapses, BackendFailure { source, rung, why });
        }
    }

    /// Waits for a record that must not wait. For ever, where nothing is loaded.
    pub(crate) async fn told(&mut self, metrics: &Metrics) -> EventBatch {
        let Some((_, ring)) = &mut self.loaded else { return std::future::pending().await };
        let mut told = EventBatch::default();
        match ring.drain_ready(|event| self.beside.take(event, &mut told)).await {
            Ok(drained) => told.missed |= self.count(drained, metrics),
            Err(error) => {
                // The descriptor is of no use any more: the timer and the v1 threshold go on.
                self.leave(metrics);
                let why = format!("the ring buffer cannot be read any more: {error}");
                let lapse = BackendFailure { source: "ring", rung: "", why };
                // It is told here, and everything else goes with it.
                (self.lapses, self.told, self.refusals) = (vec![lapse.clone()], 1, 0);
                if let Some(ladder) = &mut self.ladder {
                    ladder.replace(&self.lapses, mono_ns());
                }
                told.lost = Some(lapse);
                // Nothing else asks for a look, and the timer was set for being told.
                told.missed = true;
            }
        }
        self.forget_repeated(&mut told);
        told
    }

    /// Takes what is there without waiting, before anything is read: routine records, and the leaves that charged.
    pub(crate) fn sweep(&mut self, dirty: &mut Vec<u64>, metrics: &Metrics) -> EventBatch {
        dirty.clear();
        let mut told = EventBatch::default();
        let Some((kernel, ring)) = &mut self.loaded else { return told };
        if let Some(log) = &mut self.log {
            log.flush();
        }
        let drained = ring.drain(|event| self.beside.take(event, &mut told));
        match kernel.take_dirty(&mut self.leaves) {
            Ok(()) => dirty.extend(self.leaves.iter().map(|leaf| leaf.id)),
            // The sweep of usage files finds them too.
            Err(error) => tracing::debug!(%error, "reading the dirty set"),
        }
        told.missed |= self.count(drained, metrics);
        self.forget_repeated(&mut told);
        self.note_charged();
        told
    }

    /// Notes what was charged so far where that is armed, and what reclaim took: what is while figures are read is in neither
    /// them nor what would be counted from the arming on.
    fn note_charged(&mut self) {
        let [node, pods] = self.beside.decisive;
        let kernel = self.loaded.as_ref().map(|(kernel, _)| kernel);
        let charged = |id| Some((id, kernel?.charged(id)?));
        self.charged = [charged(node), if pods == node { None } else { charged(pods) }];
    }

    fn charged_at_look(&self, id: u64) -> Option<GrossCharge> {
        self.charged.iter().flatten().find(|(of, _)| *of == id).map(|(_, charged)| *charged)
    }

    /// Makes room for so many leaves that charged.
    pub(crate) fn make_room(&mut self, groups: usize) {
        self.leaves.reserve(groups);
    }

    /// The groups at whose levels is decided: their crossings cause a look. Those of others are put
    /// aside.
    pub(crate) fn decide_at(&mut self, node: u64, pods: Option<u64>) {
        let [_, before] = std::mem::replace(&mut self.beside.decisive, [node, pods.unwrap_or(node)]);
        self.disarm(before);
    }

    /// The first crossing that was put aside.
    pub(crate) fn crossed_beside(&mut self) -> Option<ThresholdCrossed> {
        self.beside.crossed.pop_front()
    }

    /// When the group with this id came near its limit, if that was put aside.
    pub(crate) fn rose_ns(&self, id: u64) -> Option<u64> {
        let rises = self.beside.crossed.iter().filter(|crossed| crossed.is_rise());
        rises.filter(|crossed| crossed.level_id == id).map(|crossed| crossed.stamp.ktime_ns).min()
    }

    /// Arms a group; nothing where that is not possible: then there is the timer.
    pub(crate) fn arm(&mut self, id: u64, arming: &ThresholdPlan) -> Option<Generation> {
        let since = self.charged_at_look(id);
        let (kernel, _) = self.loaded.as_mut()?;
        match kernel.arm_since(id, limit_monitor::level(arming), since) {
            Ok(number) => Some(number),
            Err(error) => {
                if !std::mem::replace(&mut self.is_full, true) {
                    tracing::warn!(error = %crate::error::chain(&error), "arming a group: samples see it");
                }
                None
            }
        }
    }

    /// Disarms a group, which may be gone. One at whose level is decided stays armed for that.
    pub(crate) fn disarm(&mut self, id: u64) {
        if let Some((kernel, _)) = &mut self.loaded
            && !self.beside.decisive.contains(&id)
        {
            kernel.disarm(id);
        }
    }

    /// How often programs were loaded.
    pub(crate) fn programs(&self) -> u32 {
        self.losses.programs
    }

    /// Arms the node's own line of tasks, which is `distance` more than the `tasks` that there are: the
    /// fork that passes it is told. `group` is the node's in the pids controller's hierarchy, if it is
    /// one. A line that is armed already is left as it is, but for `anew`.
    pub(crate) fn arm_tasks(&mut self, group: Option<u64>, tasks: u64, distance: Option<u64>, anew: bool) {
        let Some((kernel, _)) = &mut self.loaded else { return };
        let beyond = distance.map(|distance| distance.saturating_add(1));
        let line = beyond.map(|beyond| tasks.saturating_add(beyond));
        if line == self.tasks_line && !anew {
            return;
        }
        self.tasks_line = line;
        let armed = line.zip(beyond).map(|(tasks, more)| match group {
            Some(id) => NodePidThreshold::Group { id, tasks },
            None => NodePidThreshold::More(more),
        });
        if let Err(error) = kernel.arm_node_tasks(armed) {
            tracing::warn!(%error, "arming the node's line of tasks");
        }
    }

    /// Whether the kernel side can carry out a verdict.
    pub(crate) fn has_kernel_kill(&self) -> bool {
        let is_watched = self.charge().is_some_and(|info| !self.is_lost(info.source));
        is_watched && self.loaded.as_ref().is_some_and(|(kernel, _)| kernel.has_kernel_kill())
    }

    /// Marks the sample that was just taken.
    pub(crate) fn mark_sample(&mut self, level_id: u64) -> Option<SampleEpoch> {
        let (kernel, _) = self.loaded.as_mut()?;
        told("marking a sample", kernel.mark_sample(level_id))
    }

    /// Lets a verdict stand.
    ///
    /// # Errors
    /// If the verdict before was carried out, or the kernel side cannot be told.
    pub(crate) fn stand(&mut self, standing: &ArmedOrder) -> Result<OrderNumber, NotArmed> {
        let (kernel, _) = self.loaded.as_mut().ok_or(NotArmed::Refused)?;
        match kernel.stand(standing) {
            Err(ArmError::CarriedOut) => Err(NotArmed::CarriedOut),
            stood => told("arming a verdict", stood).ok_or(NotArmed::Refused),
        }
    }

    /// Lets none stand; whether the one that stood was carried out before. Then its record comes.
    pub(crate) fn stand_down(&mut self) -> bool {
        let Some((kernel, _)) = &mut self.loaded else { return false };
        told("withdrawing a verdict", kernel.stand_down()).unwrap_or(false)
    }

    /// The same while the line is far.
    pub(crate) fn rest(&mut self) {
        if let Some((kernel, _)) = &mut self.loaded {
            told("withdrawing a verdict", kernel.rest());
        }
    }

    /// The programs, for what is read of them now and then, and how often they were loaded: each time
    /// they count anew.
    pub(crate) fn kernel(&mut self) -> Option<(u32, &mut BpfHandle)> {
        let programs = self.losses.programs;
        self.loaded.as_mut().map(|(kernel, _)| (programs, kernel))
    }
}

/// What came of telling the kernel side something, which the fallbacks do without.
fn told<T>(what: &'static str, told: Result<T, ArmError>) -> Option<T> {
    told.map_err(|error| tracing::warn!(error = %crate::error::chain(&error), what, "kernel kill")).ok()
}

/// The id of the group that stands for the node.
pub(crate) fn root_id(sampler: &Sampler) -> Option<u64> {
    sampler.tree().groups().first().map(|group| group.id)
}
