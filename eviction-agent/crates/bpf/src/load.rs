//! Loads and attaches what the plan says, best first.

use std::os::fd::{AsFd, BorrowedFd};

use aya::{
    Btf, Ebpf, EbpfError, EbpfLoader,
    maps::{MapData, MapError, RingBuf},
};
use aya_log::EbpfLogger;
use eviction_common::{ABI_VERSION, ABSENT, Setup};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

use eviction_node::choice::Choice;

use super::{
    brief::brief,
    climb::{Attached, Climbed, climb, keep},
    kernel::{Kernel, Maps},
    object::with_object,
    plan::{self, Family, FamilyPlan, SourceInfo},
    probe::{self, Facts},
    reflex::Reflex,
    ring::Ring,
    size,
    sys::Entry,
    tally::{self, TallyMaps},
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
    /// Size of the ring buffer, bytes; made a power of two of pages. `None`: by how many cgroups there
    /// are ([`size::ring_bytes`]).
    pub ring_bytes: Option<u32>,
    /// For how many cgroups there is room in each map; each costs some 300 bytes of kernel memory.
    /// `None`: twice as many as there are ([`size::map_entries`]).
    pub cgroups: Option<u32>,
    /// On how many cgroups a level can be armed; each costs some 600 bytes of kernel memory. `None`:
    /// by how many there are ([`size::levels`]).
    pub levels: Option<u32>,
    /// Rungs that are asked for or denied.
    pub choice: Choice,
    /// How many tasks a cgroup makes in a second before it is told; 0 any number.
    pub fork_storm: u32,
    /// The programs' own diagnostics.
    pub log: ProgramLog,
    /// Whether a verdict may stand ([`Kernel::stand`]). Without it the verifier sees to it that no
    /// program can send a signal.
    pub reflex: bool,
}

/// A build on a machine of many cores makes some thousand processes in a second; what makes more in one
/// cgroup goes out of hand.
const FORK_STORM: u32 = 5_000;

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            ring_bytes: None,
            cgroups: None,
            levels: None,
            choice: Choice::default(),
            fork_storm: FORK_STORM,
            log: ProgramLog::Off,
            reflex: false,
        }
    }
}

/// What was loaded.
pub struct Loaded {
    /// The handle; dropping it detaches everything.
    pub kernel: Kernel,
    /// The reader of the records.
    pub ring: Ring,
    /// Families of which nothing could be attached, with the reasons (`rung` is empty).
    pub missing: Vec<SourceInfo>,
    /// The reader of the programs' own diagnostics, unless they are off.
    pub log: Option<ProgramLogReader>,
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
pub struct Refused {
    /// The first cause, in one line.
    pub why: String,
    /// The reason for each family (`rung` is empty).
    pub missing: Vec<SourceInfo>,
}

/// Finds out what this kernel offers, loads the best of it and attaches it.
pub fn load(options: &LoadOptions) -> Result<Loaded, Refused> {
    load_on(&probe::facts(), options)
}

/// The same on facts that are known already.
pub fn load_on(facts: &Facts, options: &LoadOptions) -> Result<Loaded, Refused> {
    let LoadOptions { choice, log, fork_storm, reflex, .. } = options;
    let plans = plan::plan(facts, choice);
    let setup = match (&facts.btf, &facts.hierarchy) {
        (Ok(btf), Ok(hierarchy)) => Setup {
            abi: ABI_VERSION.into(),
            hierarchy: *hierarchy,
            css_online: btf.resolved.css_online,
            css_dying: btf.resolved.css_dying,
            reclaimed_first: btf.resolved.reclaimed.start,
            reclaimed_events: btf.resolved.reclaimed.len() as u32,
            storm_forks: tally::forks_in_window(*fork_storm),
            reflex: (*reflex).into(),
            offsets: facts.lockdown.readable(btf.resolved.offsets),
        },
        _ => Setup::NONE,
    };
    if plans.iter().all(|plan| plan.candidates.is_empty()) {
        return Err(refused(plans, None));
    }
    // One after the other: aya holds the kernel's BTF while it makes the maps, some 15 MB.
    let levels = options.levels.unwrap_or_else(|| size::levels(size::read_cgroups())).max(1);
    let opened = open(setup, levels, options).and_then(|mut ebpf| {
        tally::lay_out_places(&mut ebpf)?;
        Ok((ebpf, Btf::from_sys_fs()?))
    });
    let (mut ebpf, btf) = match opened {
        Ok(opened) => opened,
        Err(error) => return Err(refused(plans, Some(brief(&error)))),
    };
    let mut links = Vec::new();
    let mut sources = Vec::new();
    let mut missing = Vec::new();
    let mut near = None;
    let mut charge = "";
    for mut plan in plans {
        let family = plan.family;
        if family == Family::Near {
            plan.only_beside(charge);
        }
        match climb(plan, &mut ebpf, &btf, facts.lockdown) {
            Ok(Climbed { info, rung, attached }) => {
                if family == Family::Charge {
                    charge = rung.name;
                }
                match rung.beside {
                    // What costs too much for every day has shown that it can be attached.
                    Some(beside) => match keep(attached, beside.when) {
                        Ok(kept) => near = kept,
                        Err(error) => {
                            missing.push(SourceInfo { rung: "", reason: brief(&error), ..info });
                            continue;
                        }
                    },
                    None => links.extend(attached.into_iter().map(|Attached { link, .. }| (family, link))),
                }
                sources.push(info);
            }
            Err(none) => missing.push(none),
        }
    }
    drop(btf);
    let failed = |why: String, missing| Refused { why, missing };
    if sources.is_empty() {
        let why = missing.first().map(|none| none.reason.clone());
        return Err(failed(why.unwrap_or_default(), missing));
    }
    let log = match log {
        ProgramLog::Off => None,
        ProgramLog::Warn | ProgramLog::Debug => EbpfLogger::init(&mut ebpf).ok().map(ProgramLogReader),
    };
    let offsets = &setup.offsets;
    let shows_growth = offsets.task_mm != ABSENT && offsets.mm_anon != ABSENT;
    let stocks = facts.btf.as_ref().map_or(1, |btf| btf.resolved.stocks);
    let taken = take_maps(&mut ebpf, levels).and_then(|(maps, ring)| {
        let reflex = (*reflex && shows_growth).then(|| take_reflex(&mut ebpf)).transpose()?;
        Ok((maps, reflex, ring))
    });
    match taken {
        Ok((maps, reflex, ring)) => {
            let kernel = Kernel::new(maps, reflex, links, near, sources, stocks);
            Ok(Loaded { kernel, ring, missing, log })
        }
        Err(error) => Err(failed(brief(&error), missing)),
    }
}

fn refused(plans: Vec<FamilyPlan>, why: Option<String>) -> Refused {
    let missing: Vec<_> = plans
        .iter()
        .map(|FamilyPlan { family, rejected, .. }| match &why {
            None => plan::nothing(*family, rejected),
            Some(why) => SourceInfo { reason: why.clone(), ..plan::nothing(*family, rejected) },
        })
        .collect();
    let first = missing.first().map(|none| none.reason.clone());
    Refused { why: why.or(first).unwrap_or_default(), missing }
}

/// Makes the maps.
fn open(setup: Setup, levels: u32, options: &LoadOptions) -> Result<Ebpf, EbpfError> {
    let LoadOptions { ring_bytes, cgroups, levels: _, choice: _, fork_storm: _, log, reflex: _ } = options;
    raise_memlock();
    let page = rustix::param::page_size() as u32;
    let present = size::read_cgroups();
    let ring_bytes = ring_bytes.unwrap_or_else(|| size::ring_bytes(present, page));
    let cgroups = cgroups.unwrap_or_else(|| size::map_entries(present)).max(1);
    let setup = Entry(setup);
    let level = log.level();
    let mut loader = EbpfLoader::new();
    loader
        .override_global("SETUP", &setup, true)
        .override_global(aya_log::LEVEL, &level, true)
        .map_max_entries("RING", ring_bytes.max(page))
        .map_max_entries("ARMED", levels)
        // Three edges, and the tickets of an arming go when the next one's are in.
        .map_max_entries("TICKETS", levels.saturating_mul(6).max(8))
        .map_max_entries("DIRTY", cgroups)
        .map_max_entries("SEEN_OOM", cgroups)
        .map_max_entries("TASKS", cgroups)
        .map_max_entries("TASK_PLACES", cgroups)
        .map_max_entries("FREE_PLACES", cgroups)
        .map_max_entries("STALLS", cgroups)
        .map_max_entries("ALARMED", levels);
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

fn take_reflex(ebpf: &mut Ebpf) -> Result<Reflex, MapError> {
    let mut take =
        |name: &str| ebpf.take_map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() });
    Ok(Reflex {
        mark: take("MARK")?.try_into()?,
        verdict: take("VERDICT")?.try_into()?,
        ticket: take("VERDICT_TICKET")?.try_into()?,
        withheld: take("WITHHELD")?.try_into()?,
        last_epoch: 0,
        is_marked: false,
        last_verdict: 0,
        stands: None,
    })
}

fn take_maps(ebpf: &mut Ebpf, levels: u32) -> Result<(Maps, Ring), MapError> {
    let tally = TallyMaps::take(ebpf)?;
    let mut take =
        |name: &str| ebpf.take_map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() });
    let ring: RingBuf<MapData> = take("RING")?.try_into()?;
    let maps = Maps {
        armed: take("ARMED")?.try_into()?,
        armed_bits: take("ARMED_BITS")?.try_into()?,
        levels,
        tickets: take("TICKETS")?.try_into()?,
        dirty: match take("DIRTY")? {
            aya::maps::Map::HashMap(map) => map,
            _ => return Err(MapError::InvalidName { name: "DIRTY".into() }),
        },
        counters: take("COUNTERS")?.try_into()?,
        tally,
    };
    Ok((maps, Ring::new(ring)))
}
