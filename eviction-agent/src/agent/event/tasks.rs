//! The line of too many tasks.

use std::fmt;

use serde::Serialize;

use super::place::Place;

/// See [`super::Event::Tasks`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Tasks {
    pub alarm: &'static str,
    #[serde(flatten)]
    pub place: Place,
    pub pid: u32,
    pub tasks: i64,
    pub bound: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_owner: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<u64>,
    pub mono_ns: u64,
}

impl fmt::Display for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)?;
        let Self { pid, tasks, bound, .. } = self;
        match self.limit_owner {
            Some(owner) => {
                write!(f, " (process {pid}) brings the {owner} to {tasks} of {bound} tasks")?;
            }
            None => write!(f, " (process {pid}) forks too fast: {tasks} tasks within 100 ms")?,
        }
        match self.refused {
            Some(refused) if refused > 0 => write!(f, "; {refused} forks were refused so far"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_who_and_how_many() {
        let storm = Tasks { alarm: "fork_storm", pid: 7, tasks: 500, bound: 500, ..Tasks::default() };
        assert_eq!(
            storm.to_string(),
            "an unknown cgroup (process 7) forks too fast: 500 tasks within 100 ms"
        );
        let limit = Tasks {
            alarm: "pids_limit",
            place: Place {
                container: Some("main".into()),
                pod: Some("default/web".into()),
                ..Place::default()
            },
            pid: 7,
            tasks: 90,
            bound: 100,
            limit_owner: Some("pod"),
            refused: Some(3),
            ..Tasks::default()
        };
        assert_eq!(
            limit.to_string(),
            "container main of default/web (process 7) brings the pod to 90 of 100 tasks; 3 forks were refused so far"
        );
    }
}
