//! Event lines about cgroups that are near their memory limit, fork too fast, or are near their limit of
//! tasks.

use std::fmt;

use serde::Serialize;

use super::PodRef;
use eviction_core::pod::write_owner;
use eviction_core::units::display_bytes;

/// A cgroup with its container and pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CgroupOwner {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<str>>,
    #[serde(flatten)]
    pub pod: Option<PodRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<Box<str>>,
}

impl fmt::Display for CgroupOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cgroup, container, pod, pod_uid: _ } = self;
        write_owner(f, container.as_deref(), pod.as_ref(), cgroup.as_deref())
    }
}

/// See [`super::Event::MemoryLimit`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryLimit {
    pub state: &'static str,
    pub limit_scope: &'static str,
    #[serde(flatten)]
    pub owner: CgroupOwner,
    pub usage: u64,
    pub working_set: u64,
    pub limit: u64,
    pub detected_by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_mono_ns: Option<u64>,
    pub mono_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub near_limit_us: Option<u64>,
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.owner.pod, self.limit_scope) {
            (None, "kubepods") => f.write_str("all pods (kubepods)")?,
            _ => self.owner.fmt(f)?,
        }
        let what = if self.state == "near" { "near" } else { "no longer near" };
        write!(f, ": {what} the memory limit, working set {}", display_bytes(self.working_set.into()))?;
        write!(f, " of {}, usage {}", display_bytes(self.limit.into()), display_bytes(self.usage.into()))?;
        if let Some(near_limit) = self.near_limit_us {
            write!(f, ", after {}.{:03} s", near_limit / 1_000_000, near_limit / 1000 % 1000)?;
        }
        write!(f, " (detected by {})", self.detected_by)
    }
}

/// See [`super::Event::TaskAlarm`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaskAlarmEvent {
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

impl fmt::Display for TaskAlarmEvent {
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
    use super::*;

    #[test]
    fn owner_is_displayed_as_container_pod_or_cgroup() {
        let known = |text: &str| Some(text.into());
        let mut owner =
            CgroupOwner { cgroup: known("/kubepods"), container: known("app"), ..CgroupOwner::default() };
        assert_eq!(owner.to_string(), "/kubepods", "a container without a pod is not named");
        owner.pod = Some(PodRef::new("shop", "web"));
        assert_eq!(owner.to_string(), "container app of shop/web");
        owner.container = None;
        assert_eq!(owner.to_string(), "shop/web");
        assert_eq!(CgroupOwner::default().to_string(), "an unknown cgroup");
    }

    #[test]
    fn memory_limit_line_shows_the_owner_and_the_usage() {
        let near = MemoryLimit {
            state: "near",
            limit_scope: "container",
            owner: CgroupOwner {
                cgroup: Some("/kubepods/burstable/pod1/abc".into()),
                container: Some("main".into()),
                pod: Some(PodRef::new("shop", "web")),
                pod_uid: None,
            },
            usage: 970 << 20,
            working_set: 930 << 20,
            limit: 1 << 30,
            detected_by: "fexit page_counter_try_charge",
            ..MemoryLimit::default()
        };
        assert_eq!(
            near.to_string(),
            "container main of shop/web: near the memory limit, working set 930Mi of 1Gi, usage 970Mi (detected by fexit page_counter_try_charge)"
        );
        let away = MemoryLimit {
            state: "away",
            limit_scope: "kubepods",
            owner: CgroupOwner { container: None, pod: None, ..near.owner.clone() },
            near_limit_us: Some(12_034_500),
            detected_by: "sample",
            ..near.clone()
        };
        assert_eq!(
            away.to_string(),
            "all pods (kubepods): no longer near the memory limit, working set 930Mi of 1Gi, usage 970Mi, after 12.034 s (detected by sample)"
        );
        let class = MemoryLimit { limit_scope: "qos", owner: away.owner, ..near };
        assert!(class.to_string().starts_with("/kubepods/burstable/pod1/abc: near"), "{class}");
    }

    #[test]
    fn task_alarm_line_names_the_process_and_the_number_of_tasks() {
        let storm = TaskAlarmEvent {
            alarm: "fork_storm",
            pid: 7,
            tasks: 500,
            tasks_limit: 500,
            ..TaskAlarmEvent::default()
        };
        assert_eq!(storm.to_string(), "an unknown cgroup (pid 7): fork storm, 500 new tasks within 100 ms");
        let limit = TaskAlarmEvent {
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
            ..TaskAlarmEvent::default()
        };
        assert_eq!(
            limit.to_string(),
            "container main of default/web (pid 7): 90 tasks, limit of the pod is 100; 3 forks rejected so far"
        );
    }
}
