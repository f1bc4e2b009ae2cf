//! Loads and attaches the planned methods, best first.

use std::fs;

use aya::{Btf, Ebpf, EbpfError, EbpfLoader};
use aya_log::EbpfLogger;
use eviction_common::{ABI_VERSION, ABSENT, DISKS, ProgramConfig};
use rustix::mm::{Advice, madvise};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

use eviction_node::backend::BackendSelection;
use eviction_node::file::parse_keys;

use super::{
    attach::{attach_best, error_summary},
    capabilities::{self, KernelFacts},
    handle::{BpfHandle, take_map, task_counters},
    on_demand::OnDemandProbe,
    plan::{self, BackendInfo},
    ring::Ring,
    sys::MapEntry,
};

/// Options of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Size of the ring buffer in bytes; made a power of two of pages.
    pub ring_bytes: u32,
    /// The number of cgroups that each map has room for; each costs about 300 bytes of kernel memory. `None`:
    /// twice as many as there are.
    pub cgroups: Option<u32>,
    /// The number of cgroups on which a threshold can be set; each costs about 600 bytes of kernel memory.
    /// `None`: depends on how many cgroups there are.
    pub levels: Option<u32>,
    /// The methods that are requested or disabled.
    pub choice: BackendSelection,
    /// How many tasks a cgroup may create per second before it is reported; 0 for any number.
    pub fork_storm: u32,
    /// Whether the programs send their own diagnostics ([`Loaded::log`]). Without it the verifier removes the
    /// calls.
    pub debug_log: bool,
    /// Whether a kill order may be armed ([`BpfHandle::arm_kill`]). Without it the verifier ensures that no
    /// program can send a signal.
    pub kernel_kill: bool,
    /// The types of the file systems on which thresholds may be set ([`BpfHandle::set_disk_threshold`]), such
    /// as `ext4`. Programs for other types are not loaded.
    pub disks: Vec<String>,
}

/// A build on a machine with many cores creates some thousand processes per second. A cgroup that creates more
/// is out of control.
const FORK_STORM: u32 = 5_000;

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            ring_bytes: RING_BYTES,
            cgroups: None,
            levels: None,
            choice: BackendSelection::default(),
            fork_storm: FORK_STORM,
            debug_log: false,
            kernel_kill: false,
            disks: Vec::new(),
        }
    }
}

/// Size of the ring in bytes: room for 8,000 cgroups that are created or removed before the ring is read. What
/// does not fit is counted, and searched for. A ring is mapped twice, and counts as the agent's memory twice.
pub const RING_BYTES: u32 = 256 << 10;

/// The bounds of the number of entries in maps by cgroup. Half of the entries are left for new cgroups.
const MIN_CGROUPS: u32 = 4096;
const MAX_CGROUPS: u32 = 1 << 17;

const MIN_THRESHOLDS: u32 = 1024;
const MAX_THRESHOLDS: u32 = 8192;

/// Returns how many cgroups the maps have room for.
fn map_entries(cgroups: u32) -> u32 {
    cgroups.saturating_mul(2).clamp(MIN_CGROUPS, MAX_CGROUPS)
}

/// Returns on how many cgroups a threshold can be set. Not all have a limit. The agent often starts before the
/// pods, of which there are 110 by default, each with two or three cgroups that may have a limit.
fn max_thresholds(cgroups: u32) -> u32 {
    cgroups.clamp(MIN_THRESHOLDS, MAX_THRESHOLDS)
}

/// Reads how many memory cgroups there are from /proc/cgroups, else from the root of cgroup v2: kernels without
/// the memory controller of v1 (6.12 on, CONFIG_MEMCG_V1) do not list it. Returns 0 if neither has the number.
fn read_cgroups() -> u32 {
    let controllers = procfs::cgroups().map_or_else(|_| Vec::new(), |controllers| controllers.0);
    let memory = controllers.iter().find(|controller| controller.name == "memory");
    let in_stat = || parse_cgroup_stat(&fs::read("/sys/fs/cgroup/cgroup.stat").ok()?);
    memory.map(|memory| memory.num_cgroups).or_else(in_stat).unwrap_or(0)
}

/// Returns the sum of `nr_descendants`, `nr_dying_descendants`, and 1 for the root.
fn parse_cgroup_stat(text: &[u8]) -> Option<u32> {
    let [living, dying] = parse_keys(text, [b"nr_descendants", b"nr_dying_descendants"], None);
    u32::try_from(living.ok()?.saturating_add(dying.ok()?).saturating_add(1)).ok()
}

/// The result of a load.
pub struct Loaded {
    /// The handle; dropping it detaches everything.
    pub kernel: BpfHandle,
    /// The reader of the records.
    pub ring: Ring,
    /// Classes without an attached program, with the reasons (`backend` is empty).
    pub missing: Vec<BackendInfo>,
    /// The reader of the programs' own diagnostics, unless they are off.
    pub log: Option<ProgramLogReader>,
}

impl Loaded {
    /// Returns the backend of each class, with the reason where there is none.
    pub fn sources(&self) -> Vec<BackendInfo> {
        self.kernel.sources().iter().chain(&self.missing).cloned().collect()
    }
}

/// The reader of the programs' own diagnostics. Its `flush` writes what is pending to the `log` facade.
pub type ProgramLogReader = EbpfLogger<&'static dyn log::Log>;

/// No program could be loaded; the agent runs on its fallbacks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no BPF program could be attached: {why}")]
pub struct LoadError {
    /// The first cause, in one line.
    pub why: String,
    /// The reason for each class (`backend` is empty).
    pub missing: Vec<BackendInfo>,
}

impl LoadError {
    fn new(missing: Vec<BackendInfo>) -> Self {
        // There always are classes: those that are not about a file system.
        let why = missing.first().map(|none| none.reason.clone()).unwrap_or_default();
        Self { why, missing }
    }
}

/// Finds out what this kernel offers, then loads and attaches the best of it.
pub fn load(options: &LoadOptions) -> Result<Loaded, LoadError> {
    load_on(&capabilities::facts(), options)
}

/// Loads and attaches on facts that are known already.
pub fn load_on(facts: &KernelFacts, options: &LoadOptions) -> Result<Loaded, LoadError> {
    let mut plans = plan::plan(facts, &options.choice);
    let is_wanted = |file_system: &str| options.disks.iter().any(|it| it == file_system);
    plans.retain(|(class, _)| class.file_system().is_none_or(is_wanted));
    if plans.iter().flat_map(|(_, candidates)| candidates).all(|candidate| candidate.refusal.is_some()) {
        return Err(LoadError::new(
            plans.iter().map(|(class, candidates)| plan::info(*class, candidates)).collect(),
        ));
    }
    let fail = |error: EbpfError| {
        let why = error_summary(&error);
        LoadError::new(plans.iter().map(|(class, _)| BackendInfo::plain(class.name(), "", &why)).collect())
    };
    let (mut ebpf, mut loaded) = open(facts, options).map_err(fail)?;
    // After the maps are created: until then aya holds the kernel's BTF, about 15 MB, itself.
    let btf = Btf::from_sys_fs().map_err(|error| fail(error.into()))?;
    let Loaded { kernel, missing, log, .. } = &mut loaded;
    for (class, mut candidates) in plans {
        if let Some(accompanied) = class.accompanied() {
            let attached = kernel.sources.iter().find(|info| info.source == accompanied.name());
            plan::refuse_other_probes(attached.map_or("", |info| info.backend), &mut candidates);
        }
        let attached = attach_best(&mut candidates, &mut ebpf, &btf, facts.lockdown);
        let info = plan::info(class, &candidates);
        let Some((method, links)) = attached else {
            missing.push(info);
            continue;
        };
        match method.when {
            None => kernel.links.extend(links.into_iter().map(|link| (class, link))),
            // A probe that is too expensive to stay attached has shown that it can be attached.
            Some(when) => match OnDemandProbe::new(class, when, links) {
                Ok(probe) => kernel.near.push(probe),
                Err(error) => {
                    missing.push(BackendInfo::plain(class.name(), "", error_summary(&error)));
                    continue;
                }
            },
        }
        kernel.sources.push(info);
    }
    if kernel.sources.is_empty() {
        return Err(LoadError::new(loaded.missing));
    }
    *log = options.debug_log.then(|| EbpfLogger::init(&mut ebpf)).transpose().unwrap_or_else(|error| {
        tracing::warn!("no diagnostics of the BPF programs: {error}");
        None
    });
    Ok(loaded)
}

/// Returns the configuration that the programs are loaded with; `NONE` if the kernel's types are not known.
fn program_config(facts: &KernelFacts, options: &LoadOptions) -> ProgramConfig {
    let (Ok(btf), Ok(hierarchy)) = (&facts.btf, &facts.hierarchy) else { return ProgramConfig::NONE };
    let offsets = facts.lockdown.readable(btf.offsets);
    let shows_growth = offsets.task_mm != ABSENT && offsets.mm_anon != ABSENT;
    ProgramConfig {
        abi: ABI_VERSION.into(),
        hierarchy: *hierarchy,
        css_online: btf.css_online,
        css_dying: btf.css_dying,
        reclaimed_first: btf.reclaimed.start,
        reclaimed_events: btf.reclaimed.len() as u32,
        storm_forks: task_counters::forks_in_window(options.fork_storm),
        kernel_kill: (options.kernel_kill && shows_growth).into(),
        offsets,
    }
}

/// Creates the maps. No program is attached yet.
fn open(facts: &KernelFacts, options: &LoadOptions) -> Result<(Ebpf, Loaded), EbpfError> {
    let LoadOptions { ring_bytes, cgroups, levels, debug_log, disks, .. } = options;
    raise_memlock();
    let page_bytes = rustix::param::page_size() as u32;
    let ring_bytes = (*ring_bytes).max(page_bytes);
    let present = read_cgroups();
    let levels = levels.unwrap_or_else(|| max_thresholds(present)).max(1);
    let cgroups = cgroups.unwrap_or_else(|| map_entries(present)).max(1);
    let config = program_config(facts, options);
    let has_kernel_kill = config.kernel_kill != 0;
    let config = MapEntry(config);
    let log_level = if *debug_log { aya_log::Level::Debug as u8 } else { 0 };
    let mut loader = EbpfLoader::new();
    loader
        .override_global("PROGRAM_CONFIG", &config, true)
        .override_global(aya_log::LEVEL, &log_level, true)
        .map_max_entries("EVENTS", ring_bytes)
        .map_max_entries("THRESHOLDS", levels)
        // A threshold has three edges, and its tokens are removed after those of the next setting are inserted.
        // A disk has two.
        .map_max_entries("FIRE_TOKENS", levels.saturating_mul(6).saturating_add(4 * DISKS))
        .map_max_entries("CHARGED_CGROUPS", cgroups)
        .map_max_entries("OOM_COUNTS", cgroups)
        .map_max_entries("TASK_STATS", cgroups)
        .map_max_entries("RECLAIM_TIME", cgroups)
        .map_max_entries("DISK_USAGE", if disks.is_empty() { 1 } else { cgroups.saturating_mul(2) })
        .map_max_entries("ALARMS_SENT", levels);
    if !debug_log {
        loader.map_max_entries("AYA_LOGS", page_bytes);
    }
    let mut ebpf = with_object(|object| loader.load(object))?;
    let charge_caches = facts.btf.as_ref().map_or(1, |btf| btf.charge_caches);
    let kernel = BpfHandle::take(&mut ebpf, levels, has_kernel_kill, charge_caches)?;
    let ring = Ring::new(take_map(&mut ebpf, "EVENTS")?, ring_bytes);
    Ok((ebpf, Loaded { kernel, ring, missing: Vec::new(), log: None }))
}

/// Raises the limit of locked memory, to which the kernel charges maps before 5.11. If it cannot be raised and
/// is too low, creating the maps fails.
fn raise_memlock() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Memlock);
    let unlimited = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Memlock, unlimited).is_err() {
        let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
    }
}

/// The programs as they were built, part of the agent's executable.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/eviction-ebpf"));

/// Passes the programs to `read`, then releases their pages. They are read once, and again only after a method
/// failed, so they should not stay in the agent's memory.
fn with_object<T>(read: impl FnOnce(&[u8]) -> T) -> T {
    let result = read(OBJECT);
    let page = rustix::param::page_size();
    let start = OBJECT.as_ptr().addr().next_multiple_of(page);
    let end = (OBJECT.as_ptr().addr() + OBJECT.len()) & !(page - 1);
    if let Some(length) = end.checked_sub(start).filter(|length| *length > 0) {
        let first = OBJECT.as_ptr().map_addr(|_| start).cast_mut().cast();
        // SAFETY: these are whole pages inside of a constant. Its mapping of the file is private and never
        // written, so later reads find the same content. The kernel refuses locked pages, which stay.
        let _ = unsafe { madvise(first, length, Advice::LinuxDontNeed) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_can_be_read_again_after_their_pages_were_released() {
        let copy = |object: &[u8]| object.to_vec();
        let first = with_object(copy);
        assert!(first.starts_with(b"\x7fELF"));
        assert_eq!(with_object(copy), first);
    }

    #[test]
    fn maps_have_room_for_twice_as_many_cgroups_within_bounds() {
        assert_eq!([0, 450, 3000, 50_000, u32::MAX].map(map_entries), [4096, 4096, 6000, 100_000, 131_072]);
    }

    #[test]
    fn thresholds_have_room_for_all_cgroups_within_bounds() {
        assert_eq!([0, 450, 3000, u32::MAX].map(max_thresholds), [1024, 1024, 3000, 8192]);
    }

    #[test]
    fn number_of_cgroups_is_parsed_from_cgroup_stat() {
        let text = "nr_descendants 330\nnr_subsys_memory 300\nnr_dying_descendants 12\n";
        assert_eq!(parse_cgroup_stat(text.as_bytes()), Some(343));
        for odd in ["", "nr_descendants 3", "nr_descendants many\nnr_dying_descendants 1"] {
            assert_eq!(parse_cgroup_stat(odd.as_bytes()), None, "{odd:?}");
        }
    }
}
