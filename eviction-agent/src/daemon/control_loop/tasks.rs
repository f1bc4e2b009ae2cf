//! Tasks and time in reclaim: joins what the BPF programs count per cgroup with the pods, and names the cgroups of task
//! alarms.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use eviction_bpf::{Alarm, BpfHandle, ReclaimTime, TaskAlarm, TaskCount};
use eviction_core::pods::KnownPod;
use eviction_core::reading::Reading;
use eviction_node::cgroup::files::parse_pids_events;
use eviction_node::cgroup::sampler::Sampler;
use eviction_node::file::read_once;
use eviction_node::pod_index::PodIndex;
use eviction_node::sampler::CompleteSample;

use super::super::oom_attribution::KillCgroups;
use super::ControlLoop;
use crate::telemetry::event_log::{self, Event};
use crate::telemetry::pod_rates::{PodActivity, PodTaskDelta};
use crate::telemetry::queue::TelemetryEvent;

impl ControlLoop {
    /// Publishes alarms with the names of this moment, since the cgroup may be gone soon. The sync that follows decides.
    pub(super) fn take_alarms(&mut self, alarms: &[TaskAlarm]) {
        for alarm in alarms {
            // The engine reports the node's own threshold.
            if alarm.alarm == Alarm::NodeTasks {
                self.state.rearm_pids = true;
                continue;
            }
            let described = describe(alarm, &self.node_sampler.cgroups, &self.pod_index);
            if described.owner.cgroup.is_none() && !self.node_sampler.cgroups.root().whole_machine {
                continue;
            }
            let at = self.clock.at(alarm.stamp.ktime_ns).wall;
            self.telemetry.publish(Event::TaskAlarm(described), at);
        }
    }

    /// Sets the kernel threshold of the node's tasks where the next threshold is.
    pub(super) fn arm_tasks(&mut self, node_sample: &CompleteSample, left: i64) {
        let Some(tasks) = node_sample.tasks.known() else { return };
        let root = self.node_sampler.cgroups.root();
        let group = match (root.whole_machine, &root.pids) {
            (true, _) => None,
            (false, Some(folder)) => match std::fs::metadata(folder) {
                Ok(folder) => Some(folder.ino()),
                Err(_) => return,
            },
            (false, None) => return,
        };
        let anew = std::mem::take(&mut self.state.rearm_pids);
        self.notifier.bpf.set_pid_threshold(group, tasks, self.pid_levels.distance(left), anew);
    }

    /// Publishes what tasks did since the last time, if that is due.
    pub(super) fn publish_pod_activity(&mut self, now_ns: u64) {
        // The machine's threshold is compared with forks less exits, which do not include tasks that are not reaped.
        self.state.rearm_pids = true;
        let (programs, Some(kernel)) = self.notifier.bpf.programs() else { return };
        if let Some(deltas) =
            self.task_totals.take(kernel, programs, now_ns, &self.node_sampler.cgroups, &self.pod_index)
        {
            self.telemetry.send(TelemetryEvent::PodActivity(deltas, self.clock.now()));
        }
    }
}

/// The time between two reads of the counts.
const TALLY_NS: u64 = 10_000_000_000;

/// The time between two sweeps of the BPF maps.
const SWEEP_NS: u64 = 60_000_000_000;

/// How long an alarm is not sent again.
const REARM_NS: u64 = 10_000_000_000;

/// What the counts were.
#[derive(Debug, Default)]
pub(crate) struct TaskTotals {
    tasks: Vec<(u64, TaskCount)>,
    stalls: Vec<(u64, ReclaimTime)>,
    before: HashMap<u64, PodActivity>,
    programs: u32,
    read_ns: u64,
    swept_ns: u64,
}

impl TaskTotals {
    /// Reads the counts if that is due, and returns what each pod did since. Also sweeps the BPF maps.
    pub(crate) fn take(
        &mut self,
        kernel: &mut BpfHandle,
        programs: u32,
        now_ns: u64,
        sampler: &Sampler,
        pod_index: &PodIndex,
    ) -> Option<Vec<PodTaskDelta>> {
        if now_ns.saturating_sub(self.read_ns) < TALLY_NS {
            return None;
        }
        self.read_ns = now_ns;
        if self.programs != programs {
            // Other programs have begun to count.
            self.programs = programs;
            self.before.clear();
        }
        let read = kernel.task_counts(&mut self.tasks).and_then(|()| kernel.reclaim_times(&mut self.stalls));
        if let Err(error) = read.and_then(|()| kernel.reset_alarms(now_ns.saturating_sub(REARM_NS))) {
            tracing::debug!(%error, "reading what tasks did");
            return None;
        }
        // Of a node that is a group the tree is a part of what the maps are about.
        if sampler.root().whole_machine && now_ns.saturating_sub(self.swept_ns) >= SWEEP_NS {
            self.swept_ns = now_ns;
            match kernel.sweep(|id| sampler.group(id).is_some()) {
                Ok(0) => {}
                Ok(entries) => tracing::debug!(entries, "swept what was left of cgroups that are gone"),
                Err(error) => tracing::debug!(%error, "sweeping the maps"),
            }
        }
        Some(self.join(sampler, pod_index))
    }

    fn join(&mut self, sampler: &Sampler, pod_index: &PodIndex) -> Vec<PodTaskDelta> {
        let now = by_group(&self.tasks, &self.stalls);
        let pods = sampler.pods();
        let tally = |pod: Option<&Arc<KnownPod>>| PodTaskDelta {
            pod: pod.map(Arc::clone),
            activity: PodActivity::default(),
        };
        // By pod, and not by group: there are two of a pod while the kubelet's driver is being changed. Every pod
        // has an entry, so that its counters begin at 0.
        let mut tallies: BTreeMap<Option<&str>, PodTaskDelta> = BTreeMap::new();
        for pod in pods.pods.iter().filter_map(|group| pod_index.pod_of(group)) {
            tallies.entry(Some(&*pod.pod.uid)).or_insert_with(|| tally(Some(pod)));
        }
        for (id, activity) in &now {
            let since = activity.since(self.before.get(id).copied().unwrap_or_default());
            let group = pods.owner(*id).and_then(|owner| pods.pods.get(owner.pod));
            let pod = group.and_then(|group| pod_index.pod_of(group));
            let entry = tallies.entry(pod.map(|known| &*known.pod.uid));
            entry.or_insert_with(|| tally(pod)).activity.add(since);
        }
        let tallies = tallies.into_values().collect();
        self.before = now;
        tallies
    }
}

/// Set, not added: a map whose entries go while it is read is read from its beginning again.
fn by_group(tasks: &[(u64, TaskCount)], stalls: &[(u64, ReclaimTime)]) -> HashMap<u64, PodActivity> {
    let mut groups: HashMap<u64, PodActivity> = HashMap::with_capacity(tasks.len());
    for (id, TaskCount { forks, exits, execs, process_forks: _, process_exits: _ }) in tasks {
        let activity = groups.entry(*id).or_default();
        (activity.forks, activity.execs, activity.exits) = (*forks, *execs, *exits);
    }
    for (id, ReclaimTime { count, ns, reclaimed }) in stalls {
        let activity = groups.entry(*id).or_default();
        (activity.reclaims, activity.stalled_ns, activity.reclaimed) = (*count, *ns, *reclaimed);
    }
    groups
}

/// An alarm with the names of this moment: the cgroup may be gone soon, and then it has none.
pub(crate) fn describe(alarm: &TaskAlarm, sampler: &Sampler, pod_index: &PodIndex) -> event_log::TaskAlarm {
    let TaskAlarm { stamp, alarm: what, memcg_id, key_id, tasks, bound, tgid, depth: _ } = *alarm;
    let mut described = event_log::TaskAlarm {
        alarm: what.name(),
        owner: KillCgroups::read(sampler).named(memcg_id, pod_index),
        pid: tgid,
        tasks,
        tasks_limit: bound,
        mono_ns: stamp.ktime_ns,
        ..event_log::TaskAlarm::default()
    };
    let pods = sampler.pods();
    let owner = pods.owner(memcg_id).and_then(|owner| Some((owner, pods.pods.get(owner.pod)?)));
    let Some((owner, group)) = owner else {
        described.limit_scope = (what == Alarm::PidsLimit).then_some("other");
        return described;
    };
    let container = owner.container.and_then(|index| group.containers.get(index));
    if what == Alarm::PidsLimit {
        let of = |owner, path| (owner, sampler.root().paths_of(path).pids);
        let candidates = container.map(|it| of("container", &it.path)).into_iter();
        let limited = candidates.chain([of("pod", &group.path)]).find_map(|(owner, folder)| {
            let folder = folder?;
            (std::fs::metadata(&folder).ok()?.ino() == key_id).then_some((owner, folder))
        });
        described.limit_scope = Some(limited.as_ref().map_or("other", |(owner, _)| *owner));
        described.forks_rejected = limited.and_then(|(_, folder)| refused_forks(&folder));
    }
    described
}

/// How many forks the limit of this group refused since it was made.
fn refused_forks(folder: &Path) -> Option<u64> {
    let text = read_once(&folder.join("pids.events"), 4096).ok()?;
    match parse_pids_events(&text) {
        Reading::Known(refused) => Some(refused),
        Reading::Unknown(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_began_anew_is_all_new() {
        let before = PodActivity { forks: 10, stalled_ns: 5, ..PodActivity::default() };
        let now = PodActivity { forks: 12, stalled_ns: 3, ..PodActivity::default() };
        assert_eq!(now.since(before), PodActivity { forks: 2, stalled_ns: 3, ..PodActivity::default() });
    }

    #[test]
    fn what_was_read_twice_counts_once() {
        let tasks = [(1, 5), (2, 7), (1, 6)];
        let tasks = tasks.map(|(id, forks)| (id, TaskCount { forks, ..TaskCount::default() }));
        let stalls = [(2, ReclaimTime { count: 3, ..ReclaimTime::default() }); 2];
        let groups = by_group(&tasks, &stalls);
        assert_eq!(groups[&1], PodActivity { forks: 6, ..PodActivity::default() });
        assert_eq!(groups[&2], PodActivity { forks: 7, reclaims: 3, ..PodActivity::default() });
    }
}
