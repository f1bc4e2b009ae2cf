//! The loop that owns the engine, on a thread of its own.
//!
//! It waits for the kernel side, the kernel's v1 threshold, a timer, outcomes and new pods;
//! looks at the node; lets the engine decide; hands victims to the executor; and arms the
//! kernel side again. Nothing here waits for anything slow.

mod again;
mod arm;
mod configuration;
mod lapse;
mod standing;
mod story;
mod tasks;
mod together;
mod tree;
mod unseen;
mod victims;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Receiver;

use crate::action::{Executor, Outcome, PodName};
use crate::core::decision::{Decision, ProposalState};
use crate::core::engine::Engine;
use crate::core::input::{Event, Input};
use crate::core::policy::{Policy, Victims};
use crate::core::rank::Candidate;
use crate::core::reading::{Reading, Why};
use crate::core::signal::{NodeCondition, Signal, SignalSet};
use crate::core::snapshot::Snapshot;
use crate::core::time::Timestamp;
use crate::metrics::{Metrics, SignalLabels, TriggerLabels};
use crate::source::bpf::Crossed;
use crate::source::cgroup::sample::Tasks;
use crate::source::oom_notice::OomNotice;
use crate::source::pace::FillRate;
use crate::source::timer::Timer;

use super::clock::{Clock, Instant, mono_ns};
use super::eyes::{Eyes, NodeLook};
use super::flight::Flight;
use super::hook::{Hook, Told};
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
use arm::next_grace;
use together::Together;

/// What the slow side asks for.
#[derive(Debug)]
pub(crate) enum Command {
    /// These are the pods now.
    Pods(Roster),
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
    pub(crate) v1: V1Threshold,
    pub(crate) v2: V2Triggers,
    pub(crate) timer: Timer,
    pub(crate) executor: Executor,
    pub(crate) outcomes: Receiver<Outcome>,
    pub(crate) notes: Notes,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) memory_lines: Lines,
    pub(crate) pid_lines: Lines,
    pub(crate) rate: FillRate,
    pub(crate) tally: Tally,
    pub(crate) state: State,
}

/// What the loop remembers from one turn to the next.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Holds up passes while a victim is under way, where the engine does not know of it.
    flight: Option<Flight>,
    /// Decisions so far: the next one's number.
    decisions: u64,
    under_way: Vec<UnderWay>,
    last_change: Change,
    unknown: [Option<Why>; Signal::COUNT],
    last_full_ns: u64,
    /// When something else than process ids is to be looked at.
    look_due_ns: u64,
    /// As of which full sample the engine was told of the pods.
    followed_ns: u64,
    tree_due_ns: Option<u64>,
    together: Together,
    last_left: Option<(u64, u64)>,
    /// The node's line of tasks is to be armed anew.
    tasks_told: bool,
    dirty: Vec<u64>,
    /// Room for the order of pods before it is decided on.
    ahead: Vec<Candidate>,
}

impl State {
    /// Nothing so far.
    pub(crate) fn new(victims: Victims) -> Self {
        Self { flight: Flight::of(victims), ..Self::default() }
    }
}

/// An eviction that has not come to an end.
#[derive(Debug)]
struct UnderWay {
    id: u64,
    pod: Arc<PodName>,
    signal: Option<Signal>,
    decided_mono_ns: u64,
}

/// What of a pass people want to be told when it changes.
#[derive(Debug, Default)]
struct Change {
    met: Vec<u8>,
    conditions: Vec<NodeCondition>,
    blind: SignalSet,
    refused: SignalSet,
    imminent: bool,
    /// Since when a changed configuration waits.
    waits: Option<Timestamp>,
}

/// Why the loop turns.
enum Wake {
    Kernel(Told),
    V1Threshold,
    /// By the rung of this name.
    V2Trigger(&'static str),
    OomNotice,
    Timer,
    Outcome(Outcome),
    Command(Command),
}

impl Wake {
    fn name(&self) -> &'static str {
        match self {
            Self::Kernel(_) => "charge",
            Self::V1Threshold => "v1_threshold",
            Self::V2Trigger(rung) => rung,
            Self::OomNotice => "oom_notice",
            Self::Timer => "timer",
            Self::Outcome(_) => "outcome",
            Self::Command(Command::Propose(_) | Command::Accept) => "configuration",
            Self::Command(Command::Pods(_) | Command::Stop) => "pods",
        }
    }
}

impl Reaction {
    /// Runs until told to stop.
    pub(crate) async fn run(mut self, mut commands: Receiver<Command>) {
        let roster = std::mem::take(&mut self.roster);
        self.take_pods(roster);
        self.warn_of_no_reflex();
        self.look("start", None);
        loop {
            let wake = tokio::select! {
                biased;
                // First, so that no storm of events keeps the agent from ending.
                command = commands.recv() => match command {
                    None | Some(Command::Stop) => {
                        self.tell_groups(u64::MAX);
                        return;
                    }
                    Some(command) => Wake::Command(command),
                },
                told = self.hook.told(&self.metrics) => Wake::Kernel(told),
                () = self.v1.crossed() => Wake::V1Threshold,
                rung = self.v2.fired() => Wake::V2Trigger(rung),
                () = self.oom_notice.noticed() => Wake::OomNotice,
                Some(outcome) = self.outcomes.recv() => Wake::Outcome(outcome),
                fired = self.timer.expired() => {
                    if let Err(error) = fired {
                        tracing::error!(%error, "waiting for the timer");
                        return;
                    }
                    Wake::Timer
                }
            };
            self.turn(wake);
        }
    }

    fn turn(&mut self, wake: Wake) {
        let mut trigger = wake.name();
        let crossed = match wake {
            Wake::Kernel(told) => {
                // After a kill the containers are looked at soon, which a look arms the timer for.
                let (killed, alarmed, missed) =
                    (!told.kills.is_empty(), !told.alarms.is_empty(), told.missed);
                match self.take_told(told) {
                    None if alarmed => {
                        trigger = "tasks";
                        None
                    }
                    None if !killed && !missed => return,
                    crossed => crossed,
                }
            }
            Wake::Timer if self.glimpse() => return,
            Wake::V1Threshold | Wake::V2Trigger(_) | Wake::Timer => None,
            Wake::OomNotice => {
                self.unseen.ask();
                None
            }
            Wake::Outcome(outcome) => {
                if !self.take_outcome(outcome) {
                    return;
                }
                None
            }
            Wake::Command(Command::Pods(roster)) => {
                // It was made under the policy of the start.
                let roster = roster.under(self.engine.policy());
                self.take_pods(roster);
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
        self.look(trigger, crossed);
    }

    /// One look at the node, a pass if one may be made, and everything armed anew.
    fn look(&mut self, trigger: &'static str, crossed: Option<Crossed>) {
        let at = self.clock.now();
        self.note_turn(trigger, at);
        let counted_kills = self.unseen.count(at.mono_ns);
        let told = self.hook.sweep(&mut self.state.dirty, &self.metrics);
        let crossed = self.take_told(told).or(crossed);
        if let Some(count) = counted_kills {
            self.look_for_unseen(count, at);
        }
        self.give_verdicts(at.wall);
        self.tell_groups(at.mono_ns);
        let look = self.eyes.look_at_node(at, &self.state.dirty);
        let (memory, pids) = self.eyes.available(&look);
        self.mark_sample(memory);
        self.note_reading(Signal::MemoryAvailable, memory, self.eyes.capacity().memory, at);
        self.note_reading(Signal::PidAvailable, pids, self.eyes.capacity().pids, at);
        if let Reading::Known(seen) = look.memory {
            let seen = seen.by_measure(self.eyes.capacity().memory, memory.known());
            self.rate.observe(at.mono_ns, seen.working_set);
        }
        let pids_pressed = pids.known().is_some_and(|left| self.pid_lines.may_be_met(left));
        let memory_pressed = memory.known().is_some_and(|left| self.memory_lines.may_be_met(left));
        // Whoever may go by prediction must have been seen.
        let pressed = pids_pressed || self.state.last_change.predicts() || memory_pressed;
        let mut grace_due = None;
        if !self.state.flight.as_mut().is_some_and(|flight| flight.holds(at.mono_ns)) {
            let ranks = pressed && self.engine.wants_pods(&self.eyes.node_stats(&look));
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
            grace_due = self.pass(trigger, crossed, &look, snapshot);
        }
        self.arm(&look, memory, pids, pressed, grace_due);
        self.stand(&look);
    }

    /// Lets the engine decide and carries out what it says. Returns when a grace period ends.
    fn pass(
        &mut self,
        trigger: &'static str,
        crossed: Option<Crossed>,
        look: &NodeLook,
        snapshot: Arc<Snapshot>,
    ) -> Option<Duration> {
        let at = look.at.wall;
        if self.engine.wants_layout() {
            // Standalone mode watches no disk: those signals are unknown whatever the layout.
            self.step(Input { at, event: Event::DiskLayout(Ok(Default::default())) });
        }
        let mut decision = self.step(Input { at, event: Event::Look(Arc::clone(&snapshot)) });
        if decision.awaits_reclaim() {
            decision = self.step(Input { at, event: Event::Reclaimed(Err(Why::Absent)) });
        }
        if let Some(ProposalState::TookEffect) = decision.proposal {
            self.adopt_policy();
        }
        let decided_mono_ns = mono_ns();
        let first_id = self.state.decisions + 1;
        self.carry_out(&decision, decided_mono_ns);
        let grace_due = next_grace(&decision);
        let evicts = self.state.decisions >= first_id;
        if self.state.last_change.take(&decision) || evicts {
            let note = PassNote {
                first_id,
                seen: look.memory.known(),
                seen_by: self.seen_by(trigger),
                crossed_mono_ns: crossed.map(|crossed| crossed.stamp.ktime_ns),
                looked: look.at,
                decided_mono_ns,
                decision,
            };
            self.notes.send(Note::Pass(Box::new(note)));
        } else {
            self.engine.recycle(decision);
            self.eyes.recycle(snapshot);
        }
        grace_due
    }

    fn note_turn(&self, trigger: &'static str, at: Instant) {
        self.metrics.looks.get_or_create(&TriggerLabels { trigger }).inc();
        self.metrics.last_turn.set(at.wall.as_millisecond() as f64 / 1000.0);
    }

    fn note_reading(&mut self, signal: Signal, available: Reading<i64>, capacity: u64, at: Instant) {
        let labels = SignalLabels { eviction_signal: signal.name() };
        let why = match available {
            Reading::Known(available) => {
                self.metrics.available.get_or_create(&labels).set(available);
                let capacity = i64::try_from(capacity).unwrap_or(i64::MAX);
                self.metrics.capacity.get_or_create(&labels).set(capacity);
                None
            }
            Reading::Unknown(why) => {
                self.metrics.unknown.get_or_create(&labels).inc();
                Some(why)
            }
        };
        let before = &mut self.state.unknown[signal as usize];
        if *before != why {
            *before = why;
            self.notes.send(Note::Unknown(signal, why, at));
        }
    }

    fn seen_by(&self, trigger: &'static str) -> &'static str {
        match trigger {
            "charge" => self.hook.charge_rung(),
            "tasks" => "fork hook",
            "v1_threshold" => "cgroup v1 usage threshold",
            other => other,
        }
    }
}

impl Change {
    /// Whether a threshold was about to be met.
    fn predicts(&self) -> bool {
        self.imminent
    }

    /// Takes note of a decision; true if something changed.
    fn take(&mut self, decision: &Decision) -> bool {
        let met = decision.pass().map_or(&[][..], |pass| &pass.met).iter().map(|met| met.line);
        let conditions = decision.conditions.iter().map(|raised| raised.condition);
        let same = met.clone().eq(self.met.iter().copied())
            && conditions.clone().eq(self.conditions.iter().copied());
        let sight = decision.pass().map(|pass| &pass.sight);
        let mut refused = SignalSet::EMPTY;
        for refusal in sight.map_or(&[][..], |sight| &sight.refused) {
            refused.insert(refusal.signal);
        }
        let imminent = sight.is_some_and(|sight| !sight.imminent.is_empty());
        let (waits, told) = match &decision.proposal {
            Some(ProposalState::Waits(waiting)) => (Some(waiting.since), false),
            Some(ProposalState::Unchanged | ProposalState::TookEffect) => (None, true),
            None => (None, false),
        };
        let beside = (decision.blind, refused, imminent, waits);
        let same = same && !told && beside == (self.blind, self.refused, self.imminent, self.waits);
        (self.blind, self.refused, self.imminent, self.waits) = beside;
        if !same {
            self.met.clear();
            self.met.extend(met);
            self.conditions.clear();
            self.conditions.extend(conditions);
        }
        !same
    }
}
