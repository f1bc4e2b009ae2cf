//! What each capability is for (docs/reference/capabilities.md). Those that a source or a hand does not have
//! are named in `check`, each with what is done without it.
#![forbid(unsafe_code)]

use rustix::thread::CapabilitySet;

use super::{Fact, fact};

/// A capability and what depends on it.
struct Privilege {
    subject: &'static str,
    name: &'static str,
    capability: CapabilitySet,
    /// Another one that includes it.
    or: Option<CapabilitySet>,
    gives: &'static str,
    without: &'static str,
    help: &'static str,
}

impl Privilege {
    fn check(&self, held: CapabilitySet, is_root: bool) -> Fact {
        let Self { subject, name, capability, or, gives, without, help } = *self;
        let files = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        let found = if held.contains(capability) {
            Ok(gives.to_owned())
        } else if is_root && files.contains(capability) {
            Ok(format!("{gives} (root owns them)"))
        } else if let Some((greater, _)) = or.and_then(|or| held.intersection(or).iter_names().next()) {
            Ok(format!("{gives} (CAP_{greater} holds it)"))
        } else {
            Err((format!("{name} is missing: {without}"), Some(help)))
        };
        fact(subject, name, found)
    }
}

/// All that the agent can make use of. Where a container runtime or systemd grants less, it works
/// with what there is.
const PRIVILEGES: [Privilege; 8] = [
    Privilege {
        subject: "cap-bpf",
        name: "CAP_BPF",
        capability: CapabilitySet::BPF,
        or: Some(CapabilitySet::SYS_ADMIN),
        gives: "programs can be loaded into the kernel",
        without: "no BPF program can be loaded; the timer and the kernel's files carry the decisions",
        help: "add the capability BPF (before 5.8: SYS_ADMIN)",
    },
    Privilege {
        subject: "cap-perfmon",
        name: "CAP_PERFMON",
        capability: CapabilitySet::PERFMON,
        or: Some(CapabilitySet::SYS_ADMIN),
        gives: "programs can be attached and follow the kernel's pointers",
        without: "no BPF program can be attached; the timer and the kernel's files carry the decisions",
        help: "add the capability PERFMON (before 5.8: SYS_ADMIN)",
    },
    Privilege {
        subject: "cap-sys-resource",
        name: "CAP_SYS_RESOURCE",
        capability: CapabilitySet::SYS_RESOURCE,
        or: None,
        gives: "the kernel kills the agent last, and limits can be raised",
        without: "oom_score_adj stays as it is, and before 5.11 maps must fit into the limit of locked memory",
        help: "add the capability SYS_RESOURCE, or set OOMScoreAdjust and LimitMEMLOCK from outside",
    },
    Privilege {
        subject: "cap-sys-nice",
        name: "CAP_SYS_NICE",
        capability: CapabilitySet::SYS_NICE,
        or: None,
        gives: "the control loop can run with SCHED_FIFO",
        without: "the control loop waits for a CPU like any other thread",
        help: "add the capability SYS_NICE",
    },
    Privilege {
        subject: "cap-ipc-lock",
        name: "CAP_IPC_LOCK",
        capability: CapabilitySet::IPC_LOCK,
        or: None,
        gives: "pages of the agent can stay in memory",
        without: "pages of the agent can be dropped while the node reclaims, and are read again from disk",
        help: "add the capability IPC_LOCK",
    },
    Privilege {
        subject: "cap-kill",
        name: "CAP_KILL",
        capability: CapabilitySet::KILL,
        or: None,
        gives: "processes of every user can be signalled",
        without: "`--action kill`, `evictAndKill` and `apiUnreachable: kill` cannot signal processes of other users",
        help: "add the capability KILL, if the agent itself is to end processes",
    },
    Privilege {
        subject: "cap-dac-read-search",
        name: "CAP_DAC_READ_SEARCH",
        capability: CapabilitySet::DAC_READ_SEARCH,
        or: Some(CapabilitySet::DAC_OVERRIDE),
        gives: "files that only root may read can be read",
        without: "configuration and pods must be in files that this user may read",
        help: "add the capability DAC_READ_SEARCH, or let this user read those files",
    },
    Privilege {
        subject: "cap-dac-override",
        name: "CAP_DAC_OVERRIDE",
        capability: CapabilitySet::DAC_OVERRIDE,
        or: None,
        gives: "control files of groups can be written by any user",
        without: "only root may write control files: no usage thresholds of version 1, no pressure triggers, \
                  and a group is neither frozen nor ended by cgroup.kill before it is signalled",
        help: "run as root, or add the capability DAC_OVERRIDE, for those",
    },
];

/// A fact for each capability.
pub(super) fn facts(held: CapabilitySet, is_root: bool) -> impl Iterator<Item = Fact> {
    PRIVILEGES.iter().map(move |privilege| privilege.check(held, is_root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_one_that_is_missing_is_named_and_no_other() {
        let all = CapabilitySet::all();
        assert!(facts(all, false).all(|fact| fact.usable && !fact.required));
        for Privilege { name, capability, or, .. } in &PRIVILEGES {
            let held = all - *capability - or.unwrap_or(CapabilitySet::empty()) - CapabilitySet::SYS_ADMIN;
            let missing: Vec<_> = facts(held, false).filter(|fact| !fact.usable).collect();
            assert!(missing.iter().any(|fact| fact.found.starts_with(&format!("{name} is missing"))));
            // SYS_ADMIN stands for two; what is missing of files is missing altogether.
            let expected = 1 + usize::from(*or == Some(CapabilitySet::DAC_OVERRIDE));
            assert_eq!(missing.len(), expected, "{name}: {missing:?}");
        }
    }

    #[test]
    fn a_greater_one_stands_for_a_lesser_one() {
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
