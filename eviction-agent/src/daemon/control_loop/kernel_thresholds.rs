//! Sets the kernel thresholds and the timer after each sync.

use std::time::Duration;

use eviction_bpf::EventClass;
use eviction_core::decision::Decision;
use eviction_core::observation::Observation;
use eviction_core::reading::Reading;
use eviction_core::signal::{NodeCondition, Signal};
use eviction_core::signal_filter::observe;
use eviction_core::time::nanos;
use eviction_node::notify::sample_interval::{self, SampleSchedule};

use super::super::limit_monitor::LimitWatch;
use super::super::memory_notifier::{self, Trigger, conservative_level, root_id};
use super::ControlLoop;
use super::metrics::count_anomalies;
use eviction_node::clock::mono_ns;
use eviction_node::sampler::CompleteSample;

/// How many full samples it takes to read the memory.stat of every unchanged cgroup while the node is calm and
/// every threshold far, or one so near that there is no time. To read them all takes 16 ms for 330 containers.
const STAT_CYCLE: usize = 12;

/// With less time than this until a threshold could be reached, only the node is sampled, for as long as a full
/// sample can be postponed.
const NODE_ONLY_WITHIN: Duration = Duration::from_millis(20);

/// How long a full sample is postponed: beyond that the values of pods would be too old, and new pods unknown.
const FULL_POSTPONEMENT: Duration = Duration::from_secs(1);

/// How often the agent checks whether a backend is loaded or attached.
const BACKEND_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The minimum number of charged cgroups between two syncs for which memory is reserved.
const MIN_CHARGED_CAPACITY: usize = 1024;

impl ControlLoop {
    /// Sets the kernel thresholds of memory. Returns the headroom to the nearest eviction threshold in bytes.
    fn set_memory_thresholds(&mut self, node_sample: &CompleteSample, now_ns: u64) -> Option<u64> {
        let (Reading::Known(usage), Some(id)) = (node_sample.measured, root_id(&self.node_sampler.cgroups))
        else {
            return None;
        };
        let measure = self.node_sampler.measure();
        let memory_capacity = self.node_sampler.capacity().memory;
        let pods_id = self.node_sampler.allocatable.group(&self.node_sampler.cgroups);
        let own_limit = node_sample.pods_root.and_then(|root| {
            self.handle_limit_sample(root.id, root.seen, root.limit, None);
            self.limits.find(root.id).map(LimitWatch::level)
        });
        self.notifier.set_eviction_cgroups(id, pods_id);
        let allocatable = &self.node_sampler.allocatable;
        // The cgroup was read, but a policy that was applied after that may not use it.
        if let Some(root) = node_sample.pods_root.filter(|root| pods_id == Some(root.id)) {
            let levels = allocatable.working_sets().chain(own_limit);
            self.notifier.set_pods_threshold(root.id, root.seen, levels, now_ns);
        }
        let levels = self.memory_levels.working_sets(memory_capacity);
        let levels = levels.map(|level| conservative_level(measure, usage, level));
        let pods_headroom = allocatable.headroom();
        self.notifier.set_node_thresholds(id, usage, levels, pods_headroom, memory_capacity, now_ns)
    }

    /// Schedules the next read of the cgroup of all pods, if it was read in this sync.
    fn schedule_pods(&mut self, node_sample: &CompleteSample, calm: bool, now_ns: u64) {
        let distance = self.node_sampler.allocatable.headroom();
        let SampleSchedule { sample, full } = self.notifier.schedule(distance, calm);
        if node_sample.pods_root.is_some() {
            self.node_sampler.allocatable.wait_until(now_ns.saturating_add(nanos(sample)));
        } else if self.node_sampler.allocatable.due_in_ns(now_ns).is_none_or(|due| due == 0) {
            // There was no cgroup to read, or it could not be read.
            self.node_sampler.allocatable.wait_until(now_ns.saturating_add(nanos(full)));
        }
        if self.node_sampler.allocatable.may_be_met() {
            // Each sync reads the cgroup of all pods then.
            self.node_sampler.allocatable.read_at_next_sample();
        }
    }

    /// Sets the kernel thresholds at the headrooms of this sync, and the timer to what is due first. Returns
    /// whether there is time left: a full sample was taken.
    pub(super) fn set_thresholds_and_timer(
        &mut self,
        node_sample: &CompleteSample,
        grace: Option<Duration>,
    ) -> bool {
        let now_ns = mono_ns();
        let headroom = self.set_memory_thresholds(node_sample, now_ns);
        // A node without thresholds on memory is far from all of them.
        let headroom = self.memory_levels.lowest().map_or(Some(u64::MAX), |_| headroom);
        let calm = !self.state.under_pressure && node_sample.memory_left.known().is_some();
        let SampleSchedule { sample, full } = self.notifier.schedule(headroom, calm);
        // The headroom is as of the reading.
        let passed = Duration::from_nanos(now_ns.saturating_sub(node_sample.read_at.mono_ns));
        let mut due = sample_interval::remaining(sample, passed);
        self.schedule_pods(node_sample, calm, now_ns);
        let samples_node_only = sample <= NODE_ONLY_WITHIN;
        let full = if samples_node_only { full.saturating_add(FULL_POSTPONEMENT) } else { full };
        if let Reading::Known(left) = node_sample.pids_left {
            self.set_pid_threshold(node_sample, left);
        }
        let full_in =
            full.saturating_sub(Duration::from_nanos(now_ns.saturating_sub(self.state.last_full_ns)));
        let is_full_sample = full_in.is_zero();
        if is_full_sample {
            let is_spread = full == sample_interval::FULL_CALM || samples_node_only;
            self.sample_in_full(now_ns, if is_spread { STAT_CYCLE } else { 1 });
            due = due.min(full);
        } else {
            due = due.min(full_in.max(sample_interval::FLOOR));
        }
        let tree = self.refresh_tree_if_due(now_ns, !samples_node_only);
        self.sample_limits();
        let limits = self.limits.due_ns(now_ns);
        let pods = self.node_sampler.allocatable.due_in_ns(now_ns).filter(|due| *due > 0);
        let patience = self.engine.waits_for_victims_until(self.clock.at(now_ns).wall);
        let patience = patience.map(|until| self.clock.mono_of(until).saturating_sub(now_ns));
        let groups = self.state.oom_groups.due_ns(now_ns);
        // Counters that are due now are read at the end of this iteration.
        let counters = self.oom_counters.due_in_ns(now_ns);
        let thaw = self.thaw_due_in_ns(now_ns);
        let stalls = self.node_sampler.stall_interval_ns().filter(|_| self.state.under_pressure);
        let in_ns = [patience, tree, groups, counters, limits, pods, thaw, stalls].into_iter().flatten();
        let terminations = self.termination_due(node_sample.read_at.wall);
        let backends = self.notifier.bpf.is_changing().then_some(BACKEND_CHECK_INTERVAL);
        let others = [grace, terminations, backends].into_iter().flatten();
        due = in_ns.map(Duration::from_nanos).chain(others).fold(due, Duration::min);
        if self.update_terminating(now_ns) {
            due = Duration::ZERO;
        }
        self.state.sync_due_ns = now_ns.saturating_add(nanos(due));
        if let Reading::Known(left) = node_sample.pids_left {
            due = due.min(self.pids_due(left, node_sample.at.mono_ns));
        }
        let disks = self.set_disk_thresholds(now_ns, passed);
        self.set_timer(disks.map_or(due, |disks| due.min(disks)), now_ns);
        is_full_sample
    }

    /// Sets the kernel thresholds of the disks, and reads pods' storage where that is due. Returns when the disks are to
    /// be sampled again. `passed` is the time since they were sampled.
    fn set_disk_thresholds(&mut self, now_ns: u64, passed: Duration) -> Option<Duration> {
        self.notifier.bpf.set_disk_thresholds(self.node_sampler.disks.devices(), now_ns);
        self.read_ahead(now_ns);
        let disks = self.node_sampler.disks.due().map(|disks| sample_interval::remaining(disks, passed));
        let due = [disks, self.read_storage_near_limits(now_ns), self.storage.awaited_space_due(now_ns)];
        due.into_iter().flatten().min()
    }

    /// Sets the timer to `due` after `since_ns` ([`sample_interval::remaining`]).
    pub(super) fn set_timer(&mut self, due: Duration, since_ns: u64) {
        let now_ns = mono_ns();
        let passed = Duration::from_nanos(now_ns.saturating_sub(since_ns));
        let due = sample_interval::remaining(due.max(sample_interval::FLOOR), passed);
        self.state.due_ns = now_ns.saturating_add(nanos(due));
        self.notifier.set_timer(due);
    }

    /// Brings the timer forward, for what became due after it was set.
    pub(super) fn sync_within(&mut self, due: Duration) {
        let now_ns = mono_ns();
        let due_ns = now_ns.saturating_add(nanos(due));
        self.state.sync_due_ns = self.state.sync_due_ns.min(due_ns);
        if due_ns < self.state.due_ns {
            self.set_timer(due, now_ns);
        }
    }

    /// Samples only process IDs and disks if nothing else was due. Returns false if a sync is needed.
    pub(super) fn sample_pids_and_disks(&mut self) -> bool {
        let at = self.clock.now();
        let Some(left_ns) = self.state.sync_due_ns.checked_sub(at.mono_ns) else { return false };
        if left_ns < nanos(sample_interval::FLOOR) {
            return false;
        }
        self.notifier.bpf.record_disk_totals();
        let stats = self.node_sampler.read_pids_and_disks(at);
        let seen = observe(&stats, self.node_sampler.measure());
        let Some(Observation { available: left, .. }) = seen.get(Signal::PidAvailable) else { return false };
        let is_pressed = self.pid_levels.may_be_met(left) || self.node_sampler.disks.may_be_met();
        if is_pressed || self.state.last_change.imminent {
            return false;
        }
        self.count_sync(Trigger::Pids, at);
        let is_read = |signal: &Signal| signal.condition() != NodeCondition::MemoryPressure;
        self.record_readings(&seen, Signal::ALL.into_iter().filter(is_read), at);
        let disks = self.set_disk_thresholds(at.mono_ns, Duration::ZERO);
        let due = self.pids_due(left, at.mono_ns).min(Duration::from_nanos(left_ns));
        self.set_timer(disks.map_or(due, |disks| due.min(disks)), at.mono_ns);
        true
    }

    /// Takes a full sample. It repairs what events did not report: the tree, all values, and lost events.
    pub(super) fn sample_in_full(&mut self, now_ns: u64, cycle: usize) {
        (self.state.last_full_ns, self.state.needs_trends) = (now_ns, true);
        let (losses, is_tree_missed) = self.notifier.bpf.read_losses();
        // `tree_read_ns` is 0 after missed events. The age of the tree is then the uptime, which may be short.
        let is_tree_missed = is_tree_missed || self.state.tree_read_ns == 0;
        self.check_tree(now_ns, is_tree_missed || losses.is_some());
        count_anomalies(&self.metrics, self.engine.oom().anomalies());
        self.count_oom_kills();
        self.node_sampler.cgroups.sample_all(cycle);
        self.record_older_pods();
        self.read_limited_storage(now_ns);
        self.read_summary(now_ns);
        // A limit may be set long after its cgroup was created.
        self.adopt_limits();
        self.update_limits(now_ns);
        let pods = self.node_sampler.cgroups.last_pods();
        let usage = pods.filter_map(|(pod, sample)| Some((pod.cgroup_id, sample.usage.known()?)));
        self.notifier.check_backends(usage, self.node_sampler.cgroups.tree(), now_ns);
        self.publish_pod_activity(now_ns);
        if let Some(losses) = losses {
            self.telemetry.publish(losses, self.clock.now().wall);
        }
    }

    /// Reserves the buffers for a sample and an evaluation of all pods before they are needed. Runs once for each
    /// set of pods, when there is time.
    pub(super) fn warm_up(&mut self, node_sample: &CompleteSample) {
        let is_needed = self.memory_levels.lowest().is_some();
        if !is_needed || std::mem::replace(&mut self.state.is_warm, true) {
            return;
        }
        self.node_sampler.sample_pods(node_sample);
        self.node_sampler.cgroups.count_tasks();
        let snapshot = self.node_sampler.snapshot_of_pods(node_sample, &self.pod_index);
        self.engine.rank_ahead(&snapshot, &mut self.state.ahead);
        self.engine.reserve_buffers();
        self.node_sampler.recycle(snapshot);
        // Charged cgroups outside the node's cgroup count as well, if the node is not the whole machine.
        let groups = self.node_sampler.cgroups.tree().groups().len().max(MIN_CHARGED_CAPACITY);
        self.state.charged.reserve(groups);
    }

    /// Returns when process IDs are to be sampled again, by how fast they were used up since the last sample.
    pub(super) fn pids_due(&mut self, left: i64, now_ns: u64) -> Duration {
        let Some(distance) = self.pid_levels.distance(left) else {
            let is_watched = self.pid_levels.lowest().is_some();
            return if is_watched { sample_interval::FULL_NEAR } else { sample_interval::FULL_CALM };
        };
        let left = left.max(0).unsigned_abs();
        let before = self.state.last_left.replace((now_ns, left));
        let per_second = match before {
            Some((then, more)) if now_ns > then => {
                more.saturating_sub(left).saturating_mul(1_000_000_000) / (now_ns - then)
            }
            _ => 0,
        };
        memory_notifier::pids_due(distance, per_second, self.notifier.bpf.reports(EventClass::Task))
    }
}

/// Returns the time until the next grace period of a met threshold ends.
pub(super) fn next_grace(decision: &Decision) -> Option<Duration> {
    let evaluation = decision.evaluation()?;
    let waiting = evaluation.met.iter().filter(|met| !met.grace_period_over);
    let ends = waiting.filter_map(|met| {
        let grace = evaluation.threshold(met.threshold)?.grace_period.as_nanos();
        let waited = decision.at.as_nanosecond() - met.first_seen.as_nanosecond();
        u64::try_from(i128::from(grace) - waited).ok()
    });
    ends.min().map(Duration::from_nanos)
}
