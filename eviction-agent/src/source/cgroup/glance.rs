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
    /// For how many of these the kernel's tree was walked.
    pub walked: u64,
    /// Not in time: somebody else holds what the kernel needs for it, or there is no processor.
    pub late: u64,
    /// There was no room for all groups.
    pub incomplete: u64,
    /// The kernel said no.
    pub failed: u64,
    /// From now on there are none: the kernel said no again and again, or there is no thread for it.
    pub ended: bool,
}

type Answer = (Vec<GroupUsage>, io::Result<Looked>);

/// Asks the iterator.
#[derive(Debug)]
pub(super) struct Glancer {
    state: State,
    counts: Glances,
    failures: u32,
    rows: Vec<GroupUsage>,
}

#[derive(Debug)]
enum State {
    /// Nobody asked yet. The thread is made by the one that asks first, so that it is scheduled as
    /// that one is.
    Fresh(Box<Usages>),
    Running {
        ask: SyncSender<Vec<GroupUsage>>,
        answers: Receiver<Answer>,
        /// It has been asked and has not answered.
        pending: bool,
    },
    Ended,
}

impl Glancer {
    pub(super) fn new(usages: Usages) -> Self {
        let state = State::Fresh(Box::new(usages));
        Self { state, counts: Glances::default(), failures: 0, rows: Vec::new() }
    }

    /// What came of them since the last question.
    pub(super) fn take_counts(&mut self) -> Glances {
        std::mem::take(&mut self.counts)
    }

    /// The figures of all groups as of now; `None` if they cannot be had in time, or not of all.
    pub(super) fn look(&mut self) -> Option<&[GroupUsage]> {
        self.start();
        self.settle();
        let State::Running { ask, answers, pending: pending @ false } = &mut self.state else { return None };
        if ask.send(std::mem::take(&mut self.rows)).is_err() {
            self.end();
            return None;
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
            Err(RecvTimeoutError::Disconnected) => {
                self.end();
                None
            }
        }
    }

    /// Takes in what was not answered in time. It is of an earlier time, and only what it cost is of use.
    fn settle(&mut self) {
        let State::Running { answers, pending: pending @ true, .. } = &mut self.state else { return };
        match answers.try_recv() {
            Ok((rows, looked)) => {
                *pending = false;
                self.rows = rows;
                match looked {
                    Ok(_) => self.failures = 0,
                    Err(_) => self.fail(),
                }
            }
            Err(TryRecvError::Empty) => self.counts.late += 1,
            Err(TryRecvError::Disconnected) => self.end(),
        }
    }

    fn take(&mut self, looked: io::Result<Looked>) -> Option<&[GroupUsage]> {
        match looked {
            Ok(Looked { left_out: 0, walked }) => {
                self.failures = 0;
                self.counts.came += 1;
                self.counts.walked += u64::from(walked);
                Some(&self.rows)
            }
            Ok(Looked { left_out: _, walked: _ }) => {
                self.counts.incomplete += 1;
                None
            }
            Err(_) => {
                self.fail();
                None
            }
        }
    }

    fn fail(&mut self) {
        self.counts.failed += 1;
        self.failures += 1;
        if self.failures >= MOST_FAILURES {
            self.end();
        }
    }

    fn start(&mut self) {
        if !matches!(self.state, State::Fresh(_)) {
            return;
        }
        let State::Fresh(usages) = std::mem::replace(&mut self.state, State::Ended) else { return };
        let (ask, asked) = sync_channel::<Vec<GroupUsage>>(1);
        let (answer, answers) = sync_channel::<Answer>(1);
        let run = move || {
            let mut usages = usages;
            // Ends when nobody can ask any more.
            for mut rows in asked {
                let looked = usages.read(&mut rows);
                if answer.send((rows, looked)).is_err() {
                    return;
                }
            }
        };
        const STACK: usize = 128 << 10;
        let thread = std::thread::Builder::new().name("glance".to_owned()).stack_size(STACK).spawn(run);
        match thread {
            Ok(_) => self.state = State::Running { ask, answers, pending: false },
            Err(_) => self.end(),
        }
    }

    fn end(&mut self) {
        self.state = State::Ended;
        self.counts.ended = true;
    }
}
