//! The BPF programs as a backend: their events, the kernel thresholds set with them, and how they are replaced.

mod disks;
mod kernel_kill;

use std::sync::Arc;
use std::time::Duration;

use crate::telemetry::event_log;
use crate::telemetry::metrics::Metrics;
use eviction_bpf::load::{ProgramLogReader, load};
use eviction_bpf::{
    AttachWhen, BackendInfo, BpfHandle, DiskTotal, EventClass, KernelKillCause, KernelThreshold, LoadError,
    LoadOptions, Loaded, MemcgThreshold, NodePidThreshold, Ring, ThresholdCrossed, ring,
};
use eviction_config::Probes;
use eviction_node::cgroup::sampler::Sampler;
use eviction_node::clock::mono_ns;
use tokio::io::unix::AsyncFd;

use super::super::realtime;
use super::events::{EventBatch, EventSorter, ProgramCounters};
use super::failover::BpfFailover;
use super::plan::{AttachPolicy, CrossingRate, GrowthSource};
use crate::error::chain;

/// How often, and how long each time, the agent waits for the event of a kernel kill whose fire token is taken.
/// A program that was interrupted between the two continues when it is scheduled again.
const EVENT_TRIES: u32 = 20;
const EVENT_PAUSE: Duration = Duration::from_micros(50);

/// The programs, their ring buffer, and what they counted so far.
pub(crate) struct BpfBackend {
    pub(super) metrics: Arc<Metrics>,
    /// The sources whose backend has changed, until they are published.
    pub(super) changed: Vec<BackendInfo>,
    loaded: Option<(BpfHandle, AsyncFd<Ring>)>,
    /// Absent if nothing could be loaded at the start.
    failover: Option<BpfFailover>,
    log: Option<ProgramLogReader>,
    sorter: EventSorter,
    counters: ProgramCounters,
    /// The gross charges of the cgroups with eviction thresholds when this sample began.
    charged: [Option<(u64, MemcgThreshold)>; 2],
    /// The policies of the on-demand probes, in the order of [`AttachWhen`].
    attach_policies: [AttachPolicy; 3],
    /// The total of each file system when the sample began, by device.
    disk_totals: Vec<(u64, DiskTotal)>,
    disk_crossings: CrossingRate,
    /// Whether it was logged that a threshold of memory or tasks, or one of a disk, cannot be set.
    is_set_error_logged: bool,
    is_disk_error_logged: bool,
}

impl BpfBackend {
    /// Loads the programs. Returns the backend of each source, with the reason where there is none.
    pub(super) fn start(
        options: &LoadOptions,
        probes: &Probes,
        metrics: &Arc<Metrics>,
    ) -> (Self, Vec<BackendInfo>) {
        let mut this = Self {
            metrics: Arc::clone(metrics),
            changed: Vec::new(),
            loaded: None,
            failover: None,
            log: None,
            sorter: EventSorter::default(),
            counters: ProgramCounters::default(),
            charged: [None; 2],
            attach_policies: [AttachPolicy::new(probes); 3],
            disk_totals: Vec::new(),
            disk_crossings: CrossingRate::default(),
            is_set_error_logged: false,
            is_disk_error_logged: false,
        };
        match load(options).and_then(|loaded| this.adopt(loaded)) {
            Ok(sources) => {
                this.failover = Some(BpfFailover::new(options.clone()));
                (this, sources)
            }
            Err(LoadError { why, missing }) => {
                tracing::warn!(why, "no BPF: the other backends are used");
                (this, missing)
            }
        }
    }

    /// Uses these programs. Returns the backend of each source.
    ///
    /// # Errors
    /// If the ring buffer cannot be watched.
    fn adopt(&mut self, loaded: Loaded) -> Result<Vec<BackendInfo>, LoadError> {
        let sources = loaded.sources();
        let Loaded { kernel, ring, missing: _, log } = loaded;
        let ring = ring::watch(ring).map_err(|error| {
            let why = format!("the ring buffer cannot be watched: {error}");
            let missing = sources.iter().map(|info| BackendInfo::plain(info.source, "", &why)).collect();
            LoadError { why, missing }
        })?;
        (self.loaded, self.log) = (Some((kernel, ring)), log);
        // The counters of these programs begin at zero, and no threshold is set.
        self.counters.restart();
        (self.charged, self.is_set_error_logged, self.is_disk_error_logged) = Default::default();
        self.disk_totals.clear();
        Ok(sources)
    }

    /// Unloads the programs, and keeps their last counts.
    fn unload(&mut self) {
        for cause in KernelKillCause::ALL {
            self.disarm_kill(cause);
        }
        let Some((handle, _)) = self.loaded.take() else { return };
        self.counters.export_suppressed(&handle, &self.metrics);
        self.counters.export_losses(&handle, &self.metrics);
        realtime::drop_on_thread(handle);
    }

    pub(crate) fn handle(&self) -> Option<&BpfHandle> {
        self.loaded.as_ref().map(|(handle, _)| handle)
    }

    pub(crate) fn handle_mut(&mut self) -> Option<&mut BpfHandle> {
        self.loaded.as_mut().map(|(handle, _)| handle)
    }

    /// Waits for an event that must be handled at once; forever if nothing is loaded. Cancel-safe.
    pub(super) async fn next(&mut self) -> EventBatch {
        let Some((handle, ring)) = &mut self.loaded else { return std::future::pending().await };
        let mut batch = EventBatch::default();
        match ring::drain_ready(ring, |event| self.sorter.add(event, &mut batch)).await {
            Ok(drained) => batch.missed |= self.counters.count(drained, handle, &self.metrics),
            Err(error) => {
                self.unload();
                let why = format!("the ring buffer cannot be read any more: {error}");
                self.changed.extend(sources_without_backend(&why));
                if let Some(failover) = &mut self.failover {
                    failover.fail(BackendInfo::plain("ring", "", why), &self.metrics);
                    failover.reload(mono_ns());
                }
                // No other event causes a sample, and the timer was set for programs that report.
                batch.missed = true;
            }
        }
        batch
    }

    /// Adds the events that are there, without waiting, and takes the cgroups that were charged since the last call.
    pub(super) fn drain(&mut self, batch: &mut EventBatch, charged: &mut Vec<u64>) {
        charged.clear();
        if let Some(log) = &mut self.log {
            log.flush();
        }
        self.read_ring(batch);
        let Some((handle, _)) = &self.loaded else { return };
        if let Err(error) = handle.take_charged(|id| charged.push(id)) {
            // A full sample finds them too.
            tracing::debug!(%error, "cannot read the charged cgroups");
        }
        // Charges while values are read are neither in the values nor in what counts after a threshold is set.
        let [node, pods] = self.sorter.eviction_cgroups;
        let charge = |id: u64| Some((id, handle.read_threshold(id)?));
        self.charged = [charge(node), if pods == node { None } else { charge(pods) }];
        self.record_disk_totals();
    }

    /// Adds the events that are in the ring buffer.
    fn read_ring(&mut self, batch: &mut EventBatch) {
        let Some((handle, ring)) = &mut self.loaded else { return };
        let drained = ring.get_mut().drain(|event| self.sorter.add(event, batch));
        batch.missed |= self.counters.count(drained, handle, &self.metrics);
    }

    /// Checks whether the programs still report, given the usage of each pod by the id of its cgroup, and
    /// reloads what failed.
    pub(super) fn check(&mut self, pods: impl Iterator<Item = (u64, u64)>, now_ns: u64) {
        let Some(failover) = &mut self.failover else { return };
        match &self.loaded {
            Some((handle, _)) => failover.check(handle, pods, &self.metrics),
            None => {
                let why = "nothing is loaded".to_owned();
                failover.fail(BackendInfo::plain("ring", "", why), &self.metrics);
            }
        }
        failover.reload(now_ns);
    }

    /// Switches to the programs that were loaded to replace others, once they are loaded, and adds the last
    /// events of the others.
    pub(super) fn switch_to_loaded(&mut self, batch: &mut EventBatch) {
        let Some(failover) = &mut self.failover else { return };
        let present = self.loaded.as_ref().map(|(handle, _)| handle);
        let loaded = match failover.loaded(present) {
            None => return,
            Some(Ok(loaded)) => loaded,
            Some(Err(failed)) => return self.changed.extend(failed),
        };
        let now_ns = mono_ns();
        self.drain_last_events(batch);
        self.sorter.kills_since_ns = now_ns;
        self.unload();
        let adopted = self.adopt(loaded);
        batch.programs_loaded |= adopted.is_ok();
        let changed = adopted.unwrap_or_else(|error| error.missing);
        self.changed.extend(changed);
        // No threshold is set, and cgroups may have been created or removed in between.
        batch.missed = true;
    }

    /// Adds the last events of the present programs. Disarms the kill orders, and waits for the events of those
    /// that were carried out, since this ring buffer is not read again.
    fn drain_last_events(&mut self, batch: &mut EventBatch) {
        let mut awaited = Vec::from(KernelKillCause::ALL);
        awaited.retain(|cause| self.disarm_kill(*cause));
        for _ in 0..EVENT_TRIES {
            self.read_ring(batch);
            if awaited.iter().all(|cause| batch.kernel_kills.iter().any(|kill| kill.cause == *cause)) {
                break;
            }
            std::thread::sleep(EVENT_PAUSE);
        }
    }

    /// Returns whether programs are being loaded, or one is being attached or detached.
    pub(crate) fn is_changing(&self) -> bool {
        self.failover.as_ref().is_some_and(BpfFailover::is_loading)
            || self.handle().is_some_and(BpfHandle::is_changing)
    }

    /// Attaches or detaches the on-demand probes for memory.
    pub(super) fn attach_on_demand(
        &mut self,
        headroom: Option<u64>,
        memory_capacity: u64,
        below: bool,
        now_ns: u64,
    ) {
        let is_near = self.is_near(AttachWhen::NearThreshold, headroom, memory_capacity);
        self.attach(EventClass::ChargeNear, AttachWhen::NearThreshold, is_near, now_ns);
        self.attach(EventClass::ChargeNear, AttachWhen::OnRelease, below, now_ns);
    }

    /// Returns whether an on-demand probe is to be attached at this headroom to a threshold.
    fn is_near(&self, when: AttachWhen, headroom: Option<u64>, capacity: u64) -> bool {
        let is_attached = self.handle().is_some_and(|handle| handle.is_attached(when));
        self.attach_policies[when as usize].is_near(is_attached, headroom, capacity)
    }

    /// Attaches an on-demand probe of this class if it is needed, or detaches it some time after that.
    fn attach(&mut self, class: EventClass, when: AttachWhen, is_needed: bool, now_ns: u64) {
        let (source, backend) = (class.name(), self.backend(class));
        let Some((handle, _)) = &mut self.loaded else { return };
        let wanted = self.attach_policies[when as usize].wants(handle.is_attached(when), is_needed, now_ns);
        if let (Err(error), Some(failover)) = (handle.request_probe(when, wanted), &mut self.failover) {
            let why = format!("it cannot be attached any more: {error}");
            failover.fail(BackendInfo::plain(source, backend, why), &self.metrics);
        }
    }

    fn is_failed(&self, source: &str) -> bool {
        self.failover.as_ref().is_some_and(|failover| failover.is_failed(source))
    }

    fn charge(&self) -> Option<&BackendInfo> {
        self.handle().and_then(BpfHandle::charge)
    }

    /// Returns how growth is detected at present; `None` if it is not.
    pub(crate) fn growth(&self) -> Option<GrowthSource> {
        let info = self.charge()?;
        let sees_every_charge =
            info.sees_every_charge && !self.counters.is_truncating && !self.is_failed(info.source);
        Some(GrowthSource { sees_every_charge, granularity_bytes: info.granularity_bytes })
    }

    /// Returns the number of cgroups for which each CPU caches charges.
    pub(super) fn charge_caches(&self) -> u32 {
        self.handle().map_or(1, BpfHandle::charge_caches)
    }

    /// Returns the backend that reports charges; `none` without one.
    pub(crate) fn charge_backend(&self) -> &'static str {
        self.charge().map_or("none", |info| info.backend)
    }

    /// Returns the backend of a class, also if it has failed; empty without one.
    pub(crate) fn backend(&self, class: EventClass) -> &'static str {
        let sources = self.handle().map_or(&[][..], BpfHandle::sources);
        sources.iter().find(|info| info.source == class.name()).map_or("", |info| info.backend)
    }

    /// Returns whether the programs report events of this class.
    pub(crate) fn reports(&self, class: EventClass) -> bool {
        !self.backend(class).is_empty() && !self.is_failed(class.name())
    }

    /// Sets the cgroups with eviction thresholds: crossings of these cause a sync, those of others wait.
    pub(super) fn set_eviction_cgroups(&mut self, node: u64, pods: Option<u64>) {
        let [_, before] = std::mem::replace(&mut self.sorter.eviction_cgroups, [node, pods.unwrap_or(node)]);
        self.clear_threshold(before);
    }

    /// Returns the usage of the root page counter at a sample of the whole machine with this usage.
    pub(super) fn root_counter_usage(&mut self, usage: u64, now_ns: u64) -> u64 {
        self.sorter.root_counter_usage(usage, now_ns)
    }

    /// Returns whether the kernel thresholds of this cgroup are those of evictions.
    pub(crate) fn has_eviction_thresholds(&self, id: u64) -> bool {
        self.sorter.eviction_cgroups.contains(&id)
    }

    /// Sets the kernel threshold of a cgroup, and returns the generation of the setting; `None` if that is not
    /// possible. Then only the timer remains.
    pub(crate) fn set_threshold(&mut self, id: u64, threshold: KernelThreshold) -> Option<u64> {
        let since = self.charged.iter().flatten().find(|(of, _)| *of == id).map(|(_, charged)| *charged);
        let (handle, _) = self.loaded.as_mut()?;
        match handle.set_threshold_since(id, threshold, since) {
            Ok(generation) => Some(generation),
            Err(error) => {
                if !std::mem::replace(&mut self.is_set_error_logged, true) {
                    tracing::warn!(cgroup = id, error = %chain(&error), "cannot set a kernel threshold: the timer detects the crossing");
                }
                None
            }
        }
    }

    /// Clears the kernel thresholds of a cgroup, which may have been removed. A cgroup with eviction thresholds
    /// keeps them.
    pub(crate) fn clear_threshold(&mut self, id: u64) {
        if self.has_eviction_thresholds(id) {
            return;
        }
        if let Some((handle, _)) = &mut self.loaded {
            handle.clear_threshold(id);
        }
    }

    /// Takes the first pending crossing of a memory limit.
    pub(crate) fn take_limit_crossing(&mut self) -> Option<ThresholdCrossed> {
        self.sorter.limit_crossings.pop_front()
    }

    /// Returns when the cgroup with this id came near its limit, if that event is pending.
    pub(crate) fn near_limit_ns(&self, id: u64) -> Option<u64> {
        let rises = self.sorter.limit_crossings.iter().filter(|crossed| crossed.is_rise());
        rises.filter(|crossed| crossed.cgroup_id == id).map(|crossed| crossed.ktime_ns).min()
    }

    /// Sets the threshold of the node's tasks at `headroom` more than the present `tasks`: the fork that passes
    /// it is reported. `group` is the node's cgroup in the hierarchy of the pids controller, if the node is one.
    pub(crate) fn set_pid_threshold(&mut self, group: Option<u64>, tasks: u64, headroom: Option<u64>) {
        let Some((handle, _)) = &mut self.loaded else { return };
        let beyond = headroom.map(|headroom| headroom.saturating_add(1));
        let threshold = beyond.map(|beyond| match group {
            Some(id) => NodePidThreshold::Group { id, tasks: tasks.saturating_add(beyond) },
            None => NodePidThreshold::More(beyond),
        });
        if let Err(error) = handle.set_pid_threshold(threshold)
            && !std::mem::replace(&mut self.is_set_error_logged, true)
        {
            tracing::warn!(%error, "cannot set the kernel threshold of the node's tasks");
        }
    }

    /// Exports losses. Returns the event of what was lost, if that has grown, and whether a change of the
    /// cgroup tree may not have been reported.
    pub(crate) fn read_losses(&mut self) -> (Option<event_log::Event>, bool) {
        let handle = self.loaded.as_ref().map(|(handle, _)| handle);
        let is_tree_missed = handle.is_some_and(|handle| self.counters.export_losses(handle, &self.metrics));
        (self.counters.event.take(), is_tree_missed)
    }
}

/// Returns an entry without a backend for every source.
fn sources_without_backend(why: &str) -> Vec<BackendInfo> {
    EventClass::ALL.map(|class| BackendInfo::plain(class.name(), "", why)).to_vec()
}

/// Returns the id of the cgroup that represents the node.
pub(crate) fn root_id(sampler: &Sampler) -> Option<u64> {
    sampler.tree().groups().first().map(|group| group.id)
}
