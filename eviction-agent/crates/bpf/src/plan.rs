//! Which rungs to try for each family of events, best first, and why the others not. Decides
//! on facts alone ([`KernelFacts`]), so that every kernel can be told about in a test; whether a rung holds
//! shows when it is loaded.
#![forbid(unsafe_code)]

use std::fmt;

use eviction_common::{BATCH_PAGES, STILL_PAGES};

pub use eviction_node::backend_info::BackendInfo;
use eviction_node::backend_selection::BackendSelection;

use super::{
    attach_methods::{RUNGS, ladder},
    btf::Argument,
    capabilities::{BtfFacts, KernelFacts},
};

/// What a program tells about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventClass {
    /// Charges of memory cgroups: crossings and the dirty set.
    Charge,
    /// What the rung for charges does not see, by a hook that costs too much to be attached all
    /// the time.
    Near,
    /// Out-of-memory kills.
    Oom,
    /// Forks, execs and exits.
    Task,
    /// Time spent in memcg direct reclaim.
    Reclaim,
    /// Cgroups made and removed.
    Cgroup,
}

impl EventClass {
    /// Every family.
    pub const ALL: [Self; 6] = [Self::Charge, Self::Near, Self::Oom, Self::Task, Self::Reclaim, Self::Cgroup];

    /// How it is called in logs, metrics and `check`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::Near => "charge near",
            Self::Oom => "oom",
            Self::Task => "task",
            Self::Reclaim => "reclaim",
            Self::Cgroup => "cgroup",
        }
    }
}

impl fmt::Display for EventClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One way to see a family of events: programs that are attached together.
#[derive(Debug)]
pub struct AttachMethod {
    /// Its name in logs, metrics, `check` and options.
    pub name: &'static str,
    /// What it tells about.
    pub family: EventClass,
    /// Its programs.
    pub hooks: &'static [ProgramHook],
    /// The members without which it is of no use, by the names of their fields in
    /// [`eviction_common::Offsets`].
    pub(super) needs: &'static [&'static [&'static str]],
    pub(super) sees_every_charge: bool,
    pub(super) grain: Granularity,
    /// Of a hook for a time, beside what and when.
    pub(super) beside: Option<CompanionProbe>,
}

/// What a hook that is attached for a time is good for.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompanionProbe {
    /// The rungs for charges that it goes with.
    pub(super) rungs: &'static [&'static str],
    /// When it is attached.
    pub(super) when: AttachWhen,
}

/// When a hook for a time is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttachWhen {
    /// While a line is near: it sees growth that the other passes over.
    NearLine,
    /// While it is to be seen how pressure ends: the other sees no memory given back.
    WayDown,
}

/// How far a cgroup can grow before a rung sees it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Granularity {
    /// That says nothing about it.
    None,
    /// What one page of page tables maps, and what is passed over.
    PageTable,
    /// What each CPU charges ahead at once.
    Batch,
}

impl Granularity {
    fn bytes(self, page_bytes: u64) -> u64 {
        match self {
            Self::None => 0,
            // An entry is 8 bytes on every machine that BPF programs are compiled for.
            Self::PageTable => page_bytes / 8 * page_bytes + STILL_PAGES * page_bytes,
            Self::Batch => BATCH_PAGES * page_bytes,
        }
    }
}

/// One program of the object, and where it goes.
#[derive(Debug)]
pub struct ProgramHook {
    /// Its name in the object.
    pub program: &'static str,
    /// What it is attached to.
    pub at: HookPoint,
    /// What its first arguments have to be.
    pub(super) arguments: &'static [Expected],
}

/// A place in the kernel that a program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint {
    /// A tracepoint, by BTF.
    Tracepoint(&'static str),
    /// Where a function begins, by BTF and a trampoline.
    Entry(&'static str),
    /// Where a function returns, by the same.
    Exit(&'static str),
    /// Where a function begins, by a breakpoint or what stands for one.
    Probe(&'static str),
    /// Where a function returns, by the same.
    ReturnProbe(&'static str),
}

impl HookPoint {
    /// The tracepoint, if it is one.
    pub fn tracepoint(self) -> Option<&'static str> {
        match self {
            Self::Tracepoint(name) => Some(name),
            Self::Entry(_) | Self::Exit(_) | Self::Probe(_) | Self::ReturnProbe(_) => None,
        }
    }

    /// The function, if it is one.
    pub fn function(self) -> Option<&'static str> {
        match self {
            Self::Tracepoint(_) => None,
            Self::Entry(name) | Self::Exit(name) | Self::Probe(name) | Self::ReturnProbe(name) => Some(name),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Expected {
    Struct(&'static str),
    Pointer,
    Number,
}

impl Expected {
    fn is(self, argument: &Argument) -> bool {
        match (self, argument) {
            (Self::Struct(name), Argument::Struct(found)) => name == found,
            (Self::Pointer, Argument::Pointer) | (Self::Number, Argument::Number) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Struct(name) => write!(f, "struct {name} *"),
            Self::Pointer => f.write_str("pointer"),
            Self::Number => f.write_str("number"),
        }
    }
}

/// A rung that is not tried, or did not hold, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedMethod {
    /// The rung's name.
    pub rung: &'static str,
    /// Why.
    pub why: String,
}

impl ClassPlan {
    /// Leaves out what goes only with another rung for charges than this one (empty: none).
    pub(super) fn only_beside(&mut self, charge: &str) {
        let Self { family: _, candidates, rejected } = self;
        candidates.retain(|rung| {
            let Some(CompanionProbe { rungs, when: _ }) = rung.beside else { return true };
            if rungs.contains(&charge) {
                return true;
            }
            let names: Vec<_> =
                rungs.iter().map(|name| if name.is_empty() { "no backend" } else { name }).collect();
            let why = format!("requires {}", names.join(" or "));
            rejected.push(RejectedMethod { rung: rung.name, why });
            false
        });
    }
}

/// What to try for one family.
#[derive(Debug)]
pub struct ClassPlan {
    /// Which family.
    pub family: EventClass,
    /// The rungs to try, best first.
    pub candidates: Vec<&'static AttachMethod>,
    /// Those that are not worth a try.
    pub rejected: Vec<RejectedMethod>,
}

/// Plans every family on these facts, of the rungs that may be used.
pub fn plan(facts: &KernelFacts, choice: &BackendSelection) -> Vec<ClassPlan> {
    EventClass::ALL
        .into_iter()
        .map(|family| {
            let mut candidates = Vec::new();
            let mut rejected = Vec::new();
            for rung in RUNGS.iter().filter(|rung| rung.family == family) {
                match rung.refusal(facts, choice) {
                    None => candidates.push(rung),
                    Some(why) => rejected.push(RejectedMethod { rung: rung.name, why }),
                }
            }
            ClassPlan { family, candidates, rejected }
        })
        .collect()
}

impl AttachMethod {
    /// Why it is not worth a try.
    fn refusal(&self, facts: &KernelFacts, choice: &BackendSelection) -> Option<String> {
        // A locked down kernel shows at the load what it refuses: programs that only follow typed
        // pointers run there too.
        let KernelFacts { btf, capabilities, lockdown: _, hierarchy } = facts;
        if let Some(why) = choice.refusal(self.name, ladder(self.family)) {
            return Some(why.into());
        }
        if let Some(lacking) = capabilities.lacking() {
            return Some(format!("no {lacking}"));
        }
        if let Err(why) = hierarchy {
            return Some(why.clone());
        }
        match btf {
            Err(why) => Some(why.clone()),
            Ok(btf) => self.hooks.iter().find_map(|hook| hook.refusal(btf)).or_else(|| self.lacking(btf)),
        }
    }

    fn lacking(&self, btf: &BtfFacts) -> Option<String> {
        self.needs
            .iter()
            .copied()
            .flatten()
            .find_map(|field| btf.resolved.why(field))
            .map(ToString::to_string)
    }

    /// What `check`, the log and the metrics say of it once it is attached.
    pub fn info(&self, rejected: &[RejectedMethod]) -> BackendInfo {
        // What ranks below it needs no reason.
        let above: Vec<_> = RUNGS.iter().take_while(|rung| rung.name != self.name).collect();
        let better: Vec<_> = rejected
            .iter()
            .filter(|rejected| above.iter().any(|rung| rung.name == rejected.rung))
            .cloned()
            .collect();
        BackendInfo {
            source: self.family.name(),
            rung: self.name,
            reason: if better.is_empty() { "the preferred backend".into() } else { list(&better) },
            sees_every_charge: self.sees_every_charge,
            grain_bytes: self.grain.bytes(rustix::param::page_size() as u64),
        }
    }
}

impl ProgramHook {
    fn refusal(&self, btf: &BtfFacts) -> Option<String> {
        let (what, name, found) = match self.at {
            HookPoint::Tracepoint(name) => ("tracepoint", name, btf.tracepoints.get(name)),
            HookPoint::Entry(name)
            | HookPoint::Exit(name)
            | HookPoint::Probe(name)
            | HookPoint::ReturnProbe(name) => ("function", name, btf.functions.get(name)),
        };
        let Some(found) = found else {
            return Some(format!("this kernel has no {what} {name}"));
        };
        for (place, expected) in self.arguments.iter().enumerate() {
            let argument = found.get(place);
            if !argument.is_some_and(|argument| expected.is(argument)) {
                let found = argument.map_or("absent".to_owned(), ToString::to_string);
                return Some(format!("argument {} of {name} is {found}, not {expected}", place + 1));
            }
        }
        None
    }
}

/// A family of which nothing is attached.
pub fn nothing(family: EventClass, rejected: &[RejectedMethod]) -> BackendInfo {
    BackendInfo::plain(family.name(), "", list(rejected))
}

fn list(rejected: &[RejectedMethod]) -> String {
    let each: Vec<_> = rejected.iter().map(|RejectedMethod { rung, why }| format!("{rung}: {why}")).collect();
    each.join("; ")
}

#[cfg(test)]
mod tests;
