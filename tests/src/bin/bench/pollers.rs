//! The alternatives to the agent: the kernel's v1 usage threshold, and polling. Both read the working set as
//! the kubelet does, and send SIGKILL at once.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::Signal;
use tests::cgroup::Group;
use tests::mounts::{Hierarchy, Mounts};
use tests::{clock, process};

use crate::case::MAX_WORKING_SET;
use crate::hog_node::{Decision, Hog, HogNode, Watcher};

/// How a poller learns of a crossing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DetectionMethod {
    /// The v1 usage threshold, set as the kubelet's `kernelMemcgNotification` sets it, and a poll every ten
    /// seconds.
    Notification,
    /// A poll at this interval.
    Poll(Duration),
}

impl DetectionMethod {
    pub(crate) const ALL: [Self; 3] =
        [Self::Notification, Self::Poll(Duration::from_secs(1)), Self::Poll(Duration::from_secs(10))];

    pub(crate) fn name(self) -> String {
        match self {
            Self::Notification => "v1 eventfd".to_owned(),
            Self::Poll(period) => format!("poll each {} s", period.as_secs()),
        }
    }

    /// Returns why the means is not available here, if it is not.
    pub(crate) fn refusal(self) -> Result<Option<&'static str>> {
        let lacks = self == Self::Notification && Mounts::discover()?.get(Hierarchy::Memory).is_none();
        Ok(lacks.then_some("usage thresholds are of cgroup version 1, and memory is of version 2 here"))
    }

    fn period(self) -> Duration {
        match self {
            Self::Notification => Duration::from_secs(10),
            Self::Poll(period) => period,
        }
    }
}

/// A watcher for a single crossing.
#[derive(Debug)]
pub(crate) struct Poller {
    method: DetectionMethod,
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Thread {
    handle: JoinHandle<()>,
    decision: Receiver<Result<u64>>,
    end: Arc<AtomicBool>,
}

impl Poller {
    pub(crate) fn new(method: DetectionMethod) -> Self {
        Self { method, thread: None }
    }
}

impl Watcher for Poller {
    fn patience(&self) -> Duration {
        self.method.period() + Duration::from_secs(1)
    }

    fn begin(&mut self, hog_node: &HogNode<'_>, hog: &Hog<'_>) -> Result<()> {
        let (group, method, pid) = (hog_node.node.root().clone(), self.method, hog.pid);
        let eventfd = match method {
            DetectionMethod::Notification => Some(set_threshold(&group)?),
            DetectionMethod::Poll(_) => None,
        };
        let (sender, decision) = mpsc::channel();
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let handle = std::thread::spawn(move || {
            if let Some(decided) = watch(&group, method, eventfd.as_ref(), pid, &ended).transpose() {
                // This fails only if the receiver was dropped.
                let _ = sender.send(decided);
            }
        });
        self.thread = Some(Thread { handle, decision, end });
        Ok(())
    }

    fn poll_decision(&mut self) -> Result<Option<Decision>> {
        let thread = self.thread.as_ref().context("no watcher was begun")?;
        match thread.decision.try_recv() {
            Ok(at) => Ok(Some(Decision { at_ns: at?, stamped_ns: None, detected_by: self.method.name() })),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => bail!("the thread that watches has panicked"),
        }
    }

    fn wait_until_settled(&mut self, _: &HogNode<'_>, _: &Hog<'_>, _: bool) -> Result<()> {
        self.thread.take().context("no watcher was begun")?.end()
    }
}

impl Thread {
    fn end(self) -> Result<()> {
        self.end.store(true, Ordering::Relaxed);
        self.handle.join().ok().context("the thread that watches has panicked")
    }
}

/// The interval at which a poller checks whether it was ended.
const PATIENCE: Duration = Duration::from_millis(50);

/// Kills the process at the crossing and returns when; `None` if the poller was ended before.
fn watch(
    group: &Group,
    method: DetectionMethod,
    eventfd: Option<&OwnedFd>,
    pid: u32,
    end: &AtomicBool,
) -> Result<Option<u64>> {
    let period = u64::try_from(method.period().as_nanos())?;
    // The first wait is random, since a crossing may come at any point of the period.
    let mut due = clock::now() + clock::now() % period;
    loop {
        if end.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let left = Duration::from_nanos(due.saturating_sub(clock::now())).min(PATIENCE);
        let reported = match eventfd {
            Some(eventfd) => wait_for_notification(eventfd, left)?,
            None => {
                std::thread::sleep(left);
                false
            }
        };
        if !reported && clock::now() < due {
            continue;
        }
        if clock::now() >= due {
            due += period;
        }
        if working_set(group)? > MAX_WORKING_SET {
            let decided = clock::now();
            process::signal(pid, Signal::KILL)?;
            return Ok(Some(decided));
        }
    }
}

fn working_set(group: &Group) -> Result<u64> {
    let inactive = group.memory_stat("inactive_file")?;
    Ok(group.memory()?.saturating_sub(inactive))
}

/// Waits, and returns whether the threshold has fired.
fn wait_for_notification(eventfd: &OwnedFd, patience: Duration) -> Result<bool> {
    let patience = Timespec { tv_sec: 0, tv_nsec: patience.subsec_nanos().into() };
    let fired = poll(&mut [PollFd::new(eventfd, PollFlags::IN)], Some(&patience)).unwrap_or(0) > 0;
    if fired {
        File::from(eventfd.try_clone().context("duplicate an eventfd")?)
            .read_exact(&mut [0; 8])
            .context("read an eventfd")?;
    }
    Ok(fired)
}

/// Sets a threshold on usage where the working set reaches [`MAX_WORKING_SET`], if inactive pages stay as they are.
fn set_threshold(group: &Group) -> Result<OwnedFd> {
    let folder = group.dir(Hierarchy::Memory).context("usage thresholds are cgroup v1's")?;
    let usage = folder.join("memory.usage_in_bytes");
    let usage = File::open(&usage).with_context(|| format!("open {}", usage.display()))?;
    let reported = eventfd(0, EventfdFlags::CLOEXEC).context("make an eventfd")?;
    let usage_bytes = MAX_WORKING_SET + group.memory_stat("inactive_file")?;
    let text = format!("{} {} {usage_bytes}", reported.as_raw_fd(), usage.as_raw_fd());
    let control = folder.join("cgroup.event_control");
    std::fs::write(&control, text).with_context(|| format!("write to {}", control.display()))?;
    Ok(reported)
}
