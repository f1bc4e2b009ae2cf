//! Loads and attaches what the plan says, best first.

use std::{
    error::Error,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::Instant,
};

use aya::{
    Btf, Ebpf, EbpfError, EbpfLoader,
    maps::{MapData, MapError, RingBuf},
    programs::{BtfTracePoint, FEntry, FExit, KProbe, ProgramError, ProgramFd, ProgramInfo},
};
use aya_log::EbpfLogger;
use eviction_common::{ABI_VERSION, ABSENT, Setup, UsageSetup};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

use crate::source::choice::Choice;

use super::{
    attach::Link,
    iter::{self, Usages},
    kernel::{Kernel, Maps},
    near::Near,
    object::with_object,
    plan::{self, At, Family, FamilyPlan, Hook, Rejected, Rung, SourceInfo, When},
    probe::{self, Facts, Lockdown},
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
    /// The folder of the cgroup, in the memory controller's hierarchy, whose figures and those of all
    /// below it are to be had at a glance.
    pub usages_of: Option<PathBuf>,
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
            usages_of: None,
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
    /// The figures of all cgroups at a glance, where they were asked for and can be had.
    pub usages: Option<Usages>,
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
    load_all(facts, options).map_err(|mut refused| {
        if options.usages_of.is_some() {
            refused.missing.push(iter::info(Err(refused.why.clone()), facts));
        }
        refused
    })
}

fn load_all(facts: &Facts, options: &LoadOptions) -> Result<Loaded, Refused> {
    let LoadOptions { choice, log, fork_storm, reflex, .. } = options;
    let plans = plan::plan(facts, choice);
    let setup = match (&facts.btf, &facts.hierarchy) {
        (Ok(btf), Ok(hierarchy)) => Setup {
            abi: ABI_VERSION.into(),
            hierarchy: *hierarchy,
            css_online: btf.resolved.css_online,
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
    let told = facts.btf.as_ref().ok().and_then(|btf| btf.usages.as_ref().ok());
    let usage_setup = told.map_or(UsageSetup::NONE, |told| told.setup);
    let levels = options.levels.unwrap_or_else(|| size::levels(size::read_cgroups())).max(1);
    let opened = open(setup, usage_setup, levels, options).and_then(|ebpf| Ok((ebpf, Btf::from_sys_fs()?)));
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
    let mut usages = None;
    if let Some(folder) = &options.usages_of {
        match iter::attach(facts, options, folder, &mut ebpf, &btf) {
            Ok(attached) => {
                sources.push(iter::info(Ok(()), facts));
                usages = Some(attached);
            }
            Err(error) => missing.push(iter::info(Err(brief(&*error)), facts)),
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
    let taken = take_maps(&mut ebpf, levels).and_then(|(maps, ring)| {
        let reflex = (*reflex && shows_growth).then(|| take_reflex(&mut ebpf)).transpose()?;
        Ok((maps, reflex, ring))
    });
    match taken {
        Ok((maps, reflex, ring)) => {
            Ok(Loaded { kernel: Kernel::new(maps, reflex, links, near, sources), ring, missing, log, usages })
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
fn open(
    setup: Setup,
    usage_setup: UsageSetup,
    levels: u32,
    options: &LoadOptions,
) -> Result<Ebpf, EbpfError> {
    let LoadOptions { ring_bytes, cgroups, levels: _, choice: _, fork_storm: _, log, reflex: _, usages_of } =
        options;
    raise_memlock();
    let page = rustix::param::page_size() as u32;
    let present = size::read_cgroups();
    let ring_bytes = ring_bytes.unwrap_or_else(|| size::ring_bytes(present, page));
    let cgroups = cgroups.unwrap_or_else(|| size::map_entries(present)).max(1);
    let (setup, usage_setup) = (Entry(setup), Entry(usage_setup));
    let has_rows = usages_of.is_some() && usage_setup.0 != UsageSetup::NONE;
    let rows = if has_rows { cgroups.saturating_add(1) } else { 1 };
    let level = log.level();
    let mut loader = EbpfLoader::new();
    loader
        .override_global("SETUP", &setup, true)
        .override_global("USAGE_SETUP", &usage_setup, true)
        .override_global(aya_log::LEVEL, &level, true)
        .map_max_entries("RING", ring_bytes.max(page))
        .map_max_entries("ARMED", levels)
        // Three edges, and the tickets of an arming go when the next one's are in.
        .map_max_entries("TICKETS", levels.saturating_mul(6).max(8))
        .map_max_entries("DIRTY", cgroups)
        .map_max_entries("SEEN_OOM", cgroups)
        .map_max_entries("TASKS", cgroups)
        .map_max_entries("RATES", cgroups)
        .map_max_entries("STALLS", cgroups)
        .map_max_entries("USAGES", rows)
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

/// The rung of a family that holds.
struct Climbed {
    info: SourceInfo,
    rung: &'static Rung,
    attached: Vec<Attached>,
}

/// A program, loaded and at its place.
struct Attached {
    at: At,
    program: OwnedFd,
    link: Link,
}

/// Tries a family's rungs, best first.
fn climb(plan: FamilyPlan, ebpf: &mut Ebpf, btf: &Btf, lockdown: Lockdown) -> Result<Climbed, SourceInfo> {
    let FamilyPlan { family, candidates, mut rejected } = plan;
    for rung in candidates {
        let attached: Result<Vec<_>, _> = rung.hooks.iter().map(|hook| attach(hook, ebpf, btf)).collect();
        match attached {
            Ok(attached) => return Ok(Climbed { info: rung.info(&rejected), rung, attached }),
            Err(error) => rejected.push(Rejected { rung: rung.name, why: lockdown.explain(error) }),
        }
    }
    Err(plan::nothing(family, &rejected))
}

fn attach(hook: &Hook, ebpf: &mut Ebpf, btf: &Btf) -> Result<Attached, String> {
    let Hook { program: name, at, arguments: _ } = *hook;
    let fail = |error: &(dyn Error + 'static)| format!("{name}: {}", brief(error));
    let began = Instant::now();
    let (program, id) = load_program(hook, ebpf, btf).map_err(|error| fail(&error))?;
    let loaded = began.elapsed();
    let link = Link::new(at, &program, id).map_err(|error| fail(&error))?;
    // A trampoline may wait until no task is in the one before it.
    tracing::debug!(program = name, ?loaded, attached = ?began.elapsed().saturating_sub(loaded), "a program holds");
    Ok(Attached { at, program, link })
}

/// Hands a program to the verifier; gives its descriptor and the kernel's id of it.
fn load_program(hook: &Hook, ebpf: &mut Ebpf, btf: &Btf) -> Result<(OwnedFd, u32), ProgramError> {
    let Hook { program, at, arguments: _ } = *hook;
    let program = ebpf.program_mut(program).ok_or(ProgramError::NotLoaded)?;
    let loaded = |fd: &ProgramFd, info: ProgramInfo| {
        fd.as_fd().try_clone_to_owned().map(|fd| (fd, info.id())).map_err(ProgramError::IOError)
    };
    match at {
        At::Tracepoint(name) => {
            let program: &mut BtfTracePoint = program.try_into()?;
            program.load(name, btf)?;
            loaded(program.fd()?, program.info()?)
        }
        At::Entry(name) => {
            let program: &mut FEntry = program.try_into()?;
            program.load(name, btf)?;
            loaded(program.fd()?, program.info()?)
        }
        At::Exit(name) => {
            let program: &mut FExit = program.try_into()?;
            program.load(name, btf)?;
            loaded(program.fd()?, program.info()?)
        }
        At::Probe(_) | At::ReturnProbe(_) => {
            let program: &mut KProbe = program.try_into()?;
            program.load()?;
            loaded(program.fd()?, program.info()?)
        }
    }
}

/// The program of a rung for a time, which is taken off.
fn keep(attached: Vec<Attached>, when: When) -> std::io::Result<Option<Near>> {
    let first = attached.into_iter().next();
    first.map(|Attached { at, program, link }| Near::new(when, at, program, link)).transpose()
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

/// An error and its causes in one short line. The verifier's log, which may be long, is cut
/// down to what it says last.
fn brief(error: &(dyn Error + 'static)) -> String {
    if let Some(ProgramError::LoadError { io_error, verifier_log }) = error.downcast_ref() {
        let log = verifier_log.to_string();
        return match verdict(&log) {
            Some(verdict) => format!("the kernel refuses it: {io_error}: {verdict}"),
            None => format!("the kernel refuses it: {io_error}"),
        };
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let error_text = error.to_string();
        if !text.contains(&error_text) {
            text = format!("{text}: {error_text}");
        }
        cause = error.source();
    }
    cut(text.lines().next().unwrap_or_default())
}

/// The line of a verifier's log that says what was wrong: the last one before its statistics.
fn verdict(log: &str) -> Option<String> {
    let statistics = ["processed ", "insns processed", "verification time", "stack depth", "peak_states"];
    log.lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty() && !statistics.iter().any(|start| line.starts_with(start)))
        .map(cut)
}

fn cut(line: &str) -> String {
    const LONGEST: usize = 200;
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifiers_verdict_is_its_last_line_before_the_statistics() {
        let log = "0: R1=ctx() R10=fp0\n; code\n12: (79) r1 = *(u64 *)(r2 +3)\n\
            access beyond struct cgroup at off 3 size 8\n\
            processed 13 insns (limit 1000000) max_states_per_insn 0\n\n";
        assert_eq!(verdict(log).as_deref(), Some("access beyond struct cgroup at off 3 size 8"));
        assert_eq!(verdict(""), None);
        assert_eq!(verdict("no such helper\ninsns processed 12625\n").as_deref(), Some("no such helper"));
        assert_eq!(verdict("processed 1 insns\n"), None);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let line = "é".repeat(300);
        assert_eq!(cut(&line).chars().count(), 201);
        assert_eq!(cut("short"), "short");
    }

    #[test]
    fn an_error_is_told_with_its_causes_once() {
        let error = MapError::SyscallError(aya::sys::SyscallError {
            call: "bpf_map_create",
            io_error: std::io::Error::from_raw_os_error(1),
        });
        let text = brief(&EbpfError::from(error));
        assert!(text.contains("bpf_map_create") && text.contains("Operation not permitted"), "{text}");
        assert_eq!(text.matches("bpf_map_create").count(), 1, "{text}");
    }
}
