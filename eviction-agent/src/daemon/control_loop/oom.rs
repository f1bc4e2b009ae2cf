//! The OOM story: kills and ends go to the engine, and what it says of them to people.

use std::time::Duration;

use eviction_bpf::OomKill;
use eviction_bpf::oom_limit_owner::{OomLimitOwner, attribute};
use eviction_core::decision::{Decision, DecisionKind};
use eviction_core::input::{Event, Input};
use eviction_core::oom::{ContainerEnded, EndHandling, EndSeen, OomUpdate};
use eviction_core::time::Timestamp;

use super::super::monitor::root_id;
use super::super::oom_attribution::{DescribedKill, KillCgroups, describe};
use super::ControlLoop;
use crate::telemetry::event_log;
use crate::telemetry::queue::TelemetryEvent;
use eviction_node::clock::mono_ns;

impl ControlLoop {
    /// Lets the engine take note of something. What it says of containers that ended is told,
    /// whatever the input was.
    pub(super) fn step(&mut self, input: Input) -> Decision {
        self.state.taken.outdate();
        let mut decision = self.engine.step(input);
        for ended in decision.ended.drain(..) {
            self.notes.send(TelemetryEvent::Ended(Box::new(ended), decision.at));
        }
        decision
    }

    /// A kill in a cgroup that came a moment ago needs the tree as it is now, and one in a cgroup
    /// that went since needs it as it was: it is read anew for the first of a kind that is not in it.
    pub(super) fn take_kills(&mut self, kills: &[OomKill]) {
        for kill in kills {
            if self.concerns_the_node(kill) {
                if self.state.tree_due_ns.is_some() && !self.knows_group_of(kill) {
                    self.refresh_tree();
                }
                self.take_kill(kill);
            }
        }
        if !kills.is_empty() {
            // A container may have ended by it: nothing else says so before the next full look.
            self.note_tree_change();
        }
    }

    fn knows_group_of(&self, kill: &OomKill) -> bool {
        let groups = self.eyes.sampler.tree().groups();
        kill.chain.first().is_none_or(|own| groups.iter().any(|group| group.id == own.id))
    }

    fn take_kill(&mut self, kill: &OomKill) {
        let killed = self.clock.at(kill.stamp.ktime_ns);
        let places = KillCgroups::of(kill, &self.eyes.sampler, &self.roster);
        let DescribedKill { kill: mut told, cgroup, owner_cgroup, trigger_cgroup } =
            describe(kill, killed.wall, &places, &self.roster, &mut self.mains);
        let near_since_ns = owner_of(kill).and_then(|owner| self.near_since_ns(owner));
        told.near_since = near_since_ns.map(|since_ns| self.clock.at(since_ns).wall);
        let at = self.clock.now().wall;
        let decision = self.step(Input { at, event: Event::OomKill(Box::new(told)) });
        let DecisionKind::Story(OomUpdate::Kill(note)) = decision.subject else { return };
        let told = event_log::OomKill::of(&note, kill.stamp.ktime_ns);
        let during_eviction = self.eviction_of(note.kill.pod.as_deref());
        let detected_by = self.hook.oom_rung();
        let near_limit_us = near_since_ns.map(|since_ns| kill.stamp.ktime_ns.saturating_sub(since_ns) / 1000);
        let told = event_log::OomKill { near_limit_us, ..told };
        let told = event_log::OomKill {
            cgroup,
            limit_cgroup: owner_cgroup,
            trigger_cgroup,
            detected_by,
            during_eviction,
            ..told
        };
        if let Some(told) = self.state.together.add(told, killed, mono_ns()) {
            self.notes.send(TelemetryEvent::OomKill(Box::new(told), killed));
        }
    }

    pub(super) fn eviction_of(&self, uid: Option<&str>) -> Option<u64> {
        self.executing().find(|it| uid == Some(&*it.pod.uid))?.decision
    }

    /// Tells of groups that were killed as a whole, of which no more victims come in.
    pub(super) fn tell_groups(&mut self, now_ns: u64) {
        for (kill, killed) in self.state.together.take_whole(now_ns) {
            self.notes.send(TelemetryEvent::OomKill(Box::new(kill), killed));
        }
    }

    /// Whether the victim is in the node's group, where that is not the whole machine.
    fn concerns_the_node(&self, kill: &OomKill) -> bool {
        let sampler = &self.eyes.sampler;
        let root = root_id(sampler);
        let known = !kill.pid_only && !kill.cut && !kill.chain.is_empty();
        sampler.root().whole_machine || !known || kill.chain.iter().any(|group| Some(group.id) == root)
    }

    /// Verdicts on ended containers that are due come with any input, also while looks decide
    /// nothing.
    pub(super) fn give_verdicts(&mut self, now: Timestamp) {
        if self.engine.story().due().is_some_and(|due| due <= now) {
            self.tell_pods();
        }
    }

    /// How long until one is due.
    pub(super) fn verdict_due(&self, now: Timestamp) -> Option<Duration> {
        let due = self.engine.story().due()?;
        let nanos = due.as_nanosecond().saturating_sub(now.as_nanosecond());
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
    }

    /// Containers that are gone from the tree as it was just read, or whose main process is.
    pub(crate) fn watch_containers(&mut self) {
        let now = self.clock.now().wall;
        let ends = self.mains.update(now, &self.eyes.sampler, &self.roster);
        self.tell_ends(ends);
    }

    /// What the pods' statuses tell of containers that ended.
    pub(super) fn take_statuses(&mut self) {
        let ends = self.statuses.update(&self.roster, &self.clock);
        self.tell_ends(ends);
    }

    fn tell_ends(&mut self, ends: Vec<ContainerEnded>) {
        let at = self.clock.now().wall;
        for end in ends {
            let decision = self.step(Input { at, event: Event::ContainerEnded(Box::new(end)) });
            let DecisionKind::Story(OomUpdate::End(note)) = decision.subject else { continue };
            if note.taken == EndHandling::Late && note.end.seen == EndSeen::Status {
                self.notes.send(TelemetryEvent::LateStatus(Box::new(note.end), at));
            }
        }
    }
}

/// The group whose limit it was.
fn owner_of(kill: &OomKill) -> Option<u64> {
    id_of(attribute(kill, rustix::param::page_size() as u64).owner)
}

fn id_of(owner: OomLimitOwner) -> Option<u64> {
    match owner {
        OomLimitOwner::Memcg(owner) => Some(owner.id),
        OomLimitOwner::Global | OomLimitOwner::Unknown => None,
    }
}
