//! Loads and attaches what the plan says, best first.

use std::os::fd::{AsFd, BorrowedFd};
use std::{fs, path::Path};

use aya::{
    Btf, Ebpf, EbpfError, EbpfLoader,
    maps::{MapData, MapError, RingBuf},
};
use aya_log::EbpfLogger;
use eviction_common::{ABI_VERSION, ABSENT, DISKS, DiskKillOrder, KillOrder, ProgramConfig};
use rustix::mm::{Advice, madvise};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

use eviction_node::backend::BackendSelection;

use super::{
    attach::{Attached, attach_best, brief},
    attach_methods::EventClass,
    capabilities::{self, KernelFacts},
    handle::{
        BpfHandle, Maps,
        disk::DiskMaps,
        kernel_kill::{KernelKillMaps, OrderMap},
        task_counters::{self, TaskCounterMaps},
    },
    on_demand::OnDemandProbe,
    plan::{self, BackendInfo, ClassPlan},
    ring::Ring,
    sys::MapEntry,
};

/// How much of the programs' own diagnostics is logged, through the `log` facade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProgramLog {
    /// Nothing, and it costs nothing: the verifier takes the calls out.
    #[default]
    Off,
    /// What went wrong.
    Warn,
    /// What was done, too.
    Debug,
}

impl ProgramLog {
    /// As the programs compare it: a message goes out when its own level is not greater.
    fn level(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Warn => aya_log::Level::Warn as u8,
            Self::Debug => aya_log::Level::Debug as u8,
        }
    }
}

/// What can be chosen at load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Size of the ring buffer, bytes; made a power of two of pages.
    pub ring_bytes: u32,
    /// For how many cgroups there is room in each map; each costs some 300 bytes of kernel memory.
    /// `None`: twice as many as there are .
    pub cgroups: Option<u32>,
    /// On how many cgroups a level can be armed; each costs some 600 bytes of kernel memory. `None`:
    /// by how many there are .
    pub levels: Option<u32>,
    /// Methods that are asked for or denied.
    pub choice: BackendSelection,
    /// How many tasks a cgroup makes in a second before it is told; 0 any number.
    pub fork_storm: u32,
    /// The programs' own diagnostics.
    pub log: ProgramLog,
    /// Whether a kill order may be armed ([`BpfHandle::arm_kill`]). Without it the verifier sees to it that no
    /// program can send a signal.
    pub kernel_kill: bool,
    /// The types of the file systems on which thresholds may be set ([`BpfHandle::set_disk_threshold`]), such as `ext4`.
    /// No program for others is loaded.
    pub disks: Vec<String>,
}

/// A build on a machine of many cores makes some thousand processes in a second; what makes more in one
/// cgroup goes out of hand.
const FORK_STORM: u32 = 5_000;

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            ring_bytes: RING_BYTES,
            cgroups: None,
            levels: None,
            choice: BackendSelection::default(),
            fork_storm: FORK_STORM,
            log: ProgramLog::Off,
            kernel_kill: false,
            disks: Vec::new(),
        }
    }
}

/// Size of the ring, bytes: room for 5,000 cgroups that are created or removed before anybody reads. What does
/// not fit is counted, and looked for. A ring is mapped twice, and counts as the agent's memory twice.
pub const RING_BYTES: u32 = 256 << 10;

/// Entries of maps by cgroup. Half of them are left for cgroups that come.
const CGROUPS_LEAST: u32 = 4096;
const CGROUPS_MOST: u32 = 1 << 17;

const LEVELS_LEAST: u32 = 1024;
const LEVELS_MOST: u32 = 8192;

/// How many cgroups the maps have room for.
fn map_entries(cgroups: u32) -> u32 {
    cgroups.saturating_mul(2).clamp(CGROUPS_LEAST, CGROUPS_MOST)
}

/// On how many of them a level can be armed. Not all have a limit; the agent often starts before the
/// pods do, of which there are 110 by default, each with two or three groups that may have one.
fn levels(cgroups: u32) -> u32 {
    cgroups.clamp(LEVELS_LEAST, LEVELS_MOST)
}

/// How many memory cgroups there are, as /proc/cgroups has it, else the root of cgroup version 2: kernels without
/// memory's version 1 (6.12 on, CONFIG_MEMCG_V1) leave that line out. 0 if neither says it.
fn read_cgroups() -> u32 {
    let read = |path: &str, parse: fn(&str) -> Option<u32>| parse(&fs::read_to_string(Path::new(path)).ok()?);
    read("/proc/cgroups", parse_cgroups)
        .or_else(|| read("/sys/fs/cgroup/cgroup.stat", parse_stat))
        .unwrap_or(0)
}

/// `nr_descendants` and `nr_dying_descendants`, and the root.
fn parse_stat(text: &str) -> Option<u32> {
    let value = |key: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(name, _)| *name == key)?.1.trim().parse::<u32>().ok()
    };
    Some(value("nr_descendants")?.saturating_add(value("nr_dying_descendants")?).saturating_add(1))
}

/// The third word of the memory controller's line.
fn parse_cgroups(text: &str) -> Option<u32> {
    let words = text.lines().map(str::split_whitespace);
    let mut memory = words.filter_map(|mut words| (words.next() == Some("memory")).then_some(words));
    memory.next()?.nth(1)?.parse().ok()
}

/// What was loaded.
pub struct Loaded {
    /// The handle; dropping it detaches everything.
    pub kernel: BpfHandle,
    /// The reader of the records.
    pub ring: Ring,
    /// Classes of which nothing could be attached, with the reasons (`backend` is empty).
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

/// The programs' own diagnostics; readable (poll, epoll) when there are any.
pub struct ProgramLogReader(EbpfLogger<&'static dyn log::Log>);

impl ProgramLogReader {
    /// Hands what is there to the `log` facade.
    pub fn flush(&mut self) {
        self.0.flush();
    }
}

impl AsFd for ProgramLogReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Nothing could be loaded; the agent runs on its fallbacks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no BPF program could be attached: {why}")]
pub struct LoadError {
    /// The first cause, in one line.
    pub why: String,
    /// The reason for each class (`backend` is empty).
    pub missing: Vec<BackendInfo>,
}

/// Finds out what this kernel offers, loads the best of it and attaches it.
pub fn load(options: &LoadOptions) -> Result<Loaded, LoadError> {
    load_on(&capabilities::facts(), options)
}

/// The same on facts that are known already.
pub fn load_on(facts: &KernelFacts, options: &LoadOptions) -> Result<Loaded, LoadError> {
    let LoadOptions { choice, log, kernel_kill, .. } = options;
    let mut plans = plan::plan(facts, choice);
    let is_wanted = |file_system: &str| options.disks.iter().any(|it| it == file_system);
    plans.retain(|plan| plan.class.file_system().is_none_or(is_wanted));
    let config = program_config(facts, options);
    if plans.iter().all(|plan| plan.candidates.is_empty()) {
        return Err(refused(plans, None));
    }
    // One after the other: aya holds the kernel's BTF while it makes the maps, some 15 MB.
    let levels = options.levels.unwrap_or_else(|| levels(read_cgroups())).max(1);
    let opened = open(config, levels, options).and_then(|ebpf| Ok((ebpf, Btf::from_sys_fs()?)));
    let (mut ebpf, btf) = match opened {
        Ok(opened) => opened,
        Err(error) => return Err(refused(plans, Some(brief(&error)))),
    };
    let mut links = Vec::new();
    let mut sources = Vec::new();
    let mut missing = Vec::new();
    let mut near = Vec::new();
    let (mut charge, mut disk) = ("", "");
    for mut plan in plans {
        let class = plan.class;
        match class {
            EventClass::ChargeNear => plan.only_with(charge),
            EventClass::DiskNear => plan.only_with(disk),
            _ => {}
        }
        match attach_best(plan, &mut ebpf, &btf, facts.lockdown) {
            Ok(Attached { info, method, links: attached }) => {
                match class {
                    EventClass::Charge => charge = method.name,
                    EventClass::Disk => disk = method.name,
                    _ => {}
                }
                match method.companion {
                    // What costs too much for every day has shown that it can be attached.
                    Some(companion) => match OnDemandProbe::new(class, companion.when, attached) {
                        Ok(kept) => near.push(kept),
                        Err(error) => {
                            missing.push(BackendInfo { backend: "", reason: brief(&error), ..info });
                            continue;
                        }
                    },
                    None => links.extend(attached.into_iter().map(|link| (class, link))),
                }
                sources.push(info);
            }
            Err(none) => missing.push(none),
        }
    }
    drop(btf);
    let failed = |why: String, missing| LoadError { why, missing };
    if sources.is_empty() {
        let why = missing.first().map(|none| none.reason.clone());
        return Err(failed(why.unwrap_or_default(), missing));
    }
    let log = match log {
        ProgramLog::Off => None,
        ProgramLog::Warn | ProgramLog::Debug => EbpfLogger::init(&mut ebpf).ok().map(ProgramLogReader),
    };
    let offsets = &config.offsets;
    let shows_growth = offsets.task_mm != ABSENT && offsets.mm_anon != ABSENT;
    let charge_caches = facts.btf.as_ref().map_or(1, |btf| btf.resolved.charge_caches);
    let taken = take_maps(&mut ebpf, levels).and_then(|(maps, ring)| {
        let kernel_kill =
            (*kernel_kill && shows_growth).then(|| take_kernel_kill_maps(&mut ebpf)).transpose()?;
        Ok((maps, kernel_kill, ring))
    });
    match taken {
        Ok((maps, kernel_kill, ring)) => {
            let kernel = BpfHandle::new(maps, kernel_kill, links, near, sources, charge_caches);
            Ok(Loaded { kernel, ring, missing, log })
        }
        Err(error) => Err(failed(brief(&error), missing)),
    }
}

/// What the programs are told before they are loaded; nothing where the kernel's types are not known.
fn program_config(facts: &KernelFacts, options: &LoadOptions) -> ProgramConfig {
    match (&facts.btf, &facts.hierarchy) {
        (Ok(btf), Ok(hierarchy)) => ProgramConfig {
            abi: ABI_VERSION.into(),
            hierarchy: *hierarchy,
            css_online: btf.resolved.css_online,
            css_dying: btf.resolved.css_dying,
            reclaimed_first: btf.resolved.reclaimed.start,
            reclaimed_events: btf.resolved.reclaimed.len() as u32,
            storm_forks: task_counters::forks_in_window(options.fork_storm),
            kernel_kill: options.kernel_kill.into(),
            offsets: facts.lockdown.readable(btf.resolved.offsets),
        },
        _ => ProgramConfig::NONE,
    }
}

fn refused(plans: Vec<ClassPlan>, why: Option<String>) -> LoadError {
    let missing: Vec<_> = plans
        .iter()
        .map(|ClassPlan { class, rejected, .. }| match &why {
            None => plan::nothing(*class, rejected),
            Some(why) => BackendInfo { reason: why.clone(), ..plan::nothing(*class, rejected) },
        })
        .collect();
    let first = missing.first().map(|none| none.reason.clone());
    LoadError { why: why.or(first).unwrap_or_default(), missing }
}

/// Makes the maps.
fn open(config: ProgramConfig, levels: u32, options: &LoadOptions) -> Result<Ebpf, EbpfError> {
    let LoadOptions { ring_bytes, cgroups, levels: _, choice: _, fork_storm: _, log, kernel_kill: _, disks } =
        options;
    raise_memlock();
    let page = rustix::param::page_size() as u32;
    let present = read_cgroups();
    let cgroups = cgroups.unwrap_or_else(|| map_entries(present)).max(1);
    let config = MapEntry(config);
    let level = log.level();
    let mut loader = EbpfLoader::new();
    loader
        .override_global("PROGRAM_CONFIG", &config, true)
        .override_global(aya_log::LEVEL, &level, true)
        .map_max_entries("EVENTS", (*ring_bytes).max(page))
        .map_max_entries("THRESHOLDS", levels)
        // Three edges, and the tickets of an arming go when the next one's are in; two of a disk.
        .map_max_entries("FIRE_TOKENS", levels.saturating_mul(6).saturating_add(4 * DISKS))
        .map_max_entries("CHARGED_CGROUPS", cgroups)
        .map_max_entries("OOM_COUNTS", cgroups)
        .map_max_entries("TASK_STATS", cgroups)
        .map_max_entries("RECLAIM_TIME", cgroups)
        .map_max_entries("DISK_USAGE", if disks.is_empty() { 1 } else { cgroups.saturating_mul(2) })
        .map_max_entries("ALARMS_SENT", levels);
    if *log == ProgramLog::Off {
        loader.map_max_entries("AYA_LOGS", page);
    }
    with_object(|object| loader.load(object))
}

/// Before 5.11 the kernel charges maps to the limit of locked memory. Where it cannot be raised
/// and is too low, making the maps says so.
fn raise_memlock() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Memlock);
    let unlimited = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Memlock, unlimited).is_err() {
        let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
    }
}

fn take_kernel_kill_maps(ebpf: &mut Ebpf) -> Result<KernelKillMaps, MapError> {
    let mut take =
        |name: &str| ebpf.take_map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() });
    Ok(KernelKillMaps {
        marks: take("SAMPLE_EPOCH")?.try_into()?,
        order: OrderMap::new(take("KILL_ORDER")?.try_into()?, KillOrder::NONE),
        disk_order: OrderMap::new(take("DISK_KILL_ORDER")?.try_into()?, DiskKillOrder::NONE),
        tokens: take("KILL_ORDER_TOKEN")?.try_into()?,
        suppressed: take("SUPPRESSED")?.try_into()?,
        last_epoch: 0,
        is_marked: false,
        last_order: 0,
    })
}

fn take_maps(ebpf: &mut Ebpf, levels: u32) -> Result<(Maps, Ring), MapError> {
    let task_counters = TaskCounterMaps::take(ebpf)?;
    let mut take =
        |name: &str| ebpf.take_map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() });
    let ring: RingBuf<MapData> = take("EVENTS")?.try_into()?;
    let maps = Maps {
        thresholds: take("THRESHOLDS")?.try_into()?,
        threshold_bits: take("THRESHOLD_BITS")?.try_into()?,
        max_thresholds: levels,
        fire_tokens: take("FIRE_TOKENS")?.try_into()?,
        charged: match take("CHARGED_CGROUPS")? {
            aya::maps::Map::HashMap(map) => map,
            _ => return Err(MapError::InvalidName { name: "CHARGED_CGROUPS".into() }),
        },
        counters: take("COUNTERS")?.try_into()?,
        task_counters,
        disks: DiskMaps::take(ebpf)?,
    };
    Ok((maps, Ring::new(ring)))
}

/// The programs as they were built, part of the agent's own file.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/eviction-ebpf"));

/// Lets the programs be read, and their pages go again: the agent's memory is to be what it works with,
/// and they are read once, or again when a method was lost.
fn with_object<T>(read: impl FnOnce(&[u8]) -> T) -> T {
    let done = read(OBJECT);
    let page = rustix::param::page_size();
    let start = OBJECT.as_ptr().addr().next_multiple_of(page);
    let end = (OBJECT.as_ptr().addr() + OBJECT.len()) & !(page - 1);
    if let Some(length) = end.checked_sub(start).filter(|length| *length > 0) {
        let first = OBJECT.as_ptr().map_addr(|_| start).cast_mut().cast();
        // SAFETY: whole pages inside of a constant. Its mapping of the file is private and never written,
        // so whoever reads them again finds the same content. Locked pages are refused, and stay.
        let _ = unsafe { madvise(first, length, Advice::LinuxDontNeed) };
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_are_the_same_when_they_are_read_again() {
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
    fn levels_can_be_armed_on_as_many_cgroups_as_there_are_within_bounds() {
        assert_eq!([0, 450, 3000, u32::MAX].map(levels), [1024, 1024, 3000, 8192]);
    }

    #[test]
    fn where_that_line_is_missing_the_roots_own_count_says_it() {
        let text = "nr_descendants 330\nnr_subsys_memory 300\nnr_dying_descendants 12\n";
        assert_eq!(parse_stat(text), Some(343));
        for odd in ["", "nr_descendants 3", "nr_descendants many\nnr_dying_descendants 1"] {
            assert_eq!(parse_stat(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn the_number_of_cgroups_is_the_third_word_of_its_line() {
        let text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t2\t1\nmemory\t4\t79\t1\n";
        assert_eq!(parse_cgroups(text), Some(79));
        for odd in ["", "memory", "memory\t4", "memory\t4\tmany\t1", "memory\t4\t-1\t1", "memory_x\t4\t79"] {
            assert_eq!(parse_cgroups(odd), None, "{odd:?}");
        }
    }
}
