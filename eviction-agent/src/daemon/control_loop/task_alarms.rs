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
                self.state.tasks_told = true;
                continue;
            }
            let told = describe(alarm, &self.eyes.sampler, &self.roster);
            if told.owner.cgroup.is_none() && !self.eyes.sampler.root().whole_machine {
                continue;
            }
            let at = self.clock.at(alarm.stamp.ktime_ns);
            self.notes.send(TelemetryEvent::Event(Box::new(Event::TaskAlarm(told)), at));
        }
    }

    /// Arms the node's own line of tasks where the next threshold is.
    pub(super) fn arm_tasks(&mut self, look: &CompleteSample, left: i64) {
        let Some(tasks) = look.tasks.known() else { return };
        let root = self.eyes.sampler.root();
        let group = match (root.whole_machine, &root.pids) {
            (true, _) => None,
            (false, Some(folder)) => match std::fs::metadata(folder) {
                Ok(folder) => Some(folder.ino()),
                Err(_) => return,
            },
            (false, None) => return,
        };
        let anew = std::mem::take(&mut self.state.tasks_told);
        self.notifier.bpf.set_pid_threshold(group, tasks, self.pid_lines.distance(left), anew);
    }

    /// Tells what tasks did since the last time, if it is time to.
    pub(super) fn tally(&mut self, now_ns: u64) {
        // The machine's line is held against forks less exits, which tasks that are not reaped are not in.
        self.state.tasks_told = true;
        let (programs, Some(kernel)) = self.notifier.bpf.programs() else { return };
        if let Some(deltas) = self.tally.take(kernel, programs, now_ns, &self.eyes.sampler, &self.roster) {
            self.notes.send(TelemetryEvent::PodActivity(deltas, self.clock.now()));
        }
    }
}
