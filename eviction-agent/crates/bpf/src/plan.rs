//! Decides which methods to try for each class of events, best first, and why not the others. It depends on
//! facts alone ([`KernelFacts`]), so that a test can describe every kernel. Whether a method works shows when
//! it is loaded.
#![forbid(unsafe_code)]

pub use eviction_node::backend::BackendInfo;
use eviction_node::backend::BackendSelection;

use super::{
    attach_methods::{ATTACH_METHODS, AttachMethod, EventClass, HookPoint, ProgramHook, backends},
    capabilities::{KernelFacts, missing_capabilities},
    offsets::BtfFacts,
};

/// A method that may be tried.
#[derive(Debug)]
pub struct MethodCandidate {
    /// The method.
    pub method: &'static AttachMethod,
    /// Why it is not tried, or did not work.
    pub refusal: Option<String>,
}

/// Plans every class on these facts, with the methods that may be used. Returns the methods of each class, best
/// first.
pub fn plan(facts: &KernelFacts, choice: &BackendSelection) -> Vec<(EventClass, Vec<MethodCandidate>)> {
    let candidates = |class| {
        let methods = ATTACH_METHODS.iter().filter(move |method| method.class == class);
        methods.map(|method| MethodCandidate { method, refusal: method.refusal(facts, choice) }).collect()
    };
    EventClass::ALL.map(|class| (class, candidates(class))).into()
}

/// Refuses the on-demand probes that do not accompany this method (`""`: no method).
pub(super) fn refuse_other_probes(accompanied: &str, candidates: &mut [MethodCandidate]) {
    for MethodCandidate { method, refusal } in candidates.iter_mut().filter(|it| it.refusal.is_none()) {
        if method.when.is_some() && !method.accompanies.contains(&accompanied) {
            let names =
                method.accompanies.iter().map(|name| if name.is_empty() { "no backend" } else { name });
            *refusal = Some(format!("requires {}", names.collect::<Vec<_>>().join(" or ")));
        }
    }
}

/// Returns the description of a class for `check`, the log and the metrics: of the first method that is not
/// refused, with the reasons against better ones.
pub fn info(class: EventClass, candidates: &[MethodCandidate]) -> BackendInfo {
    let refused = candidates.iter().map_while(|MethodCandidate { method, refusal }| {
        let why = refusal.as_ref()?;
        Some(format!("{}: {why}", method.name))
    });
    let refused = refused.collect::<Vec<_>>();
    let reason = refused.join("; ");
    let Some(MethodCandidate { method, .. }) = candidates.get(refused.len()) else {
        return BackendInfo::plain(class.name(), "", reason);
    };
    BackendInfo {
        source: class.name(),
        backend: method.name,
        reason: if reason.is_empty() { "the preferred backend".into() } else { reason },
        sees_every_charge: method.sees_every_charge,
        granularity_bytes: (method.granularity)(rustix::param::page_size() as u64),
    }
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
                needs.find_map(|field| btf.why(field)).map(str::to_owned)
            }),
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

#[cfg(test)]
mod tests;
