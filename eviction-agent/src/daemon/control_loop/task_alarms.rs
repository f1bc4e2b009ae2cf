//! Tasks: what the kernel side counts of them, and what it tells of too many.

use std::os::unix::fs::MetadataExt as _;

use eviction_bpf::{Alarm, TaskAlarm};

use super::super::pod_activity::describe;
use super::ControlLoop;
use crate::telemetry::event_log::Event;
use crate::telemetry::queue::TelemetryEvent;
use eviction_node::sampler::CompleteSample;

impl ControlLoop {
    /// Names of this moment go with it: the cgroup may be gone soon. The look that follows decides.
    pub(super) fn take_alarms(&mut self, alarms: &[TaskAlarm]) {
        for alarm in alarms {
            // The node's own line is the engine's to tell.
            if alarm.alarm == Alarm::NodeTasks {
                self.state.rearm_pids = true;
                continue;
            }
            let told = describe(alarm, &self.node_sampler.cgroups, &self.pod_index);
            if told.owner.cgroup.is_none() && !self.node_sampler.cgroups.root().whole_machine {
                continue;
            }
            let at = self.clock.at(alarm.stamp.ktime_ns);
            self.telemetry.send(TelemetryEvent::Event(Box::new(Event::TaskAlarm(told)), at));
        }
    }

    /// Arms the node's own line of tasks where the next threshold is.
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

    /// Tells what tasks did since the last time, if it is time to.
    pub(super) fn publish_pod_activity(&mut self, now_ns: u64) {
        // The machine's line is held against forks less exits, which tasks that are not reaped are not in.
        self.state.rearm_pids = true;
        let (programs, Some(kernel)) = self.notifier.bpf.programs() else { return };
        if let Some(deltas) =
            self.task_totals.take(kernel, programs, now_ns, &self.node_sampler.cgroups, &self.pod_index)
        {
            self.telemetry.send(TelemetryEvent::PodActivity(deltas, self.clock.now()));
        }
    }
}
