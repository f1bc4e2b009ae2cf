//! Which rungs to try for each family of events, best first, and why the others not. Decides
//! on facts alone ([`KernelFacts`]), so that every kernel can be told about in a test; whether a rung holds
//! shows when it is loaded.
#![forbid(unsafe_code)]

pub use eviction_node::backend_info::BackendInfo;
use eviction_node::backend_selection::BackendSelection;

use super::{
    attach_method::{AttachMethod, CompanionProbe, EventClass, HookPoint, ProgramHook},
    attach_methods::{RUNGS, ladder},
    capabilities::{BtfFacts, KernelFacts},
};

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
