//! Tasks and time in reclaim: joins the counts of the BPF programs per cgroup with the pods, and names the
//! cgroups of task alarms.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use eviction_bpf::{Alarm, ReclaimTime, TaskAlarm, TaskStats};
use eviction_core::pods::KnownPod;
use eviction_node::cgroup::files::parse_pids_events;
use eviction_node::cgroup::node_root::find_group;
use eviction_node::cgroup::sampler::Sampler;
use eviction_node::file::read_once;
use eviction_node::pod_index::PodIndex;
use eviction_node::sampler::CompleteSample;

use super::super::oom_attribution::CgroupNames;
use super::ControlLoop;
use crate::telemetry::event_log::{self, Event};
use crate::telemetry::pod_metrics::PodActivity;
use crate::telemetry::queue::TelemetryEvent;

impl ControlLoop {
    /// Publishes alarms with the current names, since the cgroup may be removed soon. The sync that follows
    /// decides.
    pub(super) fn publish_task_alarms(&mut self, alarms: &[TaskAlarm]) {
        // The engine reports the node's own threshold.
        for alarm in alarms.iter().filter(|alarm| alarm.alarm != Alarm::NodeTasks) {
            let described = describe(alarm, &self.node_sampler.cgroups, &self.pod_index);
            if described.owner.cgroup.is_none() && !self.node_sampler.cgroups.root().whole_machine {
                continue;
            }
            let at = self.clock.at(alarm.ktime_ns).wall;
            self.telemetry.publish(Event::TaskAlarm(described), at);
        }
    }

    /// Sets the kernel threshold of the node's tasks at the next pid threshold.
    pub(super) fn set_pid_threshold(&mut self, node_sample: &CompleteSample, left: i64) {
        let tasks = node_sample.stats.processes.known().and_then(|it| u64::try_from(it.running?).ok());
        let Some(tasks) = tasks else { return };
        let root = self.node_sampler.cgroups.root();
        let group = if root.whole_machine {
            None
        } else {
            let folder = root.pids.as_ref().and_then(|folder| std::fs::metadata(folder).ok());
            let Some(folder) = folder else { return };
            Some(folder.ino())
        };
        self.notifier.bpf.set_pid_threshold(group, tasks, self.pid_levels.distance(left));
    }

    /// Publishes the activity of each pod since the last read of the counts, if a read is due. Also sweeps the BPF maps.
    pub(super) fn publish_pod_activity(&mut self, now_ns: u64) {
        let Some(kernel) = self.notifier.bpf.handle_mut() else { return };
        let (totals, sampler) = (&mut self.task_totals, &self.node_sampler.cgroups);
        if now_ns.saturating_sub(totals.read_ns) < READ_INTERVAL_NS {
            return;
        }
        totals.read_ns = now_ns;
        let (mut tasks, mut stalls) = (Vec::new(), Vec::new());
        let read = kernel.task_counts(&mut tasks).and_then(|()| kernel.reclaim_times(&mut stalls));
        if let Err(error) = read.and_then(|()| kernel.reset_alarms(now_ns.saturating_sub(REARM_NS))) {
            return tracing::debug!(%error, "cannot read the task counters");
        }
        // If the node is a cgroup, the tree is only a part of what the maps cover.
        if sampler.root().whole_machine && now_ns.saturating_sub(totals.swept_ns) >= SWEEP_INTERVAL_NS {
            totals.swept_ns = now_ns;
            match kernel.sweep(|id| sampler.group(id).is_some()) {
                Ok(0) => {}
                Ok(entries) => tracing::debug!(entries, "removed the BPF map entries of removed cgroups"),
                Err(error) => tracing::debug!(%error, "cannot sweep the BPF maps"),
            }
        }
        let deltas = totals.join(by_group(&tasks, &stalls), sampler, &self.pod_index);
        self.telemetry.send(TelemetryEvent::PodActivity(deltas, self.clock.now()));
    }
}

/// The time between two reads of the counts.
const READ_INTERVAL_NS: u64 = 10_000_000_000;

/// The time between two sweeps of the BPF maps.
const SWEEP_INTERVAL_NS: u64 = 60_000_000_000;

/// After this time an alarm may be sent again.
const REARM_NS: u64 = 10_000_000_000;

/// The last counts of the BPF programs.
#[derive(Debug, Default)]
pub(crate) struct TaskTotals {
    before: HashMap<u64, PodActivity>,
    read_ns: u64,
    swept_ns: u64,
}

impl TaskTotals {
    /// Forgets the counts of programs that were replaced.
    pub(super) fn forget_counts(&mut self) {
        self.before.clear();
    }

    /// Returns the activity of each cgroup since the last counts, with its pod, given the counts by cgroup.
    fn join(
        &mut self,
        now: HashMap<u64, PodActivity>,
        sampler: &Sampler,
        pod_index: &PodIndex,
    ) -> Vec<(Option<Arc<KnownPod>>, PodActivity)> {
        let pods = sampler.pods();
        // Every pod has an entry, so that its counters begin at 0.
        let known = pods.pods.iter().filter_map(|group| pod_index.pod_of(group));
        let begun = known.map(|pod| (Some(pod.clone()), PodActivity::default()));
        let counted = now.iter().map(|(id, activity)| {
            let pod = pods.owner(*id).and_then(|(group, _)| pod_index.pod_of(group));
            let activity = activity.since(self.before.get(id).copied().unwrap_or_default());
            (pod.cloned(), activity)
        });
        let counted = counted.filter(|(_, activity)| *activity != PodActivity::default());
        let deltas = begun.chain(counted).collect();
        self.before = now;
        deltas
    }
}

/// Returns the counts by cgroup. They are set, not added: a map whose entries are removed while it is read is
/// read from its beginning again.
fn by_group(tasks: &[(u64, TaskStats)], stalls: &[(u64, ReclaimTime)]) -> HashMap<u64, PodActivity> {
    let mut groups: HashMap<u64, PodActivity> = HashMap::with_capacity(tasks.len());
    for (id, TaskStats { forks, exits, execs, .. }) in tasks {
        let activity = groups.entry(*id).or_default();
        (activity.forks, activity.execs, activity.exits) = (*forks, *execs, *exits);
    }
    let page_bytes = rustix::param::page_size() as u64;
    for (id, ReclaimTime { count, ns, reclaimed }) in stalls {
        let activity = groups.entry(*id).or_default();
        (activity.reclaims, activity.stalled_ns) = (*count, *ns);
        activity.reclaimed = reclaimed.saturating_mul(page_bytes);
    }
    groups
}

/// Returns an alarm with the current names: the cgroup may be removed soon, and has no name then.
pub(crate) fn describe(
    alarm: &TaskAlarm,
    sampler: &Sampler,
    pod_index: &PodIndex,
) -> event_log::TaskAlarmEvent {
    let TaskAlarm { ktime_ns, alarm: what, memcg_id, key_id, tasks, bound, tgid } = *alarm;
    let cgroups = CgroupNames::read(sampler);
    let mut described = event_log::TaskAlarmEvent {
        alarm: what.name(),
        owner: cgroups.named(memcg_id, pod_index),
        pid: tgid,
        tasks,
        tasks_limit: bound,
        mono_ns: ktime_ns,
        ..event_log::TaskAlarmEvent::default()
    };
    if what == Alarm::PidsLimit {
        let limited = cgroups.owner(memcg_id).and_then(|(pod, container)| {
            let of = |scope, path| Some((scope, find_group(sampler.root().pids.as_ref(), path)?));
            let container = container.and_then(|container| of("container", &container.path));
            let mut candidates = container.into_iter().chain(of("pod", &pod.path));
            candidates.find(|(_, folder)| std::fs::metadata(folder).is_ok_and(|it| it.ino() == key_id))
        });
        described.limit_scope = Some(limited.as_ref().map_or("other", |(scope, _)| *scope));
        described.forks_rejected = limited.and_then(|(_, folder)| {
            let text = read_once(&folder.join("pids.events"), 4096).ok()?;
            parse_pids_events(&text).known()
        });
    }
    described
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_counter_counts_in_full() {
        let before = PodActivity { forks: 10, stalled_ns: 5, ..PodActivity::default() };
        let now = PodActivity { forks: 12, stalled_ns: 3, ..PodActivity::default() };
        assert_eq!(now.since(before), PodActivity { forks: 2, stalled_ns: 3, ..PodActivity::default() });
    }

    #[test]
    fn entries_that_were_read_twice_count_once() {
        let tasks = [(1, 5), (2, 7), (1, 6)];
        let tasks = tasks.map(|(id, forks)| (id, TaskStats { forks, ..TaskStats::default() }));
        let stalls = [(2, ReclaimTime { count: 3, ..ReclaimTime::default() }); 2];
        let groups = by_group(&tasks, &stalls);
        assert_eq!(groups[&1], PodActivity { forks: 6, ..PodActivity::default() });
        assert_eq!(groups[&2], PodActivity { forks: 7, reclaims: 3, ..PodActivity::default() });
    }
}
