//! Decides which methods to try for each class of events, best first, and why not the others. It depends on
//! facts alone ([`KernelFacts`]), so that a test can describe every kernel. Whether a method works shows when
//! it is loaded.
#![forbid(unsafe_code)]

pub use eviction_node::backend::BackendInfo;
use eviction_node::backend::BackendSelection;

use super::{
    attach_methods::{
        ATTACH_METHODS, AttachMethod, CompanionProbe, EventClass, HookPoint, ProgramHook, backends,
    },
    capabilities::{BtfFacts, KernelFacts, missing_capabilities},
};

/// A method that is not tried, or that did not work, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedMethod {
    /// The method's name.
    pub method: &'static str,
    /// The reason.
    pub why: String,
}

/// The methods to try for one class.
#[derive(Debug)]
pub struct ClassPlan {
    /// The class.
    pub class: EventClass,
    /// The methods to try, best first.
    pub candidates: Vec<&'static AttachMethod>,
    /// The methods that are not tried.
    pub rejected: Vec<RejectedMethod>,
}

impl ClassPlan {
    /// Removes the on-demand probes that do not accompany this method (empty: no method).
    pub(super) fn retain_probes_for(&mut self, accompanied: &str) {
        let Self { class: _, candidates, rejected } = self;
        candidates.retain(|method| {
            let Some(CompanionProbe { methods, when: _ }) = method.companion else { return true };
            let is_companion = methods.contains(&accompanied);
            if !is_companion {
                let names = methods.iter().map(|name| if name.is_empty() { "no backend" } else { name });
                let why = format!("requires {}", names.collect::<Vec<_>>().join(" or "));
                rejected.push(RejectedMethod { method: method.name, why });
            }
            is_companion
        });
    }
}

/// Plans every class on these facts, with the methods that may be used.
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
    /// Returns why the method is not tried; `None` if it is.
    fn refusal(&self, facts: &KernelFacts, choice: &BackendSelection) -> Option<String> {
        // Lockdown is not checked here. A kernel that is locked down refuses programs at the load, and programs
        // that only follow typed pointers run there too.
        let KernelFacts { btf, capabilities, lockdown: _, hierarchy } = facts;
        if let Some(why) = choice.refusal(self.name, backends(self.class)) {
            return Some(why.into());
        }
        if let Some(missing) = missing_capabilities(*capabilities) {
            return Some(format!("no {missing}"));
        }
        if let Err(why) = hierarchy {
            return Some(why.clone());
        }
        match btf {
            Err(why) => Some(why.clone()),
            Ok(btf) => self.hooks.iter().find_map(|hook| hook.refusal(btf)).or_else(|| {
                let mut needs = self.needs.iter().copied().flatten();
                needs.find_map(|field| btf.resolved.why(field)).map(str::to_owned)
            }),
        }
    }

    /// Returns the description for `check`, the log and the metrics, for a method that is attached.
    pub fn info(&self, rejected: &[RejectedMethod]) -> BackendInfo {
        // Methods that rank below it need no reason.
        let names = ATTACH_METHODS.iter().map(|method| method.name);
        let above: Vec<_> = names.take_while(|name| *name != self.name).collect();
        let reason = format_rejected(rejected.iter().filter(|rejected| above.contains(&rejected.method)));
        BackendInfo {
            source: self.class.name(),
            backend: self.name,
            reason: if reason.is_empty() { "the preferred backend".into() } else { reason },
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
        for (index, expected) in self.arguments.iter().enumerate() {
            let argument = found.get(index);
            if !argument.is_some_and(|argument| expected.matches(argument)) {
                let found = argument.map_or("absent".to_owned(), ToString::to_string);
                return Some(format!("argument {} of {name} is {found}, not {expected}", index + 1));
            }
        }
        None
    }
}

/// Returns the description of a class without an attached program.
pub fn no_backend(class: EventClass, rejected: &[RejectedMethod]) -> BackendInfo {
    BackendInfo::plain(class.name(), "", format_rejected(rejected))
}

fn format_rejected<'r>(rejected: impl IntoIterator<Item = &'r RejectedMethod>) -> String {
    let each = rejected.into_iter().map(|RejectedMethod { method, why }| format!("{method}: {why}"));
    each.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
