//! The line of a cgroup that is near its memory limit, or no longer.

use std::fmt;

use serde::Serialize;

use super::cgroup_owner::CgroupOwner;
use eviction_core::units::display_bytes;

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

#[cfg(test)]
mod tests {
    use super::super::PodRef;
    use super::*;

    #[test]
    fn a_line_says_whose_limit_and_how_near() {
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
}
