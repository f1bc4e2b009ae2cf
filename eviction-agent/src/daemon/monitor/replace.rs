//! The kernel side in place of which another one is loaded, since something of it is lost.

use std::time::Duration;

use crate::telemetry::metrics::Metrics;
use eviction_bpf::{BackendInfo, EventClass, LoadError, Loaded, attach_methods};

use super::super::event_batch::EventBatch;
use super::super::failover::{self, BackendFailover, BackendFailure};
use super::super::realtime;
use super::BpfMonitor;
use eviction_node::clock::mono_ns;

/// After so many refusals one after the other nothing is loaded anew any more.
const REFUSALS: u32 = 5;

/// How often, and how long each time, the record of a verdict is waited for whose ticket is gone: a program that was
/// interrupted between the two goes on when it is its turn.
const RECORD_TRIES: u32 = 20;
const RECORD_PAUSE: Duration = Duration::from_micros(50);

/// Another kernel side is in use now.
pub(crate) struct BackendChanged {
    /// The last that the old one told.
    pub(crate) told: EventBatch,
    /// Every source of it.
    pub(crate) sources: Vec<BackendInfo>,
}

impl BpfMonitor {
    /// Finds out whether the kernel side still tells what it should, given the usage of each pod by
    /// the id of its cgroup; what it tells no more is loaded anew. What is lost, told once.
    pub(crate) fn examine(
        &mut self,
        pods: impl Iterator<Item = (u64, u64)>,
        now_ns: u64,
    ) -> impl Iterator<Item = &BackendFailure> {
        if let Some(ladder) = &mut self.ladder {
            match &self.loaded {
                Some((kernel, _)) => ladder.examine(kernel, pods, &mut self.lapses),
                None => {
                    let why = "nothing is loaded".to_owned();
                    failover::note(&mut self.lapses, BackendFailure { source: "ring", rung: "", why });
                }
            }
            // What was refused may not be so for what is lost since.
            if self.lapses.len() > self.told {
                self.refusals = 0;
            }
            // Not for ever, since each try takes time and memory.
            if !self.lapses.is_empty() && self.refusals < REFUSALS {
                ladder.replace(&self.lapses, now_ns);
            }
        }
        let before = std::mem::replace(&mut self.told, self.lapses.len());
        self.lapses.iter().skip(before)
    }

    /// Whether nothing is told of it any more.
    pub(super) fn is_lost(&self, source: &str) -> bool {
        self.lapses.iter().any(|lapse| lapse.source == source)
    }

    /// Whether a kernel side is being loaded in place of the present one.
    pub(crate) fn is_loading(&self) -> bool {
        self.ladder.as_ref().is_some_and(BackendFailover::is_loading)
    }

    /// Whether a hook for a time is being attached or taken off.
    pub(crate) fn is_changing(&self) -> bool {
        self.loaded.as_ref().is_some_and(|(kernel, _)| kernel.is_changing())
    }

    /// Takes the kernel side that was loaded in place of the present one, once it is there. Both
    /// are attached for a moment: what the old one has told is not told again.
    pub(crate) fn move_on(&mut self, metrics: &Metrics) -> Option<BackendChanged> {
        let loaded = match self.ladder.as_mut()?.loaded()? {
            Ok(loaded) => loaded,
            Err(refused) => return Some(self.refused(refused, metrics)),
        };
        // What is lost for good keeps nothing else from being put right.
        let is_last = self.refusals + 1 >= REFUSALS;
        let lost = self.lost_meanwhile(&loaded).filter(|_| !is_last);
        let objection =
            lost.map(|lost| format!("{lost} was lost as well while it was loaded")).or_else(|| {
                let lacks = self.lacks(&loaded, !is_last)?;
                Some(format!("{} would be missing: {}", lacks.source, lacks.reason))
            });
        if let Some(why) = objection {
            realtime::let_go(loaded.kernel);
            return Some(self.refused(LoadError { why, missing: Vec::new() }, metrics));
        }
        let now_ns = mono_ns();
        let told = self.last_told(metrics);
        self.since_ns = now_ns;
        self.leave(metrics);
        let mut sources = loaded.kernel.sources().to_vec();
        sources.extend(loaded.missing.iter().cloned());
        if let Err(error) = self.adopt(loaded) {
            sources = Self::none(&format!("the ring buffer cannot be watched: {error}"));
        }
        Some(BackendChanged { told, sources })
    }

    /// A rung of that one that is known to be lost since loading it began.
    fn lost_meanwhile(&self, loaded: &Loaded) -> Option<&'static str> {
        let ladder = self.ladder.as_ref()?;
        let of_charges = [EventClass::Charge, EventClass::Near].map(EventClass::name);
        let is_lapsed = |rung: &str| {
            self.lapses.iter().any(|lapse| lapse.rung == rung && of_charges.contains(&lapse.source))
        };
        let mut rungs = loaded.kernel.sources().iter().map(|info| info.rung);
        rungs.find(|rung| ladder.is_given_up(rung) || is_lapsed(rung))
    }

    /// What that one lacks that the present one still has, in the same or a better way, or, if `all`, that it is to bring
    /// back: the machine may be short of something at this moment. Hooks for a time go with those that they are beside.
    fn lacks(&self, loaded: &Loaded, all: bool) -> Option<BackendInfo> {
        let (kernel, _) = self.loaded.as_ref()?;
        let (present, new) = (kernel.sources(), loaded.kernel.sources());
        let rung_in = |sources: &[BackendInfo], family: EventClass| {
            sources.iter().find(|info| info.source == family.name()).map(|info| info.rung)
        };
        let is_same = |family| rung_in(present, family) == rung_in(new, family);
        let is_lacking = |family: &EventClass| {
            let Some(had) = rung_in(present, *family) else { return false };
            match (self.is_lost(family.name()), *family) {
                (true, EventClass::Near) => false,
                (true, _) => all && rung_in(new, *family).is_none(),
                (false, EventClass::Near) if !is_same(EventClass::Charge) => false,
                (false, family) => {
                    rung_in(new, family).is_none_or(|has| place(family, has) > place(family, had))
                }
            }
        };
        let lacking = EventClass::ALL.into_iter().find(is_lacking)?.name();
        let said = loaded.missing.iter().chain(new).chain(present);
        said.into_iter().find(|info| info.source == lacking).cloned()
    }

    /// What is left of the present one is better than nothing, and it is tried again.
    fn refused(&mut self, LoadError { why, missing }: LoadError, metrics: &Metrics) -> BackendChanged {
        self.refusals += 1;
        let told = EventBatch::default();
        if self.loaded.is_none() {
            self.leave(metrics);
            let sources = if missing.is_empty() { Self::none(&why) } else { missing };
            return BackendChanged { told, sources };
        }
        tracing::warn!(why, "nothing can be loaded in place of what is lost: what still works is kept");
        let lost = self.lapses.iter().map(|BackendFailure { source, rung: _, why: lost }| {
            BackendInfo::plain(source, "", format!("{lost}; nothing can be loaded in its place: {why}"))
        });
        BackendChanged { told, sources: lost.collect() }
    }

    /// The last that the present one tells. No verdict stands there any more, and the record of one that was carried out
    /// is waited for: nobody reads this ring again.
    fn last_told(&mut self, metrics: &Metrics) -> EventBatch {
        let is_carried_out = self.stand_down();
        let mut told = EventBatch::default();
        for _ in 0..RECORD_TRIES {
            let Some((_, ring)) = &mut self.loaded else { break };
            let drained = ring.drain(|event| self.beside.take(event, &mut told));
            told.missed |= self.count(drained, metrics);
            if !is_carried_out || told.kernel_kill.is_some() {
                break;
            }
            std::thread::sleep(RECORD_PAUSE);
        }
        self.forget_repeated(&mut told);
        told
    }

    /// What is said of every source when nothing is left.
    pub(crate) fn none(why: &str) -> Vec<BackendInfo> {
        EventClass::ALL.map(|family| BackendInfo::plain(family.name(), "", why)).to_vec()
    }

    pub(super) fn forget_repeated(&self, told: &mut EventBatch) {
        told.kills.retain(|kill| kill.stamp.ktime_ns >= self.since_ns);
    }
}

/// Where a rung is on its ladder: the best is the first.
fn place(family: EventClass, rung: &str) -> Option<usize> {
    attach_methods::ladder(family).position(|name| name == rung)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_bpf::LoadOptions;
    use eviction_node::backend_selection::BackendSelection;

    #[test]
    fn what_is_lost_is_told_once_and_what_nothing_tells_of_has_no_rung() {
        let deny = attach_methods::names().map(str::to_owned).collect();
        let options = LoadOptions {
            choice: BackendSelection { deny, ..BackendSelection::default() },
            ..LoadOptions::default()
        };
        let mut hook = BpfMonitor { ladder: Some(BackendFailover::new(options)), ..BpfMonitor::default() };
        let near = BackendFailure { source: EventClass::Near.name(), rung: "x", why: "refused".to_owned() };
        failover::note(&mut hook.lapses, near.clone());
        failover::note(&mut hook.lapses, near);
        let mut told = |now_ns| {
            let lapses = hook.examine(std::iter::empty(), now_ns);
            lapses.map(|lapse| lapse.source).collect::<Vec<_>>()
        };
        assert_eq!(told(0), ["charge near", "ring"]);
        assert!(told(1).is_empty());
        assert!(hook.is_lost("ring") && hook.is_lost("charge near") && !hook.is_lost("charge"));
        let metrics = Metrics::new("", "");
        for refusals in 1..=REFUSALS {
            let moved = loop {
                match hook.move_on(&metrics) {
                    Some(moved) => break moved,
                    None => std::thread::yield_now(),
                }
            };
            assert!(moved.sources.iter().all(|info| info.rung.is_empty()), "{:?}", moved.sources);
            assert_eq!(hook.refusals, refusals);
            let later = u64::from(refusals) * 60_000_000_000;
            assert_eq!(hook.examine(std::iter::empty(), later).count(), 0, "it was told");
            assert_eq!(hook.is_loading(), refusals < REFUSALS, "not for ever");
        }
    }
}
