//! What each capability is for (docs/reference/capabilities.md). Those that a source or a hand does not have
//! are named in `check`, each with what is done without it.
#![forbid(unsafe_code)]

use super::{Fact, FactSubject, fact};
use eviction_node::proc::capabilities::Capabilities;

/// A capability and what hangs on it.
#[derive(Clone, Copy, Debug)]
pub struct Privilege {
    subject: FactSubject,
    /// Without `CAP_`.
    name: &'static str,
    /// Another one that holds it all.
    or: Option<&'static str>,
    gives: &'static str,
    without: &'static str,
    help: &'static str,
}

impl Privilege {
    /// Its name, without `CAP_`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    fn look(&self, held: Capabilities, is_root: bool) -> Fact {
        let Self { subject, name, or, gives, without, help } = *self;
        let of_owner = is_root && ["DAC_OVERRIDE", "DAC_READ_SEARCH"].contains(&name);
        let found = if held.has(name) {
            Ok(gives.to_owned())
        } else if of_owner {
            Ok(format!("{gives} (root owns them)"))
        } else if let Some(greater) = or.filter(|greater| held.has(greater)) {
            Ok(format!("{gives} (CAP_{greater} holds it)"))
        } else {
            Err((format!("CAP_{name} is missing: {without}"), Some(help)))
        };
        fact(subject, found)
    }
}

/// All that the agent can make use of. Where a container runtime or systemd grants less, it works
/// with what there is.
pub const PRIVILEGES: [Privilege; 8] = [
    Privilege {
        subject: FactSubject::CapBpf,
        name: "BPF",
        or: Some("SYS_ADMIN"),
        gives: "programs can be loaded into the kernel",
        without: "no BPF program can be loaded; the timer and the kernel's files carry the decisions",
        help: "add the capability BPF (before 5.8: SYS_ADMIN)",
    },
    Privilege {
        subject: FactSubject::CapPerfmon,
        name: "PERFMON",
        or: Some("SYS_ADMIN"),
        gives: "programs can be attached and follow the kernel's pointers",
        without: "no BPF program can be attached; the timer and the kernel's files carry the decisions",
        help: "add the capability PERFMON (before 5.8: SYS_ADMIN)",
    },
    Privilege {
        subject: FactSubject::CapSysResource,
        name: "SYS_RESOURCE",
        or: None,
        gives: "the kernel kills the agent last, and limits can be raised",
        without: "oom_score_adj stays as it is, and before 5.11 maps must fit into the limit of locked memory",
        help: "add the capability SYS_RESOURCE, or set OOMScoreAdjust and LimitMEMLOCK from outside",
    },
    Privilege {
        subject: FactSubject::CapSysNice,
        name: "SYS_NICE",
        or: None,
        gives: "the control loop can run with SCHED_FIFO",
        without: "the control loop waits for a CPU like any other thread",
        help: "add the capability SYS_NICE",
    },
    Privilege {
        subject: FactSubject::CapIpcLock,
        name: "IPC_LOCK",
        or: None,
        gives: "pages of the agent can stay in memory",
        without: "pages of the agent can be dropped while the node reclaims, and are read again from disk",
        help: "add the capability IPC_LOCK",
    },
    Privilege {
        subject: FactSubject::CapKill,
        name: "KILL",
        or: None,
        gives: "processes of every user can be signalled",
        without: "`--action kill`, `evictAndKill` and `apiUnreachable: kill` cannot signal processes of other users",
        help: "add the capability KILL, if the agent itself is to end processes",
    },
    Privilege {
        subject: FactSubject::CapDacReadSearch,
        name: "DAC_READ_SEARCH",
        or: Some("DAC_OVERRIDE"),
        gives: "files that only root may read can be read",
        without: "configuration and pods must be in files that this user may read",
        help: "add the capability DAC_READ_SEARCH, or let this user read those files",
    },
    Privilege {
        subject: FactSubject::CapDacOverride,
        name: "DAC_OVERRIDE",
        or: None,
        gives: "control files of groups can be written by any user",
        without: "only root may write control files: no usage thresholds of version 1, no pressure triggers, \
                  and a group is neither frozen nor ended by cgroup.kill before it is signalled",
        help: "run as root, or add the capability DAC_OVERRIDE, for those",
    },
];

/// A fact for each capability.
pub(super) fn facts(held: Capabilities, is_root: bool) -> impl Iterator<Item = Fact> {
    PRIVILEGES.iter().map(move |privilege| privilege.look(held, is_root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_node::proc::capabilities::parse_effective;

    fn held(mask: u64) -> Capabilities {
        parse_effective(format!("CapEff:\t{mask:016x}\n").as_bytes()).unwrap()
    }

    #[test]
    fn each_one_that_is_missing_is_named_and_no_other() {
        let all = u64::MAX >> (64 - 41);
        assert!(facts(held(all), false).all(|fact| fact.usable && !fact.required));
        // Numbers of include/uapi/linux/capability.h; SYS_ADMIN, which stands for two, is 21.
        let bits = [("BPF", 39), ("PERFMON", 38), ("SYS_RESOURCE", 24), ("SYS_NICE", 23)];
        let more = [("IPC_LOCK", 14), ("KILL", 5), ("DAC_READ_SEARCH", 2), ("DAC_OVERRIDE", 1)];
        for (name, bit) in bits.into_iter().chain(more) {
            let without = all & !(1 << bit) & !(1 << 21) & !(u64::from(name == "DAC_READ_SEARCH") << 1);
            let missing: Vec<_> = facts(held(without), false).filter(|fact| !fact.usable).collect();
            assert!(missing.iter().any(|fact| fact.found.starts_with(&format!("CAP_{name} is missing"))));
            assert_eq!(missing.len(), 1 + usize::from(name == "DAC_READ_SEARCH"), "{name}: {missing:?}");
        }
    }

    #[test]
    fn a_greater_one_stands_for_a_lesser_one() {
        let missing: Vec<_> = facts(held(1 << 21 | 1 << 1), false)
            .filter(|fact| !fact.usable)
            .map(|fact| fact.subject)
            .collect();
        let lesser = [
            FactSubject::CapBpf,
            FactSubject::CapPerfmon,
            FactSubject::CapDacReadSearch,
            FactSubject::CapDacOverride,
        ];
        assert!(!missing.iter().any(|subject| lesser.contains(subject)), "{missing:?}");
        let of_root: Vec<_> =
            facts(held(0), true).filter(|fact| fact.usable).map(|fact| fact.subject).collect();
        assert_eq!(of_root, lesser[2..]);
    }
}
