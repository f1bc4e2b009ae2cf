//! All groups at a glance, on a thread of its own: the kernel's iterator waits for whoever makes or
//! removes a cgroup, and the asking thread must not.
#![forbid(unsafe_code)]

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use crate::source::bpf::iter::Looked;
use crate::source::bpf::{GroupUsage, Usages};

/// So long a sample waits for it, else it reads file by file: ten times what it takes on a node of
/// 330 containers.
const PATIENCE: Duration = Duration::from_millis(2);

/// So many failures in a row, and it is asked no more.
const MOST_FAILURES: u32 = 3;

/// What came of glances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glances {
    /// Those that came.
    pub came: u64,
    /// For how many of all the kernel's tree was walked.
    pub walked: u64,
    /// Not in time: somebody else holds what the kernel needs for it, or there is no processor.
    pub late: u64,
    /// There was no room for all groups.
    pub incomplete: u64,
    /// The kernel said no.
    pub failed: u64,
}

type Answer = (Vec<GroupUsage>, io::Result<Looked>);

/// Asks the iterator.
#[derive(Debug)]
pub(super) struct Glancer {
    state: State,
    counts: Glances,
    failures: u32,
    rows: Vec<GroupUsage>,
    /// The tree was another when it was walked last.
    is_new: bool,
}

/// A question: where the answer goes, and whether the tree is to be walked for it.
#[derive(Debug)]
struct Question {
    rows: Vec<GroupUsage>,
    walk: bool,
}

#[derive(Debug)]
enum State {
    /// Nobody asked yet. The thread is made by the one that asks first, so that it is scheduled as
    /// that one is.
    Fresh(Box<Usages>),
    Running {
        ask: SyncSender<Question>,
        answers: Receiver<Answer>,
        /// It has been asked and has not answered.
        pending: bool,
    },
    Ended,
}

impl Glancer {
    pub(super) fn new(usages: Usages) -> Self {
        let state = State::Fresh(Box::new(usages));
        Self { state, counts: Glances::default(), failures: 0, rows: Vec::new(), is_new: true }
    }

    /// Groups came or went.
    pub(super) fn note_change(&mut self) {
        self.is_new = true;
    }

    /// What came of them since the last question.
    pub(super) fn take_counts(&mut self) -> Glances {
        std::mem::take(&mut self.counts)
    }

    /// The figures of all groups as of now; `None` if they cannot be had in time, or not of all.
    pub(super) fn look(&mut self) -> Option<&[GroupUsage]> {
        self.start();
        let State::Running { ask, answers, pending } = &mut self.state else { return None };
        if *pending {
            // What it answers now is of an earlier time.
            match answers.try_recv() {
                Ok((rows, _)) => self.rows = rows,
                Err(TryRecvError::Empty) => {
                    self.counts.late += 1;
                    return None;
                }
                Err(TryRecvError::Disconnected) => return self.end(),
            }
            *pending = false;
        }
        let question = Question { rows: std::mem::take(&mut self.rows), walk: self.is_new };
        if ask.send(question).is_err() {
            return self.end();
        }
        match answers.recv_timeout(PATIENCE) {
            Ok((rows, looked)) => {
                self.rows = rows;
                self.take(looked)
            }
            Err(RecvTimeoutError::Timeout) => {
                *pending = true;
                self.counts.late += 1;
                None
            }
            Err(RecvTimeoutError::Disconnected) => self.end(),
        }
    }

    fn take(&mut self, looked: io::Result<Looked>) -> Option<&[GroupUsage]> {
        match looked {
            Ok(Looked { left_out, walked }) => {
                self.failures = 0;
                self.is_new &= !walked;
                self.counts.walked += u64::from(walked);
                if left_out > 0 {
                    self.counts.incomplete += 1;
                    return None;
                }
                self.counts.came += 1;
                Some(&self.rows)
            }
            Err(_) => {
                self.counts.failed += 1;
                self.failures += 1;
                if self.failures >= MOST_FAILURES { self.end() } else { None }
            }
        }
    }

    fn start(&mut self) {
        if !matches!(self.state, State::Fresh(_)) {
            return;
        }
        let State::Fresh(usages) = std::mem::replace(&mut self.state, State::Ended) else { return };
        let (ask, asked) = sync_channel::<Question>(1);
        let (answer, answers) = sync_channel::<Answer>(1);
        let run = move || {
            let mut usages = usages;
            // Ends when nobody can ask any more.
            for Question { mut rows, walk } in asked {
                let looked = if walk { usages.walk(&mut rows) } else { usages.again(&mut rows) };
                if answer.send((rows, looked)).is_err() {
                    return;
                }
            }
        };
        const STACK: usize = 128 << 10;
        let thread = std::thread::Builder::new().name("glance".to_owned()).stack_size(STACK).spawn(run);
        if thread.is_ok() {
            self.state = State::Running { ask, answers, pending: false };
        }
    }

    fn end(&mut self) -> Option<&[GroupUsage]> {
        self.state = State::Ended;
        None
    }
}
