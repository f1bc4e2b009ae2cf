//! Finds out what this machine offers to BPF, without loading anything.

use std::{fs, path::Path};

use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported};
use eviction_common::{ABSENT, Offsets};
use rustix::thread::CapabilitySet;

use super::btf::Btf;
use super::offsets::{self, BtfFacts};

const BTF_FILE: &str = "/sys/kernel/btf/vmlinux";
const LOCKDOWN_FILE: &str = "/sys/kernel/security/lockdown";

/// The facts about a machine that are known before anything is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// The facts from the kernel's BTF, or why there are none.
    pub btf: Result<BtfFacts, String>,
    /// The capabilities of this process.
    pub capabilities: CapabilitySet,
    /// The lockdown mode of the kernel.
    pub lockdown: Lockdown,
    /// Number of the memory controller's hierarchy (0 is cgroup v2), or why there is none.
    pub hierarchy: Result<i32, String>,
}

/// Returns the capabilities that are missing for tracing programs. CAP_SYS_ADMIN includes both.
pub(super) fn missing_capabilities(held: CapabilitySet) -> Option<&'static str> {
    let has = |capability| held.intersects(CapabilitySet::SYS_ADMIN | capability);
    match (has(CapabilitySet::BPF), has(CapabilitySet::PERFMON)) {
        (true, true) => None,
        (false, false) => Some("CAP_BPF and CAP_PERFMON"),
        (false, true) => Some("CAP_BPF"),
        (true, false) => Some("CAP_PERFMON"),
    }
}

/// Returns whether the kernel refuses the helper that reads any address (`bpf_tracing_func_proto` in
/// kernel/trace/bpf_trace.c). Always false in a process that may load no program at all.
fn refuses_probe_read() -> bool {
    let reads = is_helper_supported(ProgramType::RawTracePoint, BpfHelper::BPF_FUNC_probe_read_kernel);
    matches!(reads, Ok(false))
}

/// The lockdown mode of the kernel (kernel_lockdown(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    /// No lockdown.
    None,
    /// The kernel cannot be changed.
    Integrity,
    /// In addition, the kernel's memory cannot be read at any address.
    Confidentiality,
    /// The mode is unknown: securityfs is not mounted, or the kernel has no lockdown. Programs may read.
    Unknown,
}

impl Lockdown {
    /// Returns the offsets that programs may use. In the mode `confidentiality` the kernel refuses the helper
    /// that reads any address; what only follows typed pointers still runs. The charge hooks need the helper
    /// for the counts of OOM events, which are optional, and for the kernel kill, which is not available then.
    /// The fork hook needs it for the cgroups' own limits of tasks.
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

    /// Adds the lockdown to the reason for which a program was refused, where it is the likely cause.
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

    /// Reads the mode.
    pub fn read() -> Self {
        let mode = fs::read_to_string(LOCKDOWN_FILE).map_or(Self::Unknown, |text| Self::parse(&text));
        match mode {
            // For instance in a pod, which has no securityfs.
            Self::Unknown if refuses_probe_read() => Self::Confidentiality,
            mode => mode,
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

/// Returns the effective capabilities of this thread; none if they cannot be read.
pub(super) fn effective_capabilities() -> CapabilitySet {
    rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

/// Collects the facts about this machine.
pub fn facts() -> KernelFacts {
    KernelFacts {
        btf: read_btf(Path::new(BTF_FILE)),
        capabilities: effective_capabilities(),
        lockdown: Lockdown::read(),
        hierarchy: read_hierarchy(),
    }
}

/// Reads a kernel's blob of BTF, and that of the module xfs next to it.
pub fn read_btf(file: &Path) -> Result<BtfFacts, String> {
    let blob = read(file)?;
    let module_file = file.with_file_name("xfs");
    let module_blob = module_file.exists().then(|| read(&module_file));
    let btf = Btf::parse(&blob).map_err(|error| cannot_read(file, error))?;
    let xfs = module_blob.as_ref().map(|blob| {
        let blob = blob.as_ref().map_err(Clone::clone)?;
        btf.parse_module(blob).map_err(|error| cannot_read(&module_file, error))
    });
    let xfs = xfs.transpose().unwrap_or_else(|error| {
        tracing::warn!("no hooks on xfs: {error}");
        None
    });
    Ok(offsets::resolve(&btf, xfs.as_ref()))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| cannot_read(file, error))
}

fn cannot_read(file: &Path, error: impl std::fmt::Display) -> String {
    format!("read {}: {error}", file.display())
}

/// Returns the hierarchy of the memory controller, from the line of this process in /proc/self/cgroup. On
/// cgroup v2 no line names controllers.
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
    fn lockdown_mode_is_the_word_in_brackets() {
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
        let allowed = Lockdown::Confidentiality.readable(offsets);
        assert_eq!((allowed.memcg_oom, allowed.memcg_oom_kill, allowed.memcg_memory), (ABSENT, ABSENT, 24));
        assert_eq!(Lockdown::Unknown.explain("no".into()), "no");
        assert!(Lockdown::Confidentiality.explain("no".into()).contains("lockdown=confidentiality"));
    }

    #[test]
    fn lacking_capabilities_are_named() {
        let (bpf, perfmon) = (CapabilitySet::BPF, CapabilitySet::PERFMON);
        assert_eq!(missing_capabilities(CapabilitySet::empty()), Some("CAP_BPF and CAP_PERFMON"));
        assert_eq!(missing_capabilities(bpf), Some("CAP_PERFMON"));
        assert_eq!(missing_capabilities(perfmon), Some("CAP_BPF"));
        assert_eq!(missing_capabilities(bpf | perfmon), None);
        assert_eq!(missing_capabilities(CapabilitySet::SYS_ADMIN), None);
    }

    #[test]
    fn missing_or_invalid_btf_file_is_an_error_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vmlinux");
        let why = read_btf(&file).unwrap_err();
        assert!(why.starts_with("read ") && why.contains("No such file"), "{why}");
        fs::write(&file, "\u{7f}ELF and so on, quite a long text").unwrap();
        let why = read_btf(&file).unwrap_err();
        assert!(why.contains("no BTF"), "{why}");
    }

    #[test]
    fn btf_of_the_xfs_module_affects_only_xfs() {
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
            let offsets = facts.offsets;
            (offsets.inode_sb, offsets.xfs_inode_vnode, facts.tracepoints.contains_key("xfs_create"))
        };
        assert_eq!(read(), (40, ABSENT, false));
        fs::write(&module_file, module.bytes()).unwrap();
        assert_eq!(read(), (40, 300, true));
        fs::write(&module_file, "no BTF").unwrap();
        assert_eq!(read(), (40, ABSENT, false));
    }
}
