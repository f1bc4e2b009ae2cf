//! The thread that finishes what was begun: grace periods, SIGKILL, looking until nobody is left.
//!
//! A thread that exists from the start: under pressure there may be no memory or process id for a new
//! one. What it does may block, so it is not the reaction's.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, write};
use tokio::sync::mpsc;

use super::cgroup_procs::CgroupProcesses;
use super::clock::now_ns;
use super::job::Job;
use super::kill_context::KillContext;
use super::mrelease::MreleaseWorker;
use super::realtime::run_ahead;
use eviction_core::progress::{HOST_PID, KillProgress, KillUpdate};

/// While outcomes wait for room, how often that is looked for.
const RETRY_NS: u64 = 10_000_000;

pub(super) enum Command {
    /// Finish this job, and tell these outcomes of its beginning.
    Take(Box<Job>, Vec<KillUpdate>),
    /// Hurry the job of a decision.
    Hurry { decision: u64, grace: Duration, growth_limit: Option<u64> },
}

/// The worker as the executor sees it.
#[derive(Debug)]
pub(super) struct KillWorker {
    commands: Option<Sender<Command>>,
    bell: Arc<OwnedFd>,
    ended: Receiver<(u64, u64)>,
    thread: Option<JoinHandle<()>>,
}

impl KillWorker {
    /// Starts the thread.
    pub(super) fn start(outcomes: mpsc::Sender<KillUpdate>, reaper: MreleaseWorker) -> io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (commands, incoming) = channel();
        let (ended_here, ended) = channel();
        let work = Work {
            incoming,
            bell: Arc::clone(&bell),
            outcomes,
            ended: ended_here,
            jobs: Vec::new(),
            members: CgroupProcesses::new(),
            reaper,
            backlog: VecDeque::new(),
            has_said_host_pid: false,
        };
        let thread = std::thread::Builder::new().name("killer".to_owned());
        Ok(Self { commands: Some(commands), bell, ended, thread: Some(thread.spawn(move || work.run())?) })
    }

    /// Hands over; false if the thread has ended.
    pub(super) fn send(&self, command: Command) -> bool {
        let Some(commands) = &self.commands else {
            return false;
        };
        let sent = commands.send(command).is_ok();
        self.ring();
        sent
    }

    /// The next decision whose work has ended, and when.
    pub(super) fn next_ended(&self) -> Option<(u64, u64)> {
        self.ended.try_recv().ok()
    }

    fn ring(&self) {
        // It can only fail by being full, and then the thread wakes all the same.
        let _ = write(&self.bell, &1_u64.to_ne_bytes());
    }
}

impl Drop for KillWorker {
    fn drop(&mut self) {
        self.commands = None;
        self.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    incoming: Receiver<Command>,
    bell: Arc<OwnedFd>,
    outcomes: mpsc::Sender<KillUpdate>,
    ended: Sender<(u64, u64)>,
    jobs: Vec<Job>,
    members: CgroupProcesses,
    reaper: MreleaseWorker,
    /// Bounded by the number of jobs, each of which has a handful of outcomes.
    backlog: VecDeque<KillUpdate>,
    has_said_host_pid: bool,
}

impl Work {
    fn run(mut self) {
        run_ahead();
        while self.take_commands() {
            let now_ns = now_ns();
            self.with_jobs(|job, context| {
                if job.due_ns() <= now_ns {
                    job.step(context);
                }
            });
            self.deliver();
            self.wait();
        }
        self.with_jobs(Job::abandon);
        self.deliver();
    }

    /// False when there is nobody left to take commands from.
    fn take_commands(&mut self) -> bool {
        loop {
            match self.incoming.try_recv() {
                Ok(Command::Take(mut job, outcomes)) => {
                    self.reaper.release(&job.take_killed());
                    for outcome in outcomes {
                        self.tell(outcome);
                    }
                    self.jobs.push(*job);
                }
                Ok(Command::Hurry { decision, grace, growth_limit }) => self.with_jobs(|job, context| {
                    if job.decision == decision {
                        job.hurry(grace, growth_limit, context);
                    }
                }),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Runs `act` on each job, tells what came of it, and lets go of those that are over.
    fn with_jobs(&mut self, mut act: impl FnMut(&mut Job, &mut KillContext<'_>)) {
        let mut jobs = std::mem::take(&mut self.jobs);
        for job in &mut jobs {
            let mut told = Vec::new();
            act(
                job,
                &mut KillContext {
                    members: &mut self.members,
                    report: &mut |progress| told.push((now_ns(), progress)),
                    now_ns: now_ns(),
                },
            );
            self.reaper.release(&job.take_killed());
            for (at_ns, progress) in told {
                self.tell(KillUpdate { decision: job.decision, pod: Arc::clone(&job.pod), at_ns, progress });
            }
        }
        jobs.retain(|job| !job.is_over());
        self.jobs = jobs;
    }

    fn tell(&mut self, outcome: KillUpdate) {
        let unreachable = match &outcome.progress {
            KillProgress::TermSent(signalled) | KillProgress::KillSent { signalled, .. } => {
                signalled.unreachable
            }
            KillProgress::WouldSignal { unreachable, .. } | KillProgress::Left { unreachable, .. } => {
                *unreachable
            }
            KillProgress::Trouble { .. }
            | KillProgress::Gone { .. }
            | KillProgress::Answered { .. }
            | KillProgress::Abandoned => 0,
        };
        if unreachable > 0 && !self.has_said_host_pid {
            self.has_said_host_pid = true;
            let (namespace, pod) = (&outcome.pod.namespace, &outcome.pod.name);
            tracing::warn!(
                %namespace, %pod, processes = unreachable, help = HOST_PID,
                "processes are outside the agent's PID namespace and cannot be signalled"
            );
        }
        if outcome.progress.is_last() {
            let _ = self.ended.send((outcome.decision, outcome.at_ns));
        }
        self.backlog.push_back(outcome);
    }

    /// Hands on as many outcomes as there is room for. Without a listener they are of no use.
    fn deliver(&mut self) {
        while let Some(outcome) = self.backlog.pop_front() {
            if let Err(mpsc::error::TrySendError::Full(outcome)) = self.outcomes.try_send(outcome) {
                self.backlog.push_front(outcome);
                return;
            }
        }
    }

    /// Until a command comes, a job is due, or a watched process ends.
    fn wait(&mut self) {
        let now_ns = now_ns();
        let mut due_ns = self.jobs.iter().map(Job::due_ns).min();
        if !self.backlog.is_empty() {
            let retry_ns = now_ns.saturating_add(RETRY_NS);
            due_ns = Some(due_ns.map_or(retry_ns, |due_ns| due_ns.min(retry_ns)));
        }
        let timeout = due_ns.map(|due_ns| {
            let rest = due_ns.saturating_sub(now_ns);
            Timespec {
                tv_sec: i64::try_from(rest / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(rest % 1_000_000_000).unwrap_or(0),
            }
        });
        let bell = Arc::clone(&self.bell);
        let mut fds = vec![PollFd::new(&bell, PollFlags::IN)];
        let watched = self.jobs.iter().flat_map(Job::watched);
        fds.extend(watched.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        // Interrupted or out of memory: the loop turns, and what is due is looked at.
        let ready = poll(&mut fds, timeout.as_ref()).unwrap_or(0);
        if ready == 0 {
            return;
        }
        let mut ended = fds.iter().map(|fd| !fd.revents().is_empty());
        if ended.next() == Some(true) {
            let _ = read(&bell, &mut [0_u8; 8]);
        }
        let ended: Vec<bool> = ended.collect();
        drop(fds);
        let mut ended = ended.as_slice();
        let now_ns = super::clock::now_ns();
        for job in &mut self.jobs {
            let (own, rest) = ended.split_at(job.watched().len().min(ended.len()));
            ended = rest;
            if own.contains(&true) {
                job.wake(now_ns);
            }
        }
    }
}
