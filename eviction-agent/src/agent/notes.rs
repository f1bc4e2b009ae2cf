//! What the reaction thread tells the slow side, through a bounded queue.
//!
//! When the queue is full the note is lost and counted: the reaction never waits.

use std::sync::Arc;

use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::action::{Outcome, PodName, Refused};
use crate::core::decision::Decision;
use crate::core::oom::EndedContainer;
use crate::core::reading::Why;
use crate::core::signal::Signal;
use crate::core::time::Timestamp;
use crate::metrics::Metrics;

use super::arming::Seen;
use super::clock::Instant;
use super::event;
use super::hook::Losses;
use super::tasks::PodTally;

/// Some seconds of the busiest node; each is a few hundred bytes.
const QUEUE: usize = 1024;

/// Something that people or metrics should know.
#[derive(Debug)]
pub(crate) enum Note {
    /// A pass in which something changed: thresholds, conditions, or a victim was chosen.
    Pass(Box<PassNote>),
    /// What came of an eviction.
    Outcome(OutcomeNote),
    /// The kernel killed a process.
    OomKill(Box<event::OomKill>, Instant),
    /// The kernel carried out a decision, at this instant.
    Reflex(Box<event::Reflex>, Instant),
    /// A container ended some time ago, and the verdict was given at this instant.
    Ended(Box<EndedContainer>, Timestamp),
    /// A signal cannot be read, for this reason; `None` if it can again.
    Unknown(Signal, Option<Why>, Instant),
    /// Pods and cgroups were joined anew; `reread`: with a list of pods that was read anew.
    Pods { pods: event::Pods, reread: bool, at: Instant },
    /// The pods file cannot be used any more; why.
    PodsInvalid(String, Instant),
    /// A changed configuration cannot be used; everything that is wrong with it.
    ConfigurationInvalid(Vec<String>, Instant),
    /// What the kernel side lost, in all.
    Lost(Box<Losses>, Instant),
    /// Too many tasks.
    Tasks(Box<event::Tasks>, Instant),
    /// What the tasks of pods did since the last one.
    Tally(Vec<PodTally>, Instant),
    /// A source has another rung now.
    Source(event::Source, Instant),
}

/// A pass with the circumstances of the look.
#[derive(Debug)]
pub(crate) struct PassNote {
    pub(crate) decision: Decision,
    /// The number of the first eviction in it; the others follow.
    pub(crate) first_id: u64,
    pub(crate) seen: Option<Seen>,
    pub(crate) seen_by: &'static str,
    /// The kernel's stamp of the crossing, if a record of it caused the look.
    pub(crate) crossed_mono_ns: Option<u64>,
    pub(crate) looked: Instant,
    pub(crate) decided_mono_ns: u64,
}

/// What came of a decision, one step of it.
#[derive(Debug)]
pub(crate) struct OutcomeNote {
    pub(crate) id: u64,
    pub(crate) pod: Arc<PodName>,
    pub(crate) signal: Option<Signal>,
    pub(crate) decided_mono_ns: u64,
    pub(crate) step: Step,
}

/// A step of an eviction, or why there is none.
#[derive(Debug)]
pub(crate) enum Step {
    Progress(Outcome),
    Refused(Refused),
}

/// The reaction's end of the queue.
#[derive(Clone, Debug)]
pub(crate) struct Notes {
    queue: Sender<Note>,
    metrics: Arc<Metrics>,
}

impl Notes {
    pub(crate) fn new(metrics: Arc<Metrics>) -> (Self, Receiver<Note>) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        (Self { queue, metrics }, receiver)
    }

    pub(crate) fn send(&self, note: Note) {
        if self.queue.try_send(note).is_err() {
            self.metrics.notes_dropped.inc();
        }
    }
}
