//! Kills that only the kernel's counts tell of, where no program tells of kills.

use eviction_core::decision::DecisionKind;
use eviction_core::input::{Event, Input};
use eviction_core::oom::{KillUpdate, LimitScope, OomKill, OomUpdate};

use super::super::oom_attribution::KillCgroups;
use super::super::oom_counters::{CountedKills, InGroup};
use super::super::realtime;
use super::ControlLoop;
use crate::telemetry::event_log;
use crate::telemetry::queue::TelemetryEvent;
use eviction_node::clock::Instant;

/// A kill of which nobody knows whom is told to the engine one by one, up to so many at once.
const MOST: u64 = 1024;

/// Kills of one group, or of none that is known.
struct Counted {
    kill: OomKill,
    cgroup: Option<String>,
    owner_cgroup: Option<String>,
    seen_by: &'static str,
    kills: u64,
}

impl ControlLoop {
    /// Where no program tells of kills, the kernel is asked to say when a group runs out of memory.
    pub(super) fn follow_oom_notices(&mut self) {
        if self.hook.tells_of_kills() {
            // As long as no program did, the kernel said it; closing what it says it by takes its time.
            if let Some(watch) = self.oom_notice.rest() {
                realtime::let_go(watch);
            }
            return;
        }
        if let Err(error) = self.oom_notice.follow(self.eyes.sampler.tree()) {
            tracing::warn!(%error, "the kernel's notices of groups without memory are given up: counts are looked at");
        }
    }

    /// Exports the machine's count, and has those of the groups read at the end of the turn.
    pub(super) fn count_oom_kills(&mut self) {
        let kills = self.oom_counters.read_machine().known();
        self.metrics.vmstat_oom_kills.set(kills.map(|kills| i64::try_from(kills).unwrap_or(i64::MAX)));
        self.oom_counters.ask();
    }

    /// Tells of kills that only the counts show. That may read a file of every group, so it waits for the end of a
    /// turn.
    pub(super) fn tell_counted_kills(&mut self) {
        if self.hook.tells_of_kills() {
            return self.oom_counters.rest();
        }
        let at = self.clock.now();
        let Some(kills) = self.oom_counters.read(self.eyes.sampler.tree(), at.mono_ns) else { return };
        let CountedKills { in_groups, elsewhere, owners } = kills;
        for InGroup { group, kills } in in_groups {
            let counted = self.describe_counted(group, kills, &owners, at);
            self.tell_counted(counted, at);
        }
        if elsewhere > 0 {
            let kill = OomKill { at: Some(at.wall), ..OomKill::default() };
            let counted =
                Counted { kill, cgroup: None, owner_cgroup: None, seen_by: "vmstat", kills: elsewhere };
            self.tell_counted(counted, at);
        }
    }

    /// Its owner is the one group on the way up whose own limit was hit meanwhile, where the kernel
    /// tells of that.
    fn describe_counted(&mut self, group: u64, kills: u64, owners: &[u64], at: Instant) -> Counted {
        let places = KillCgroups::read(&self.eyes.sampler);
        let mut kill = OomKill { at: Some(at.wall), inferred: true, ..OomKill::default() };
        places.name_victim(&mut kill, group, &self.roster, &mut self.mains);
        let above = places.way_up(group);
        let mut hit = above.filter(|id| owners.contains(id));
        let owner = hit.next().filter(|_| hit.next().is_none());
        kill.owner = owner.map_or(LimitScope::Unknown, |id| places.kind(id));
        Counted {
            kill,
            cgroup: places.path(group),
            owner_cgroup: owner.and_then(|id| places.path(id)),
            seen_by: self.oom_counters.group_file(),
            kills,
        }
    }

    fn tell_counted(&mut self, counted: Counted, at: Instant) {
        let Counted { kill, cgroup, owner_cgroup, seen_by, kills } = counted;
        let mut last: Option<Box<KillUpdate>> = None;
        for _ in 0..kills.min(MOST) {
            let event = Event::OomKill(Box::new(kill.clone()));
            let decision = self.step(Input { at: at.wall, event });
            if let DecisionKind::Story(OomUpdate::Kill(note)) = decision.subject {
                last = Some(note);
            }
        }
        let Some(note) = last else { return };
        let told = event_log::OomKill {
            cgroup,
            limit_cgroup: owner_cgroup,
            detected_by: seen_by,
            unattributed: Some(kills),
            during_eviction: self.eviction_of(note.kill.pod.as_deref()),
            ..event_log::OomKill::of(&note, at.mono_ns)
        };
        self.notes.send(TelemetryEvent::OomKill(Box::new(told), at));
        self.note_tree_change();
    }
}
