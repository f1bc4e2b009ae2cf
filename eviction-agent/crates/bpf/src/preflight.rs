//! Facts for `check`: finds out by trying what this machine offers to the sources.
#![forbid(unsafe_code)]

mod privileges;

use std::path::Path;

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use serde::Serialize;

use crate::capabilities::{Lockdown, effective_capabilities};
use eviction_core::error::chain;
use eviction_core::policy::preferences::PsiKind;
use eviction_core::reading::{Reading, UnknownReason};
use eviction_node::cgroup::files::Version;
use eviction_node::cgroup::hierarchy::{Hierarchies, Hierarchy, Host};
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::file::{read_once, reason_text};
use eviction_node::notify::memcg_v1;
use eviction_node::proc::meminfo::parse_meminfo;
use eviction_node::proc::process::{read_task_capacity, read_task_count};
use eviction_node::psi::parse_pressure;

const ENOENT: i32 = 2;

/// A feature that this machine has or lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// The subject of the fact, in JSON.
    pub subject: &'static str,
    /// The subject of the fact, in tables and messages.
    #[serde(skip)]
    pub name: &'static str,
    /// Whether it can be used.
    pub usable: bool,
    /// Whether the agent cannot work without it.
    pub required: bool,
    /// What was found.
    pub found: String,
    /// What to do to get what is missing.
    pub help: Option<&'static str>,
}

/// Finds out what this machine offers for the node `root`.
///
/// Tries a threshold on usage, which blocks for some milliseconds.
pub fn probe(host: &Host, hierarchies: &Hierarchies, root: Option<&NodeRoot>) -> Vec<Fact> {
    let held = effective_capabilities();
    let is_root = rustix::process::geteuid().is_root();
    let mut facts = vec![
        memory_controller(host, hierarchies.memory.as_ref()),
        pids_controller(hierarchies.pids.as_ref()),
        freezer(hierarchies.freezer.as_ref()),
        cgroup_kill(hierarchies),
        usage_threshold(root),
        pressure(host),
        meminfo(host),
        tasks(host),
        cgroup_namespace(host, hierarchies.memory.as_ref()),
        descriptors(),
    ];
    facts.extend(kernel_facts(host, held));
    facts.push(capabilities(held));
    facts.extend(privileges::facts(held, is_root));
    facts
}

fn fact(
    subject: &'static str,
    name: &'static str,
    found: Result<String, (String, Option<&'static str>)>,
) -> Fact {
    let (usable, found, help) = match found {
        Ok(found) => (true, found, None),
        Err((found, help)) => (false, found, help),
    };
    Fact { subject, name, usable, required: false, found, help }
}

fn read_error(path: &Path, why: UnknownReason) -> String {
    format!("{}: {}", path.display(), reason_text(why))
}

fn memory_controller(host: &Host, memory: Option<&Hierarchy>) -> Fact {
    const HELP: &str = "boot without cgroup_disable=memory (on some systems with cgroup_enable=memory), and mount the cgroup hierarchies";
    let found = match memory {
        Some(hierarchy) => Ok(describe(hierarchy)),
        None => Err((absent_controller(host, "memory"), Some(HELP))),
    };
    Fact { required: true, ..fact("memory-controller", "memory controller", found) }
}

fn describe(hierarchy: &Hierarchy) -> String {
    let version = match hierarchy.version {
        Version::V1 => 1,
        Version::V2 => 2,
    };
    format!("version {version} at {}", hierarchy.mount_point.display())
}

/// Returns why a controller is in no hierarchy, according to `/proc/cgroups`.
fn absent_controller(host: &Host, name: &str) -> String {
    use procfs::{CGroupControllers, FromBufRead as _};
    let controllers = read_once(&host.proc.join("cgroups"), 1 << 16)
        .ok()
        .and_then(|text| CGroupControllers::from_buf_read(&*text).ok())
        .map_or_else(Vec::new, |CGroupControllers(controllers)| controllers);
    match controllers.iter().find(|controller| controller.name == name) {
        Some(controller) if !controller.enabled => "switched off at boot".to_owned(),
        Some(_) => "not mounted, or not passed on to this part of the tree".to_owned(),
        None => "the kernel was built without it, or switched it off".to_owned(),
    }
}

fn pids_controller(pids: Option<&Hierarchy>) -> Fact {
    let missing =
        ("no hierarchy has it: tasks of pods are not counted".to_owned(), Some("mount the pids controller"));
    fact("pids-controller", "pids controller", pids.map(describe).ok_or(missing))
}

fn freezer(freezer: Option<&Hierarchy>) -> Fact {
    let missing = (
        "no hierarchy has it: a group that forks is held by pids.max while it is killed".to_owned(),
        Some("mount the freezer controller, or use cgroup version 2"),
    );
    let found = match freezer {
        None => Err(missing),
        Some(hierarchy) if hierarchy.read_only => {
            Err((format!("{}, mounted read-only", describe(hierarchy)), Some(WRITABLE)))
        }
        Some(hierarchy) => Ok(describe(hierarchy)),
    };
    fact("freezer", "freezer", found)
}

const WRITABLE: &str = "mount the cgroup hierarchy writable";

fn cgroup_kill(hierarchies: &Hierarchies) -> Fact {
    let found = match &hierarchies.memory {
        Some(memory) if memory.version == Version::V2 => match child_with(&memory.mount_point, "cgroup.kill")
        {
            _ if memory.read_only => Err(("the hierarchy is mounted read-only".to_owned(), Some(WRITABLE))),
            Some(path) => Ok(format!("{}", path.display())),
            None if !has_child(&memory.mount_point) => {
                Err(("there is no group below the root yet to look at".to_owned(), None))
            }
            None => Err(("no group has it: kernels before 5.14 do not".to_owned(), None)),
        },
        Some(_) => Err(("pods are in version 1 hierarchies, which have none".to_owned(), None)),
        None => Err(("there is no memory controller".to_owned(), None)),
    };
    fact("cgroup-kill", "cgroup.kill", found)
}

fn has_child(group: &Path) -> bool {
    let children = std::fs::read_dir(group).into_iter().flatten().flatten();
    children.filter_map(|child| child.file_type().ok()).any(|kind| kind.is_dir())
}

/// Finds a control file in a cgroup directly below `group`: the root cgroup lacks many.
fn child_with(group: &Path, name: &str) -> Option<std::path::PathBuf> {
    let children = std::fs::read_dir(group).ok()?;
    children.filter_map(|child| Some(child.ok()?.path().join(name))).find(|path| path.exists())
}

fn usage_threshold(root: Option<&NodeRoot>) -> Fact {
    // Usage never reaches this.
    const UNREACHABLE_USAGE: u64 = 1 << 62;
    let found = match root {
        None => Err(("no node was found to test it on".to_owned(), None)),
        Some(root) if root.version == Version::V2 => {
            Err(("cgroup version 2 has none: pressure and the timer take its place".to_owned(), None))
        }
        Some(root) => match memcg_v1::register_eventfd(&root.memory, &[UNREACHABLE_USAGE]) {
            Ok(_) => Ok(format!("{}", root.memory.join("cgroup.event_control").display())),
            Err(error) => Err((chain(&error), threshold_help(&error.source))),
        },
    };
    fact("usage-threshold", "usage threshold", found)
}

fn threshold_help(error: &std::io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::ROFS => Some(WRITABLE),
        Errno::ACCESS | Errno::PERM => Some("run as root, or add the capability DAC_OVERRIDE"),
        Errno::NOENT => Some("thresholds on usage exist on cgroup version 1 only"),
        Errno::MFILE => Some("raise the limit of open files (RLIMIT_NOFILE)"),
        _ => None,
    }
}

fn pressure(host: &Host) -> Fact {
    const EOPNOTSUPP: i32 = 95;
    let path = host.proc.join("pressure/memory");
    let found = match read_once(&path, 4096).map(|text| parse_pressure(&text, PsiKind::Some).total_us) {
        Ok(Reading::Known(_)) => Ok(format!("{}", path.display())),
        Ok(Reading::Unknown(why)) => Err((read_error(&path, why), None)),
        Err(UnknownReason::Unreadable(ENOENT)) => {
            Err(("the kernel was built without it".to_owned(), Some("use a kernel with CONFIG_PSI=y")))
        }
        Err(UnknownReason::Unreadable(EOPNOTSUPP)) => {
            Err(("switched off at boot".to_owned(), Some("boot with psi=1")))
        }
        Err(why) => Err((read_error(&path, why), None)),
    };
    fact("pressure", "pressure stall information", found)
}

fn meminfo(host: &Host) -> Fact {
    let path = host.proc.join("meminfo");
    let found = match read_once(&path, 1 << 16).map(|text| parse_meminfo(&text)) {
        Ok(meminfo) => match meminfo.capacity.zip(meminfo.memory) {
            Reading::Known((total, _)) => Ok(format!("MemTotal {} KiB", total >> 10)),
            Reading::Unknown(why) => Err(why),
        },
        Err(why) => Err(why),
    };
    let found = found.map_err(|why| (read_error(&path, why), Some("mount the proc file system")));
    Fact { required: true, ..fact("meminfo", "meminfo", found) }
}

fn tasks(host: &Host) -> Fact {
    let found = match (read_task_count(&host.proc), read_task_capacity(&host.proc)) {
        (Reading::Known(count), Reading::Known(capacity)) => Ok(format!("{count} of {capacity}")),
        (Reading::Unknown(why), _) => Err((read_error(&host.proc.join("loadavg"), why), None)),
        (_, Reading::Unknown(why)) => Err((read_error(&host.proc.join("sys/kernel/pid_max"), why), None)),
    };
    fact("tasks", "tasks", found)
}

fn cgroup_namespace(host: &Host, memory: Option<&Hierarchy>) -> Fact {
    // PROC_CGROUP_INIT_INO of include/linux/proc_ns.h, part of the kernel's interface.
    const INITIAL: &str = "cgroup:[4026531835]";
    let namespace = std::fs::read_link(host.proc.join("self/ns/cgroup")).unwrap_or_default();
    let namespace_kind = if namespace == Path::new(INITIAL) { "the machine's own" } else { "a private one" };
    let found = match memory {
        Some(hierarchy) if !hierarchy.whole => Err((
            format!("{namespace_kind}; {} shows only a part of the tree", hierarchy.mount_point.display()),
            Some(
                "mount the host's /sys/fs/cgroup into the container (hostPath), or run in the host's cgroup namespace",
            ),
        )),
        Some(_) => Ok(format!("{namespace_kind}; the whole tree is seen")),
        None => Ok(namespace_kind.to_owned()),
    };
    fact("cgroup-namespace", "cgroup namespace", found)
}

fn descriptors() -> Fact {
    // Two for each of three containers in 110 pods, and for the pods, with some to spare.
    const MIN_DESCRIPTORS: u64 = 2048;
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let found = match (limits.current, limits.maximum) {
        (Some(soft), _) if soft < MIN_DESCRIPTORS => Err((
            format!("{soft}: with many pods files are opened for each read, which is slower"),
            Some("raise the limit of open files (LimitNOFILE, ulimit -n)"),
        )),
        (Some(soft), _) => Ok(soft.to_string()),
        (None, _) => Ok("unlimited".to_owned()),
    };
    fact("descriptors", "open files", found)
}

/// Returns the kernel's facts. `held` are the capabilities of this process.
fn kernel_facts(host: &Host, held: CapabilitySet) -> [Fact; 4] {
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

fn capabilities(held: CapabilitySet) -> Fact {
    let names: Vec<_> = held.iter_names().map(|(name, _)| name).collect();
    fact("capabilities", "capabilities", Ok(names.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_usage_threshold_has_help_for_its_cause() {
        let help = |errno: i32| threshold_help(&std::io::Error::from_raw_os_error(errno));
        assert!(help(30).unwrap().contains("writable"));
        assert!(help(13).unwrap().contains("DAC_OVERRIDE"));
        assert!(help(2).unwrap().contains("version 1"));
        assert_eq!(help(5), None);
    }

    #[test]
    fn only_lockdown_confidentiality_is_reported_as_unusable() {
        assert!(lockdown(Lockdown::Integrity).usable);
        let fact = lockdown(Lockdown::Confidentiality);
        assert!(!fact.usable && fact.found.starts_with("confidentiality") && fact.help.is_some());
    }

    #[test]
    fn missing_features_are_reported_with_reasons() {
        let empty = tempfile::tempdir().unwrap();
        let host = Host { proc: empty.path().join("proc"), root: empty.path().to_owned() };
        let [_, bpf, btf, tracefs] = kernel_facts(&host, CapabilitySet::empty());
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
