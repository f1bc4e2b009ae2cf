//! The line of a memory limit that comes near, or is so no more.

use std::fmt;

use serde::Serialize;

use super::super::text::bytes;
use super::place::Place;

/// See [`super::Event::Limit`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Limit {
    pub state: &'static str,
    pub limit_owner: &'static str,
    #[serde(flatten)]
    pub place: Place,
    pub usage: u64,
    pub working_set: u64,
    pub limit: u64,
    pub seen_by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_mono_ns: Option<u64>,
    pub mono_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub near_for_us: Option<u64>,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.place.pod, self.limit_owner) {
            (None, "kubepods") => f.write_str("all pods together")?,
            _ => self.place.fmt(f)?,
        }
        let what = if self.state == "near" { "near" } else { "no longer near" };
        write!(f, ": {what} the memory limit, working set {}", bytes(self.working_set))?;
        write!(f, " of {}, usage {}", bytes(self.limit), bytes(self.usage))?;
        if let Some(near_for) = self.near_for_us {
            write!(f, ", after {}.{:03} s", near_for / 1_000_000, near_for / 1000 % 1000)?;
        }
        write!(f, " (seen by {})", self.seen_by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whose_limit_and_how_near() {
        let near = Limit {
            state: "near",
            limit_owner: "container",
            place: Place {
                cgroup: Some("/kubepods/burstable/pod1/abc".into()),
                container: Some("main".into()),
                pod: Some("shop/web".into()),
                uid: None,
            },
            usage: 970 << 20,
            working_set: 930 << 20,
            limit: 1 << 30,
            seen_by: "fexit page_counter_try_charge",
            ..Limit::default()
        };
        assert_eq!(
            near.to_string(),
            "container main of shop/web: near the memory limit, working set 930 MiB of 1 GiB, usage 970 MiB (seen by fexit page_counter_try_charge)"
        );
        let away = Limit {
            state: "away",
            limit_owner: "kubepods",
            place: Place { container: None, pod: None, ..near.place.clone() },
            near_for_us: Some(12_034_500),
            seen_by: "sample",
            ..near.clone()
        };
        assert_eq!(
            away.to_string(),
            "all pods together: no longer near the memory limit, working set 930 MiB of 1 GiB, usage 970 MiB, after 12.034 s (seen by sample)"
        );
        let class = Limit { limit_owner: "qos", place: away.place, ..near };
        assert!(class.to_string().starts_with("/kubepods/burstable/pod1/abc: near"), "{class}");
    }
}
