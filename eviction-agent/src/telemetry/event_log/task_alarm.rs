//! The line of a cgroup that forks too fast or is near its limit of tasks.

use std::fmt;

use serde::Serialize;

use super::cgroup_owner::CgroupOwner;

/// See [`super::Event::TaskAlarm`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaskAlarm {
    pub alarm: &'static str,
    #[serde(flatten)]
    pub owner: CgroupOwner,
    pub pid: u32,
    pub tasks: i64,
    pub tasks_limit: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_scope: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forks_rejected: Option<u64>,
    pub mono_ns: u64,
}

impl fmt::Display for TaskAlarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.owner.fmt(f)?;
        let Self { pid, tasks, tasks_limit, .. } = self;
        match self.limit_scope {
            Some(owner) => {
                write!(f, " (pid {pid}): {tasks} tasks, limit of the {owner} is {tasks_limit}")?;
            }
            None => write!(f, " (pid {pid}): fork storm, {tasks} new tasks within 100 ms")?,
        }
        match self.forks_rejected {
            Some(rejected) if rejected > 0 => write!(f, "; {rejected} forks rejected so far"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PodRef;
    use super::*;

    #[test]
    fn a_line_names_the_process_and_the_number_of_tasks() {
        let storm =
            TaskAlarm { alarm: "fork_storm", pid: 7, tasks: 500, tasks_limit: 500, ..TaskAlarm::default() };
        assert_eq!(storm.to_string(), "an unknown cgroup (pid 7): fork storm, 500 new tasks within 100 ms");
        let limit = TaskAlarm {
            alarm: "pids_limit",
            owner: CgroupOwner {
                container: Some("main".into()),
                pod: Some(PodRef::new("default", "web")),
                ..CgroupOwner::default()
            },
            pid: 7,
            tasks: 90,
            tasks_limit: 100,
            limit_scope: Some("pod"),
            forks_rejected: Some(3),
            ..TaskAlarm::default()
        };
        assert_eq!(
            limit.to_string(),
            "container main of default/web (pid 7): 90 tasks, limit of the pod is 100; 3 forks rejected so far"
        );
    }
}
