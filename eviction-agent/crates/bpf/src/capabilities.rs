//! What this machine offers to BPF, without loading anything.

use std::{collections::BTreeMap, fs, path::Path};

use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported};
use eviction_common::{ABSENT, Offsets};
use rustix::thread::CapabilitySet;

use super::{
    attach_methods::{ATTACH_METHODS, HookPoint},
    btf::{Argument, Btf, BtfQuery},
    offsets::{self, ResolvedOffsets},
};

const BTF_FILE: &str = "/sys/kernel/btf/vmlinux";
const LOCKDOWN_FILE: &str = "/sys/kernel/security/lockdown";

/// What is known of a machine before anything is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// What the kernel says of its types, or why it says nothing.
    pub btf: Result<BtfFacts, String>,
    /// What this process may do.
    pub capabilities: CapabilitySet,
    /// How far the kernel is locked down.
    pub lockdown: Lockdown,
    /// Number of the memory controller's hierarchy (0 is cgroup v2), or why there is none.
    pub hierarchy: Result<i32, String>,
}

/// What the kernel's BTF says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BtfFacts {
    /// Where members are.
    pub resolved: ResolvedOffsets,
    /// The arguments of those tracepoints that a method wants and the kernel has.
    pub tracepoints: BTreeMap<&'static str, Vec<Argument>>,
    /// The same of functions.
    pub functions: BTreeMap<&'static str, Vec<Argument>>,
}

/// Those capabilities that are lacking for tracing programs. CAP_SYS_ADMIN stands for both.
pub(super) fn lacking(held: CapabilitySet) -> Option<&'static str> {
    let has = |capability| held.intersects(CapabilitySet::SYS_ADMIN | capability);
    match (has(CapabilitySet::BPF), has(CapabilitySet::PERFMON)) {
        (true, true) => None,
        (false, false) => Some("CAP_BPF and CAP_PERFMON"),
        (false, true) => Some("CAP_BPF"),
        (true, false) => Some("CAP_PERFMON"),
    }
}

/// Whether the kernel withholds the helper that reads any address (`bpf_tracing_func_proto` in kernel/trace/bpf_trace.c).
/// Who may load no program at all is not told.
fn withholds_reading() -> bool {
    let reads = is_helper_supported(ProgramType::RawTracePoint, BpfHelper::BPF_FUNC_probe_read_kernel);
    matches!(reads, Ok(false))
}

/// How far the kernel is locked down (kernel_lockdown(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    /// Not at all.
    None,
    /// The kernel cannot be changed.
    Integrity,
    /// Nor can its memory be read at any address.
    Confidentiality,
    /// It does not say: securityfs is not mounted, or the kernel has no lockdown. Programs may read.
    Unknown,
}

impl Lockdown {
    /// The offsets that programs may use. In confidentiality the helper that reads any address is
    /// withheld; what follows typed pointers alone still runs. The charge hooks need the helper for
    /// the counts of out-of-memory events, which they can do without, and for the kernel_kill, which there is
    /// none of then; the fork hook for the groups' own limits of tasks.
    pub(super) fn readable(self, offsets: Offsets) -> Offsets {
        match self {
            Self::Confidentiality => Offsets {
                memcg_oom: ABSENT,
                memcg_oom_kill: ABSENT,
                task_mm: ABSENT,
                mm_anon: ABSENT,
                cset_pids: ABSENT,
                ..offsets
            },
            Self::None | Self::Integrity | Self::Unknown => offsets,
        }
    }

    /// Why a program was refused, with the lockdown where that is the likely cause.
    pub(super) fn explain(self, why: String) -> String {
        match self {
            Self::Confidentiality => {
                format!(
                    "{why} (lockdown=confidentiality: BPF may read kernel memory by typed pointers alone)"
                )
            }
            Self::None | Self::Integrity | Self::Unknown => why,
        }
    }

    /// As it stands in the kernel's file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Integrity => "integrity",
            Self::Confidentiality => "confidentiality",
            Self::Unknown => "unknown",
        }
    }

    /// As the kernel says it.
    pub fn read() -> Self {
        let said = fs::read_to_string(LOCKDOWN_FILE).map_or(Self::Unknown, |text| Self::parse(&text));
        match said {
            // As in a pod, which is given no securityfs.
            Self::Unknown if withholds_reading() => Self::Confidentiality,
            said => said,
        }
    }

    fn parse(text: &str) -> Self {
        let chosen =
            text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(chosen, _)| chosen);
        match chosen {
            Some("none") => Self::None,
            Some("integrity") => Self::Integrity,
            Some("confidentiality") => Self::Confidentiality,
            _ => Self::Unknown,
        }
    }
}

/// The effective capabilities of this thread; none if they cannot be read.
pub(super) fn effective_capabilities() -> CapabilitySet {
    rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

/// Looks at this machine.
pub fn facts() -> KernelFacts {
    KernelFacts {
        btf: read_btf(Path::new(BTF_FILE)),
        capabilities: effective_capabilities(),
        lockdown: Lockdown::read(),
        hierarchy: read_hierarchy(),
    }
}

/// Looks at a kernel's blob of BTF, and at that of the module xfs beside it.
pub fn read_btf(file: &Path) -> Result<BtfFacts, String> {
    let blob = read(file)?;
    let module_file = file.with_file_name("xfs");
    let module_blob = module_file.exists().then(|| read(&module_file));
    let places = || ATTACH_METHODS.iter().flat_map(|method| method.hooks).map(|hook| hook.at);
    let functions: Vec<_> = places().filter_map(HookPoint::function).collect();
    let wanted = BtfQuery { functions: &functions, ..offsets::WANTED };
    let btf = Btf::parse(&blob, &wanted).map_err(|error| cannot_read(file, error))?;
    let xfs = module_blob.as_ref().map(|blob| {
        let blob = blob.as_ref().map_err(Clone::clone)?;
        btf.parse_module(blob, &wanted).map_err(|error| cannot_read(&module_file, error))
    });
    let xfs = xfs.transpose().unwrap_or_else(|error| {
        tracing::warn!("no hooks on xfs: {error}");
        None
    });
    let find = |name| btf.tracepoint(name).or_else(|| xfs.as_ref()?.tracepoint(name));
    let tracepoints = places().filter_map(HookPoint::tracepoint);
    Ok(BtfFacts {
        resolved: offsets::resolve(&btf, xfs.as_ref()),
        tracepoints: tracepoints.filter_map(|name| Some((name, find(name)?))).collect(),
        functions: functions.iter().filter_map(|name| Some((*name, btf.function(name)?))).collect(),
    })
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| cannot_read(file, error))
}

fn cannot_read(file: &Path, error: impl std::fmt::Display) -> String {
    format!("read {}: {error}", file.display())
}

/// The hierarchy that this process' own line of /proc/self/cgroup names for the memory
/// controller; on cgroup v2 no line names controllers.
fn read_hierarchy() -> Result<i32, String> {
    let fail = |error: procfs::ProcError| format!("read /proc/self/cgroup: {error}");
    let groups = procfs::process::Process::myself().and_then(|myself| myself.cgroups()).map_err(fail)?;
    let of_memory = |group: &&procfs::ProcessCGroup| group.controllers.iter().any(|name| name == "memory");
    match groups.0.iter().find(of_memory) {
        Some(group) => i32::try_from(group.hierarchy).map_err(|error| error.to_string()),
        None if groups.0.iter().any(|group| group.hierarchy == 0) => Ok(0),
        None => Err("no hierarchy has the memory controller".into()),
    }
}

#[cfg(test)]
mod tests {
    use eviction_common::ProgramConfig;

    use super::*;
    use crate::btf::tests::Blob;

    #[test]
    fn lockdown_is_what_stands_in_brackets() {
        assert_eq!(Lockdown::parse("[none] integrity confidentiality\n"), Lockdown::None);
        assert_eq!(Lockdown::parse("none [integrity] confidentiality\n"), Lockdown::Integrity);
        assert_eq!(Lockdown::parse("none integrity [confidentiality]"), Lockdown::Confidentiality);
        for odd in ["", "none", "[", "]none[", "[new]"] {
            assert_eq!(Lockdown::parse(odd), Lockdown::Unknown, "{odd:?}");
        }
    }

    #[test]
    fn only_confidentiality_withholds_offsets_and_explains_a_refusal() {
        let offsets =
            Offsets { memcg_oom: 8, memcg_oom_kill: 16, memcg_memory: 24, ..ProgramConfig::NONE.offsets };
        assert_eq!(Lockdown::Integrity.readable(offsets), offsets);
        let kept = Lockdown::Confidentiality.readable(offsets);
        assert_eq!((kept.memcg_oom, kept.memcg_oom_kill, kept.memcg_memory), (ABSENT, ABSENT, 24));
        assert_eq!(Lockdown::Unknown.explain("no".into()), "no");
        assert!(Lockdown::Confidentiality.explain("no".into()).contains("lockdown=confidentiality"));
    }

    #[test]
    fn lacking_capabilities_are_named() {
        let (bpf, perfmon) = (CapabilitySet::BPF, CapabilitySet::PERFMON);
        assert_eq!(lacking(CapabilitySet::empty()), Some("CAP_BPF and CAP_PERFMON"));
        assert_eq!(lacking(bpf), Some("CAP_PERFMON"));
        assert_eq!(lacking(perfmon), Some("CAP_BPF"));
        assert_eq!(lacking(bpf | perfmon), None);
        assert_eq!(lacking(CapabilitySet::SYS_ADMIN), None);
    }

    #[test]
    fn a_file_that_is_no_btf_is_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vmlinux");
        let why = read_btf(&file).unwrap_err();
        assert!(why.starts_with("read ") && why.contains("No such file"), "{why}");
        fs::write(&file, "\u{7f}ELF and so on, quite a long text").unwrap();
        let why = read_btf(&file).unwrap_err();
        assert!(why.contains("no BTF"), "{why}");
    }

    #[test]
    fn what_xfs_has_is_read_from_its_module_and_one_that_is_no_btf_costs_xfs_alone() {
        let mut kernel = Blob::new();
        let int = kernel.int("int", 4);
        let inode = kernel.structure("inode", 100, &[("i_sb", int, 40)]);
        let mut module = kernel.module();
        let file = module.structure("xfs_inode", 500, &[("i_vnode", inode, 300)]);
        let file = module.pointer(file);
        module.tracepoint("xfs_create", &[file]);
        let folder = tempfile::tempdir().unwrap();
        let [file, module_file] = ["vmlinux", "xfs"].map(|name| folder.path().join(name));
        fs::write(&file, kernel.bytes()).unwrap();
        let read = || {
            let facts = read_btf(&file).unwrap();
            let offsets = facts.resolved.offsets;
            (offsets.inode_sb, offsets.xfs_inode_vnode, facts.tracepoints.contains_key("xfs_create"))
        };
        assert_eq!(read(), (40, ABSENT, false));
        fs::write(&module_file, module.bytes()).unwrap();
        assert_eq!(read(), (40, 300, true));
        fs::write(&module_file, "no BTF").unwrap();
        assert_eq!(read(), (40, ABSENT, false));
    }
}
