//! Which methods to try for each class of events, best first, and why the others not. Decides
//! on facts alone ([`KernelFacts`]), so that a test can describe every kernel; whether a method holds
//! shows when it is loaded.
#![forbid(unsafe_code)]

pub use eviction_node::backend::BackendInfo;
use eviction_node::backend::BackendSelection;

use super::{
    attach_methods::{
        ATTACH_METHODS, AttachMethod, CompanionProbe, EventClass, HookPoint, ProgramHook, backends,
    },
    capabilities::{BtfFacts, KernelFacts, lacking},
};

/// A method that is not tried, or did not hold, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedMethod {
    /// The method's name.
    pub method: &'static str,
    /// Why.
    pub why: String,
}

impl ClassPlan {
    /// Leaves out what goes only with another method for charges than this one (empty: none).
    pub(super) fn only_with(&mut self, charge: &str) {
        let Self { class: _, candidates, rejected } = self;
        candidates.retain(|method| {
            let Some(CompanionProbe { methods, when: _ }) = method.companion else { return true };
            if methods.contains(&charge) {
                return true;
            }
            let names: Vec<_> =
                methods.iter().map(|name| if name.is_empty() { "no backend" } else { name }).collect();
            let why = format!("requires {}", names.join(" or "));
            rejected.push(RejectedMethod { method: method.name, why });
            false
        });
    }
}

/// What to try for one class.
#[derive(Debug)]
pub struct ClassPlan {
    /// Which class.
    pub class: EventClass,
    /// The methods to try, best first.
    pub candidates: Vec<&'static AttachMethod>,
    /// Those that are not worth a try.
    pub rejected: Vec<RejectedMethod>,
}

/// Plans every class on these facts, of the methods that may be used.
pub fn plan(facts: &KernelFacts, choice: &BackendSelection) -> Vec<ClassPlan> {
    EventClass::ALL
        .into_iter()
        .map(|class| {
            let mut candidates = Vec::new();
            let mut rejected = Vec::new();
            for method in ATTACH_METHODS.iter().filter(|method| method.class == class) {
                match method.refusal(facts, choice) {
                    None => candidates.push(method),
                    Some(why) => rejected.push(RejectedMethod { method: method.name, why }),
                }
            }
            ClassPlan { class, candidates, rejected }
        })
        .collect()
}

impl AttachMethod {
    /// Why it is not worth a try.
    fn refusal(&self, facts: &KernelFacts, choice: &BackendSelection) -> Option<String> {
        // A locked down kernel shows at the load what it refuses: programs that only follow typed
        // pointers run there too.
        let KernelFacts { btf, capabilities, lockdown: _, hierarchy } = facts;
        if let Some(why) = choice.refusal(self.name, backends(self.class)) {
            return Some(why.into());
        }
        if let Some(lacking) = lacking(*capabilities) {
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
        let above: Vec<_> = ATTACH_METHODS.iter().take_while(|method| method.name != self.name).collect();
        let better: Vec<_> = rejected
            .iter()
            .filter(|rejected| above.iter().any(|method| method.name == rejected.method))
            .cloned()
            .collect();
        BackendInfo {
            source: self.class.name(),
            backend: self.name,
            reason: if better.is_empty() { "the preferred backend".into() } else { list(&better) },
            sees_every_charge: self.sees_every_charge,
            granularity_bytes: self.granularity.bytes(rustix::param::page_size() as u64),
        }
    }
}

impl ProgramHook {
    fn refusal(&self, btf: &BtfFacts) -> Option<String> {
        let (what, name, found) = match self.at {
            HookPoint::Tracepoint(name) | HookPoint::RawTracepoint(name) => {
                ("tracepoint", name, btf.tracepoints.get(name))
            }
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

/// A class of which nothing is attached.
pub fn nothing(class: EventClass, rejected: &[RejectedMethod]) -> BackendInfo {
    BackendInfo::plain(class.name(), "", list(rejected))
}

fn list(rejected: &[RejectedMethod]) -> String {
    let each: Vec<_> =
        rejected.iter().map(|RejectedMethod { method, why }| format!("{method}: {why}")).collect();
    each.join("; ")
}

#[cfg(test)]
mod tests;
