//! The thread that completes kills: grace periods, SIGKILL, checks until no process is left.
//!
//! The thread is created at the start, because under pressure there may be no memory or process id for a new
//! one. Its work may block, so it does not run on the control loop.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::read;
use tokio::sync::mpsc;

use super::cgroup_procs::{CgroupProcesses, has_ended};
use super::job::Job;
use super::mrelease::{MreleaseWorker, raise_priority};
use super::pod_processes::now_ns;
use eviction_core::pod::PodName;
use eviction_core::progress::{HOST_PID, KillProgress, KillUpdate};

/// The pause between two attempts to send updates while the channel is full, in nanoseconds.
const RETRY_NS: u64 = 10_000_000;

/// What the killer asks of the thread.
pub(super) enum KillCommand {
    /// Complete this job.
    Begin(Box<Job>),
    /// Shorten the grace period of the job of a decision.
    Shorten { decision: u64, grace: Duration, growth_limit: Option<u64> },
}

/// The state of the thread.
pub(super) struct KillWorker {
    incoming: Receiver<KillCommand>,
    /// Readable when a command was sent, or the sender was closed.
    eventfd: Arc<OwnedFd>,
    updates: mpsc::Sender<KillUpdate>,
    jobs: Vec<Job>,
    processes: CgroupProcesses,
    mrelease: MreleaseWorker,
    /// Updates that wait for space in the channel. Bounded by the number of jobs, each of which has only a
    /// few.
    backlog: VecDeque<KillUpdate>,
    has_logged_host_pid: bool,
}

impl KillWorker {
    pub(super) fn new(
        incoming: Receiver<KillCommand>,
        eventfd: Arc<OwnedFd>,
        updates: mpsc::Sender<KillUpdate>,
        mrelease: MreleaseWorker,
    ) -> Self {
        Self {
            incoming,
            eventfd,
            updates,
            jobs: Vec::new(),
            processes: CgroupProcesses::new(),
            mrelease,
            backlog: VecDeque::new(),
            has_logged_host_pid: false,
        }
    }

    /// Completes the jobs that it receives until the sender of commands is closed. Then it abandons those that
    /// are not complete.
    pub(super) fn run(mut self) {
        raise_priority();
        while self.take_commands() {
            let now_ns = now_ns();
            self.with_jobs(|job, processes| {
                if job.due_ns() <= now_ns {
                    job.step(processes);
                }
            });
            self.deliver();
            self.wait();
        }
        self.with_jobs(|job, _| job.abandon());
        self.deliver();
    }

    /// Executes the queued commands. Returns false when the sender is closed.
    fn take_commands(&mut self) -> bool {
        loop {
            match self.incoming.try_recv() {
                Ok(KillCommand::Begin(job)) => {
                    self.jobs.push(*job);
                    // Reports what the job did before on the thread of the control loop.
                    self.with_jobs(|_, _| {});
                }
                Ok(KillCommand::Shorten { decision, grace, growth_limit }) => {
                    self.with_jobs(|job, processes| {
                        if job.decision == decision {
                            job.shorten(grace, growth_limit, processes);
                        }
                    })
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Runs `act` on each job, reports the updates, and drops the jobs that are over.
    fn with_jobs(&mut self, mut act: impl FnMut(&mut Job, &mut CgroupProcesses)) {
        let mut jobs = std::mem::take(&mut self.jobs);
        for job in &mut jobs {
            act(job, &mut self.processes);
            self.mrelease.release(std::mem::take(&mut job.victim.newly_killed));
            job.take_updates().for_each(|update| self.report(&job.pod, update));
        }
        jobs.retain(|job| !job.is_over());
        self.jobs = jobs;
    }

    fn report(&mut self, pod: &PodName, update: KillUpdate) {
        let unreachable = match &update.progress {
            KillProgress::TermSent(signalled) | KillProgress::KillSent { signalled, .. } => {
                signalled.unreachable
            }
            KillProgress::WouldSignal { unreachable, .. }
            | KillProgress::ProcessesRemaining { unreachable, .. } => *unreachable,
            KillProgress::Error { .. }
            | KillProgress::Terminated { .. }
            | KillProgress::Answered { .. }
            | KillProgress::Abandoned => 0,
        };
        if unreachable > 0 && !self.has_logged_host_pid {
            self.has_logged_host_pid = true;
            let (namespace, pod) = (&pod.namespace, &pod.name);
            tracing::warn!(
                %namespace, %pod, processes = unreachable, help = HOST_PID,
                "processes are outside the agent's PID namespace and cannot be signalled"
            );
        }
        self.backlog.push_back(update);
    }

    /// Sends as many updates as fit into the channel. Without a receiver they are dropped.
    fn deliver(&mut self) {
        while let Some(update) = self.backlog.pop_front() {
            if let Err(mpsc::error::TrySendError::Full(update)) = self.updates.try_send(update) {
                self.backlog.push_front(update);
                return;
            }
        }
    }

    /// Waits until a command arrives, a job is due, or a watched process ends.
    fn wait(&mut self) {
        let from_ns = now_ns();
        let retry_ns = (!self.backlog.is_empty()).then(|| from_ns.saturating_add(RETRY_NS));
        let due_ns = self.jobs.iter().map(Job::due_ns).chain(retry_ns).min();
        let pause = due_ns.map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(from_ns)));
        // Nanoseconds in 64 bits always fit.
        let timeout = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let mut fds = vec![PollFd::new(&self.eventfd, PollFlags::IN)];
        let watched = self.jobs.iter().flat_map(|job| &job.watched);
        fds.extend(watched.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        // After an interrupt or an error (out of memory) the loop continues with what is due.
        let ready = poll(&mut fds, timeout.as_ref()).unwrap_or(0);
        if ready == 0 {
            return;
        }
        // Fails if no command has arrived.
        let _ = read(&self.eventfd, &mut [0_u8; 8]);
        let now_ns = now_ns();
        for job in &mut self.jobs {
            if job.watched.iter().any(has_ended) {
                job.wake(now_ns);
            }
        }
    }
}
