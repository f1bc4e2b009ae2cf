//! What each capability is for (docs/reference/capabilities.md). `check` names the missing ones, each with what
//! happens without it.
#![forbid(unsafe_code)]

use rustix::thread::CapabilitySet;

use super::{Fact, fact};

/// A capability and what depends on it.
struct Privilege {
    subject: &'static str,
    name: &'static str,
    capability: CapabilitySet,
    /// Another capability that includes it.
    included_in: Option<CapabilitySet>,
    effect: &'static str,
    effect_if_missing: &'static str,
    help: &'static str,
}

impl Privilege {
    fn check(&self, held: CapabilitySet, is_root: bool) -> Fact {
        let Self { subject, name, capability, included_in, effect, effect_if_missing, help } = *self;
        let files = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        let found = if held.contains(capability) {
            Ok(effect.to_owned())
        } else if is_root && files.contains(capability) {
            Ok(format!("{effect} (root owns them)"))
        } else if let Some((greater, _)) =
            included_in.and_then(|included_in| held.intersection(included_in).iter_names().next())
        {
            Ok(format!("{effect} (CAP_{greater} holds it)"))
        } else {
            Err((format!("{name} is missing: {effect_if_missing}"), Some(help)))
        };
        fact(subject, name, found)
    }
}

/// All capabilities that the agent can use. Where a container runtime or systemd grants fewer, it works with
/// those.
const PRIVILEGES: [Privilege; 8] = [
    Privilege {
        subject: "cap-bpf",
        name: "CAP_BPF",
        capability: CapabilitySet::BPF,
        included_in: Some(CapabilitySet::SYS_ADMIN),
        effect: "programs can be loaded into the kernel",
        effect_if_missing: "no BPF program can be loaded; the timer and the kernel's files carry the decisions",
        help: "add the capability BPF (before 5.8: SYS_ADMIN)",
    },
    Privilege {
        subject: "cap-perfmon",
        name: "CAP_PERFMON",
        capability: CapabilitySet::PERFMON,
        included_in: Some(CapabilitySet::SYS_ADMIN),
        effect: "programs can be attached and follow the kernel's pointers",
        effect_if_missing: "no BPF program can be attached; the timer and the kernel's files carry the decisions",
        help: "add the capability PERFMON (before 5.8: SYS_ADMIN)",
    },
    Privilege {
        subject: "cap-sys-resource",
        name: "CAP_SYS_RESOURCE",
        capability: CapabilitySet::SYS_RESOURCE,
        included_in: None,
        effect: "the kernel kills the agent last, and limits can be raised",
        effect_if_missing: "oom_score_adj stays as it is, and before 5.11 maps must fit into the limit of locked memory",
        help: "add the capability SYS_RESOURCE, or set OOMScoreAdjust and LimitMEMLOCK from outside",
    },
    Privilege {
        subject: "cap-sys-nice",
        name: "CAP_SYS_NICE",
        capability: CapabilitySet::SYS_NICE,
        included_in: None,
        effect: "the control loop can run with SCHED_FIFO",
        effect_if_missing: "the control loop waits for a CPU like any other thread",
        help: "add the capability SYS_NICE",
    },
    Privilege {
        subject: "cap-ipc-lock",
        name: "CAP_IPC_LOCK",
        capability: CapabilitySet::IPC_LOCK,
        included_in: None,
        effect: "pages of the agent can stay in memory",
        effect_if_missing: "pages of the agent can be dropped while the node reclaims, and are read again from disk",
        help: "add the capability IPC_LOCK",
    },
    Privilege {
        subject: "cap-kill",
        name: "CAP_KILL",
        capability: CapabilitySet::KILL,
        included_in: None,
        effect: "processes of every user can be signalled",
        effect_if_missing: "`--action kill`, `eviction.hardMode: EvictAndKill` and `eviction.whenAPIServerDown: Kill` \
                  cannot signal processes of other users",
        help: "add the capability KILL, if the agent itself is to end processes",
    },
    Privilege {
        subject: "cap-dac-read-search",
        name: "CAP_DAC_READ_SEARCH",
        capability: CapabilitySet::DAC_READ_SEARCH,
        included_in: Some(CapabilitySet::DAC_OVERRIDE),
        effect: "files that only root may read can be read",
        effect_if_missing: "configuration and pods must be in files that this user may read",
        help: "add the capability DAC_READ_SEARCH, or let this user read those files",
    },
    Privilege {
        subject: "cap-dac-override",
        name: "CAP_DAC_OVERRIDE",
        capability: CapabilitySet::DAC_OVERRIDE,
        included_in: None,
        effect: "control files of groups can be written by any user",
        effect_if_missing: "only root may write control files: no usage thresholds of version 1, no pressure triggers, \
                  and a group is neither frozen nor ended by cgroup.kill before it is signalled",
        help: "run as root, or add the capability DAC_OVERRIDE, for those",
    },
];

/// Returns a fact for each capability.
pub(super) fn facts(held: CapabilitySet, is_root: bool) -> impl Iterator<Item = Fact> {
    PRIVILEGES.iter().map(move |privilege| privilege.check(held, is_root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_capabilities_are_reported_as_missing() {
        let all = CapabilitySet::all();
        assert!(facts(all, false).all(|fact| fact.usable && !fact.required));
        for Privilege { name, capability, included_in, .. } in &PRIVILEGES {
            let held =
                all - *capability - included_in.unwrap_or(CapabilitySet::empty()) - CapabilitySet::SYS_ADMIN;
            let missing: Vec<_> = facts(held, false).filter(|fact| !fact.usable).collect();
            assert!(missing.iter().any(|fact| fact.found.starts_with(&format!("{name} is missing"))));
            // CAP_SYS_ADMIN stands for two capabilities. Without CAP_DAC_OVERRIDE both capabilities for files
            // are missing.
            let expected = 1 + usize::from(*included_in == Some(CapabilitySet::DAC_OVERRIDE));
            assert_eq!(missing.len(), expected, "{name}: {missing:?}");
        }
    }

    #[test]
    fn a_missing_cap_kill_is_reported_with_the_settings_that_need_it() {
        let fact = facts(CapabilitySet::empty(), false).find(|fact| fact.subject == "cap-kill").unwrap();
        for setting in
            ["`--action kill`", "`eviction.hardMode: EvictAndKill`", "`eviction.whenAPIServerDown: Kill`"]
        {
            assert!(fact.found.contains(setting), "{}", fact.found);
        }
    }

    #[test]
    fn greater_capability_includes_the_lesser_one() {
        let held = CapabilitySet::SYS_ADMIN | CapabilitySet::DAC_OVERRIDE;
        let subjects = |held, is_root, usable| {
            let facts = facts(held, is_root).filter(move |fact| fact.usable == usable);
            facts.map(|fact| fact.subject).collect::<Vec<_>>()
        };
        assert_eq!(
            subjects(held, false, true),
            ["cap-bpf", "cap-perfmon", "cap-dac-read-search", "cap-dac-override"]
        );
        assert_eq!(subjects(CapabilitySet::empty(), true, true), ["cap-dac-read-search", "cap-dac-override"]);
    }
}
