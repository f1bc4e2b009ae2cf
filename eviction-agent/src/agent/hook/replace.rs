//! The kernel side in place of which another one is loaded, since something of it is lost.

use std::time::Duration;

use crate::metrics::Metrics;
use crate::source::bpf::{Family, Refused, SourceInfo};

use super::super::clock::mono_ns;
use super::super::ladder::{Ladder, Lapse};
use super::super::told::Told;
use super::Hook;

/// After so many refusals one after the other nothing is loaded anew any more.
const REFUSALS: u32 = 5;

/// How often, and how long each time, the record of a verdict is waited for whose ticket is gone: a program that was
/// interrupted between the two goes on when it is its turn.
const RECORD_TRIES: u32 = 20;
const RECORD_PAUSE: Duration = Duration::from_micros(50);

/// Another kernel side is in use now.
pub(crate) struct Moved {
    /// The last that the old one told.
    pub(crate) told: Told,
    /// Every source of it.
    pub(crate) sources: Vec<SourceInfo>,
}

impl Hook {
    /// Finds out whether the kernel side still tells what it should, given the usage of each pod by
    /// the id of its cgroup; what it tells no more is loaded anew.
    pub(crate) fn examine(&mut self, pods: impl Iterator<Item = (u64, u64)>, now_ns: u64) -> Option<Lapse> {
        let ladder = self.ladder.as_mut()?;
        let lapse = match &self.loaded {
            Some((kernel, _)) => ladder.examine(kernel, pods).or_else(|| self.lapse.take())?,
            None => Lapse { source: "ring", rung: "", why: "nothing is loaded".to_owned() },
        };
        let replaces = ladder.replace(&lapse, now_ns);
        // Of one that was refused already it was told.
        let told = (replaces && self.refusals == 0).then(|| lapse.clone());
        self.lapse = Some(lapse);
        told
    }

    /// Whether a kernel side is being loaded in place of the present one.
    pub(crate) fn is_loading(&self) -> bool {
        self.ladder.as_ref().is_some_and(Ladder::is_loading)
    }

    /// Whether a hook for a time is being attached or taken off.
    pub(crate) fn is_changing(&self) -> bool {
        self.loaded.as_ref().is_some_and(|(kernel, _)| kernel.is_changing())
    }

    /// Takes the kernel side that was loaded in place of the present one, once it is there. Both
    /// are attached for a moment: what the old one has told is not told again.
    pub(crate) fn move_on(&mut self, metrics: &Metrics) -> Option<Moved> {
        let loaded = match self.ladder.as_mut()?.loaded()? {
            Ok(loaded) => loaded,
            Err(refused) => return self.refused(refused, metrics),
        };
        let now_ns = mono_ns();
        let told = self.last_told(metrics);
        self.since_ns = now_ns;
        self.leave(metrics);
        self.refusals = 0;
        let mut sources = loaded.kernel.sources().to_vec();
        sources.extend(loaded.missing.iter().cloned());
        if let Err(error) = self.adopt(loaded) {
            sources = Self::none(&format!("the ring buffer cannot be watched: {error}"));
        }
        Some(Moved { told, sources })
    }

    /// What is left of the present one is better than nothing, and it is tried again; not for ever, since each try takes
    /// time and memory.
    fn refused(&mut self, Refused { why, missing }: Refused, metrics: &Metrics) -> Option<Moved> {
        self.refusals += 1;
        if self.refusals >= REFUSALS {
            self.ladder = None;
        }
        if self.loaded.is_none() {
            self.leave(metrics);
            let sources = if missing.is_empty() { Self::none(&why) } else { missing };
            return Some(Moved { told: Told::default(), sources });
        }
        tracing::warn!(why, "no other rung can be loaded: what still works is kept");
        let lapse = self.lapse.as_ref()?;
        let lost = self.loaded.iter().flat_map(|(kernel, _)| kernel.sources());
        let lost = lost.filter(|info| info.source == lapse.source);
        let reason = format!("{}; no other one can be loaded: {why}", lapse.why);
        let sources =
            lost.map(|info| SourceInfo { rung: "", reason: reason.clone(), ..info.clone() }).collect();
        Some(Moved { told: Told::default(), sources })
    }

    /// The last that the present one tells. No verdict stands there any more, and the record of one that was carried out
    /// is waited for: nobody reads this ring again.
    fn last_told(&mut self, metrics: &Metrics) -> Told {
        let is_struck = self.stand_down();
        let mut told = Told::default();
        for _ in 0..RECORD_TRIES {
            let Some((_, ring)) = &mut self.loaded else { break };
            let drained = ring.drain(|event| self.beside.take(event, &mut told));
            told.missed |= self.count(drained, metrics);
            if !is_struck || told.struck.is_some() {
                break;
            }
            std::thread::sleep(RECORD_PAUSE);
        }
        self.forget_repeated(&mut told);
        told
    }

    /// What is said of every source when nothing is left.
    pub(crate) fn none(why: &str) -> Vec<SourceInfo> {
        let none = |family: Family| SourceInfo {
            source: family.name(),
            rung: "",
            reason: why.to_owned(),
            sees_every_charge: false,
            grain_bytes: 0,
        };
        Family::ALL.map(none).to_vec()
    }

    pub(super) fn forget_repeated(&self, told: &mut Told) {
        told.kills.retain(|kill| kill.stamp.ktime_ns >= self.since_ns);
    }
}
