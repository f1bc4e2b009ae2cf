//! Finds out whether the kernel allows BPF at all.
#![forbid(unsafe_code)]

use std::path::Path;

use rustix::thread::CapabilitySet;

use super::{Fact, fact, read_error};
use crate::capabilities::Lockdown;
use eviction_core::reading::UnknownReason;
use eviction_node::cgroup::hierarchy::Host;
use eviction_node::file::read_once;

const ENOENT: i32 = 2;

/// Returns the kernel's facts. `held` are the capabilities of this process.
pub(super) fn facts(host: &Host, held: CapabilitySet) -> [Fact; 4] {
    let below = |path: &str| host.root.join(path);
    [
        lockdown(Lockdown::read()),
        bpf_syscall(&host.proc, held),
        btf(&below("sys/kernel/btf/vmlinux")),
        tracefs(&below("sys/kernel/tracing/events")),
    ]
}

fn lockdown(lockdown: Lockdown) -> Fact {
    const HELP: &str = "boot without lockdown=confidentiality, if BPF is wanted";
    let found = match lockdown {
        Lockdown::None => Ok("none".to_owned()),
        Lockdown::Integrity => Ok("integrity".to_owned()),
        Lockdown::Confidentiality => Err((
            "confidentiality: BPF may read kernel memory by typed pointers alone; sources that need more \
             are without it"
                .to_owned(),
            Some(HELP),
        )),
        Lockdown::Unknown => Ok("unknown: securityfs is not mounted, or the kernel has none".to_owned()),
    };
    fact("lockdown", "lockdown", found)
}

/// Checks the bpf(2) call. `kernel.unprivileged_bpf_disabled` does not affect a process with CAP_BPF; even 0
/// allows no tracing.
fn bpf_syscall(proc: &Path, held: CapabilitySet) -> Fact {
    let path = proc.join("sys/kernel/unprivileged_bpf_disabled");
    let value = match read_once(&path, 64) {
        Ok(text) => String::from_utf8_lossy(&text).trim().to_owned(),
        Err(UnknownReason::Unreadable(ENOENT)) => {
            let help = Some("use a kernel with CONFIG_BPF_SYSCALL=y");
            return fact("bpf-syscall", "BPF", Err(("the kernel was built without BPF".to_owned(), help)));
        }
        Err(why) => return fact("bpf-syscall", "BPF", Err((read_error(&path, why), None))),
    };
    let is_allowed = held.intersects(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN);
    let found = match (is_allowed, value.as_str()) {
        (true, _) => Ok(format!("this process may use it (unprivileged_bpf_disabled is {value})")),
        (false, "0") => Err((
            "CAP_BPF is missing, and what is allowed without it (unprivileged_bpf_disabled is 0) is no tracing"
                .to_owned(),
            None,
        )),
        (false, _) => {
            Err((format!("CAP_BPF is missing, and unprivileged_bpf_disabled is {value}"), None))
        }
    };
    fact("bpf-syscall", "BPF", found)
}

fn btf(path: &Path) -> Fact {
    let found = match std::fs::metadata(path) {
        Ok(found) => Ok(format!("{}, {} KiB", path.display(), found.len() >> 10)),
        Err(error) => Err((
            format!("{}: {error}: no BPF program can be fitted to this kernel", path.display()),
            Some("use a kernel with CONFIG_DEBUG_INFO_BTF=y, and mount the host's /sys"),
        )),
    };
    fact("btf", "BTF", found)
}

fn tracefs(events: &Path) -> Fact {
    let found = match std::fs::read_dir(events) {
        Ok(_) => Ok(format!("{}", events.display())),
        Err(error) => {
            Err((format!("{}: {error}: nothing that is used here needs it", events.display()), None))
        }
    };
    fact("tracefs", "tracefs", found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lockdown_confidentiality_is_reported_as_unusable() {
        assert!(super::lockdown(Lockdown::Integrity).usable);
        let fact = super::lockdown(Lockdown::Confidentiality);
        assert!(!fact.usable && fact.found.starts_with("confidentiality") && fact.help.is_some());
    }

    #[test]
    fn missing_features_are_reported_with_reasons() {
        let empty = tempfile::tempdir().unwrap();
        let host = Host { proc: empty.path().join("proc"), root: empty.path().to_owned() };
        let [_, bpf, btf, tracefs] = facts(&host, CapabilitySet::empty());
        assert_eq!(bpf.found, "the kernel was built without BPF");
        assert!(!btf.usable && btf.found.contains("sys/kernel/btf/vmlinux") && btf.help.is_some());
        assert!(!tracefs.usable && tracefs.found.contains("No such file"), "{tracefs:?}");
    }

    #[test]
    fn missing_cap_bpf_is_reported_with_the_sysctl_value() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(proc.path().join("sys/kernel")).unwrap();
        let check = |value: &str, held: CapabilitySet| {
            std::fs::write(proc.path().join("sys/kernel/unprivileged_bpf_disabled"), value).unwrap();
            bpf_syscall(proc.path(), held)
        };
        assert!(check("2\n", CapabilitySet::BPF).usable);
        assert!(check("1\n", CapabilitySet::SYS_ADMIN).usable);
        let fact = check("1\n", CapabilitySet::empty());
        assert!(!fact.usable);
        assert_eq!(fact.found, "CAP_BPF is missing, and unprivileged_bpf_disabled is 1");
        assert!(check("0\n", CapabilitySet::empty()).found.contains("no tracing"));
    }
}
