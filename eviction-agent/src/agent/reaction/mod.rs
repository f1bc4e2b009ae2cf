//! The loop that owns the engine, on a thread of its own.
//!
//! It waits for the kernel side, the kernel's v1 threshold, a timer, outcomes and new pods;
//! looks at the node; lets the engine decide; hands victims to the executor; and arms the
//! kernel side again. Nothing here waits for anything slow.

mod again;
mod allocatable;
mod answers;
mod arm;
mod configuration;
mod gauges;
mod keep;
mod lapse;
mod leaving;
mod limits;
mod outage;
mod recording;
mod rehearse;
mod standing;
mod state;
mod story;
mod tasks;
mod tell;
#[cfg(test)]
mod tests;
mod together;
mod tree;
mod unseen;
mod victims;
mod wake;

use std::sync::Arc;

use tokio::sync::mpsc::Receiver;

use crate::action::{Executor, Outcome};
use crate::core::decision::{Decision, ProposalState};
use crate::core::engine::Engine;
use crate::core::input::{Event, Input, Reach};
use crate::core::memory::Memory;
use crate::core::policy::Policy;
use crate::core::pressure::Seed;
use crate::core::reading::{Reading, Why};
use crate::core::signal::Signal;
use crate::core::snapshot::Snapshot;
use crate::core::time::Timestamp;
use crate::metrics::Metrics;
use crate::source::bpf::Crossed;
use crate::source::cgroup::sample::Tasks;
use crate::source::oom_notice::OomNotice;
use crate::source::pace::FillRate;
use crate::source::timer::Timer;

use super::clock::{Clock, Instant, mono_ns};
use super::cluster::{Evictions, NodeTeller};
use super::eyes::{Eyes, NodeLook};
use super::failure::Failure;
use super::hook::Hook;
use super::kept_free::KeptFree;
use super::limits::Limits;
use super::lines::Lines;
use super::mains::Mains;
use super::notes::{Note, Notes, PassNote};
use super::reflex::Reflex;
use super::roster::Roster;
use super::statuses::Statuses;
use super::tasks::Tally;
use super::unseen::Unseen;
use super::v1::V1Threshold;
use super::v2::V2Triggers;
use super::watchdog::Pulse;
use arm::next_grace;
pub(crate) use gauges::Gauges;
pub(crate) use keep::Keep;
pub(crate) use state::State;
use state::{ByApi, UnderWay};
pub(crate) use tell::{Copied, Copies};
use wake::{Trigger, Wake};

/// What the slow side asks for.
#[derive(Debug)]
pub(crate) enum Command {
    /// These are the pods now.
    Pods(Roster),
    /// The node's object says this from before the start.
    Seed(Box<Seed>),
    /// Whether the API server can be asked.
    ApiServer(Reach),
    /// The configuration was changed to this.
    Propose(Box<Policy>),
    /// A changed configuration that waits is to take effect.
    Accept,
    /// End.
    Stop,
}

/// Everything that the loop works with.
pub(crate) struct Reaction {
    pub(crate) clock: Clock,
    pub(crate) engine: Engine,
    pub(crate) eyes: Eyes,
    pub(crate) roster: Roster,
    pub(crate) mains: Mains,
    pub(crate) statuses: Statuses,
    pub(crate) unseen: Unseen,
    pub(crate) oom_notice: OomNotice,
    pub(crate) hook: Hook,
    pub(crate) reflex: Reflex,
    pub(crate) kept_free: KeptFree,
    pub(crate) v1: V1Threshold,
    pub(crate) v2: V2Triggers,
    pub(crate) timer: Timer,
    pub(crate) executor: Executor,
    /// In a cluster; else the executor does it all.
    pub(crate) evictions: Option<Evictions>,
    /// Where the node's own object is kept.
    pub(crate) node: Option<NodeTeller>,
    pub(crate) outcomes: Receiver<Outcome>,
    pub(crate) notes: Notes,
    pub(crate) copies: Copies,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) gauges: Gauges,
    pub(crate) pulse: Pulse,
    pub(crate) limits: Limits,
    pub(crate) memory_lines: Lines,
    pub(crate) pid_lines: Lines,
    pub(crate) rate: FillRate,
    pub(crate) tally: Tally,
    pub(crate) keep: Keep,
    /// Whether decisions are recorded.
    pub(crate) records: bool,
    pub(crate) state: State,
}

impl Reaction {
    /// Runs until told to stop.
    ///
    /// # Errors
    /// If the timer is of no use any more: without it nothing is sure to be looked at.
    pub(crate) async fn run(mut self, mut commands: Receiver<Command>) -> Result<(), Failure> {
        let roster = std::mem::take(&mut self.roster);
        self.take_pods(roster);
        self.warn_of_no_reflex();
        self.look(Trigger::Start, None);
        self.keep();
        self.pulse.rest(self.state.due_ns);
        while let Some(wake) = self.next(&mut commands).await? {
            self.pulse.turn(mono_ns());
            if let Some((trigger, crossed)) = self.take(wake) {
                self.look(trigger, crossed);
            }
            self.keep();
            self.pulse.rest(self.state.due_ns);
        }
        Ok(())
    }

    /// Waits for whatever happens next; nothing if that is the end.
    async fn next(&mut self, commands: &mut Receiver<Command>) -> Result<Option<Wake>, Failure> {
        Ok(Some(tokio::select! {
            biased;
            // First, so that no storm of events keeps the agent from ending.
            command = commands.recv() => match command {
                None | Some(Command::Stop) => {
                    self.tell_groups(u64::MAX);
                    return Ok(None);
                }
                Some(command) => Wake::Command(command),
            },
            told = self.hook.told(&self.metrics) => Wake::Kernel(told),
            () = self.v1.crossed() => Wake::V1Threshold,
            rung = self.v2.fired() => Wake::V2Trigger(rung),
            () = self.oom_notice.noticed() => Wake::OomNotice,
            Some(outcome) = self.outcomes.recv() => Wake::Outcome(outcome),
            fired = self.timer.expired() => {
                fired.map_err(|error| Failure::because("wait for the timer", &error))?;
                Wake::Timer
            }
        }))
    }

    /// Takes note of what happened. Returns why there is to be a look, if there is.
    fn take(&mut self, wake: Wake) -> Option<(Trigger, Option<Crossed>)> {
        let mut trigger = wake.trigger();
        let crossed = match wake {
            Wake::Kernel(told) => {
                // After a kill the containers are looked at soon, which a look arms the timer for.
                let (killed, alarmed, missed) =
                    (!told.kills.is_empty(), !told.alarms.is_empty(), told.missed);
                match self.take_told(told) {
                    None if alarmed => {
                        trigger = Trigger::Tasks;
                        None
                    }
                    None if !killed && !missed => {
                        self.turn_limits_alone();
                        return None;
                    }
                    crossed => crossed,
                }
            }
            Wake::Timer if self.glimpse() => return None,
            Wake::V1Threshold | Wake::V2Trigger(_) | Wake::Timer => None,
            Wake::OomNotice => {
                self.unseen.ask();
                None
            }
            Wake::Outcome(outcome) => {
                if !self.take_outcome(outcome) {
                    return None;
                }
                None
            }
            Wake::Command(Command::Pods(roster)) => {
                // It was made under the policy of the start.
                let roster = roster.under(self.engine.policy());
                self.take_pods(roster);
                None
            }
            Wake::Command(Command::Seed(seed)) => {
                let seed = self.node.as_mut().map_or(*seed, |node| node.seed(*seed));
                self.engine.seed_conditions(seed.raised());
                None
            }
            Wake::Command(Command::ApiServer(reach)) => {
                self.take_reach(reach);
                None
            }
            Wake::Command(Command::Propose(policy)) => {
                self.tell_configuration(Event::Propose(policy));
                None
            }
            Wake::Command(Command::Accept) => {
                self.tell_configuration(Event::Accept);
                None
            }
            Wake::Command(Command::Stop) => None,
        };
        Some((trigger, crossed))
    }

    /// One look at the node, a pass if one may be made, and everything armed anew.
    fn look(&mut self, trigger: Trigger, crossed: Option<Crossed>) {
        let reacted = self.react(trigger, crossed);
        self.follow(reacted);
    }

    /// Carries out what was decided, arms everything anew, and tells of it.
    fn follow(&mut self, Reacted { look, pressed, decided }: Reacted) {
        let Some(Decided { decision, memory, snapshot, trigger, crossed, mono_ns }) = decided else {
            self.arm(&look, pressed, None);
            self.stand(&look);
            return;
        };
        drop(snapshot);
        if let Some(ProposalState::TookEffect) = decision.proposal {
            self.adopt_policy();
        }
        // Before anybody is evicted: his replacement is not to come back.
        if let Some(node) = &mut self.node
            && node.take(&decision, self.engine.policy(), self.keep.next_number())
        {
            self.keep.note();
        }
        let first_id = self.state.decisions + 1;
        self.carry_out(&decision, mono_ns);
        let evicts = self.state.decisions >= first_id;
        let changed = self.state.last_change.take(&decision) || evicts;
        if changed {
            self.keep.note();
        }
        if evicts && self.evictions.is_some() {
            // The API server is asked when this is written, so it does not wait for the turn's end.
            self.keep();
        }
        let at_leisure = self.arm(&look, pressed, next_grace(&decision));
        if changed {
            let seen_by = self.seen_by(trigger);
            let before = self.before(memory, evicts);
            self.tell_pass(decision, |decision, copied| PassNote {
                first_id,
                seen: look.memory.known(),
                seen_by,
                crossed_mono_ns: crossed.map(|crossed| crossed.stamp.ktime_ns),
                looked: look.at,
                decided_mono_ns: mono_ns,
                before,
                decision,
                copied,
            });
        } else {
            self.recycle(decision);
        }
        self.stand(&look);
        if at_leisure {
            self.rehearse(&look);
        }
    }

    /// The way from whatever happened to the compact decision. Once every buffer has found its
    /// size it asks neither the allocator nor a lock, since whoever holds one may not run.
    fn react(&mut self, trigger: Trigger, crossed: Option<Crossed>) -> Reacted {
        let at = self.clock.now();
        self.note_turn(trigger, at);
        let counted_kills = self.unseen.count(at.mono_ns);
        let told = self.hook.sweep(&mut self.state.dirty, &self.metrics);
        let crossed = self.take_told(told).or(crossed);
        if let Some(count) = counted_kills {
            self.look_for_unseen(count, at);
        }
        self.give_verdicts(at.wall);
        self.review_leaving(at.mono_ns);
        self.tell_groups(at.mono_ns);
        let look = self.eyes.look_at_node(at, &self.state.dirty);
        self.mark_sample(look.memory_left);
        let (memory, pids) = (look.memory_left, look.pids_left);
        self.note_reading(Signal::MemoryAvailable, memory, at);
        self.note_reading(Signal::PidAvailable, pids, at);
        self.note_allocatable(&look, at);
        if let Reading::Known(seen) = look.measured {
            self.rate.observe(at.mono_ns, seen.working_set);
        }
        let pids_pressed = pids.known().is_some_and(|left| self.pid_lines.may_be_met(left));
        let memory_pressed = memory.known().is_some_and(|left| self.memory_lines.may_be_met(left))
            || self.eyes.allocatable.may_be_met();
        // Whoever may go by prediction must have been seen.
        let pressed = pids_pressed || self.state.last_change.predicts() || memory_pressed;
        let holds = self.state.flight.as_mut().is_some_and(|flight| flight.holds(at.mono_ns));
        if holds || self.awaits_answer() {
            return Reacted { look, pressed, decided: None };
        }
        let ranks = pressed && self.engine.wants_pods(&look.stats);
        let with_pods = ranks || self.state.last_change.predicts() || self.follows_pods();
        let snapshot = match with_pods {
            true => {
                let tasks = if pids_pressed { Tasks::Count } else { Tasks::Leave };
                self.see_pods(&look, tasks, memory_pressed)
            }
            false => {
                let builder = self.eyes.snapshot_of_node(&look);
                self.eyes.finish(builder, self.engine.pods())
            }
        };
        let memory = with_pods.then(|| self.memory_to_record()).flatten();
        let decision = self.pass(at.wall, &snapshot);
        let decided = Decided { decision, memory, snapshot, trigger, crossed, mono_ns: mono_ns() };
        Reacted { look, pressed, decided: Some(decided) }
    }

    /// Lets the engine decide.
    fn pass(&mut self, at: Timestamp, snapshot: &Arc<Snapshot>) -> Decision {
        if self.engine.wants_layout() {
            // Standalone mode watches no disk: those signals are unknown whatever the layout.
            self.step(Input { at, event: Event::DiskLayout(Ok(Default::default())) });
        }
        let mut decision = self.step(Input { at, event: Event::Look(Arc::clone(snapshot)) });
        if decision.awaits_reclaim() {
            decision = self.step(Input { at, event: Event::Reclaimed(Err(Why::Absent)) });
        }
        decision
    }

    fn note_turn(&self, trigger: Trigger, at: Instant) {
        self.gauges.look(trigger);
        self.metrics.last_turn.set(self.clock.shown(at.wall).as_millisecond() as f64 / 1000.0);
    }

    fn note_reading(&mut self, signal: Signal, available: Reading<i64>, at: Instant) {
        self.gauges.reading(signal, available, self.eyes.capacity());
        let why = match available {
            Reading::Known(_) => None,
            Reading::Unknown(why) => Some(why),
        };
        self.note_unknown(signal, why, at);
    }

    fn note_unknown(&mut self, signal: Signal, why: Option<Why>, at: Instant) {
        let before = &mut self.state.unknown[signal as usize];
        if *before != why {
            *before = why;
            self.notes.send(Note::Unknown(signal, why, at));
        }
    }

    fn seen_by(&self, trigger: Trigger) -> &'static str {
        match trigger {
            Trigger::Charge => self.hook.charge_rung(),
            Trigger::Tasks => "fork hook",
            Trigger::V1Threshold => "cgroup v1 usage threshold",
            Trigger::V2(rung) => rung,
            other => other.name(),
        }
    }
}

/// What a look came to, before anything is done about it or told of it.
struct Reacted {
    look: NodeLook,
    pressed: bool,
    decided: Option<Decided>,
}

/// A decision and what led to it.
struct Decided {
    decision: Decision,
    /// What the engine knew before, if it is to be recorded.
    memory: Option<Memory>,
    snapshot: Arc<Snapshot>,
    trigger: Trigger,
    crossed: Option<Crossed>,
    mono_ns: u64,
}
