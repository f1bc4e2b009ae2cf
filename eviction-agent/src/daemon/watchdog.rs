//! Watches the control loop from the main thread, and reports a loop that has stopped.
//!
//! In each iteration the loop stores by when the next one begins. The watchdog only reads that: a loop that has stopped
//! could not respond.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::Pid;

use crate::daemon::service_manager::{Notification, ServiceManager};
use crate::telemetry::metrics::Metrics;
use eviction_core::time::nanos;
use eviction_node::notify::timer::Timer;

use eviction_node::clock::mono_ns;

const SECOND_NS: u64 = 1_000_000_000;

/// How long one iteration may take: a sample of 50,000 cgroups takes a good part of a second.
const LONGEST_TURN_NS: u64 = 2 * SECOND_NS;

/// How late it may be on a node without a free CPU.
const ALLOWANCE_NS: u64 = 2 * SECOND_NS;

/// How often it is checked while all is well, at most and at least.
const SOONEST: Duration = Duration::from_secs(5);
const LATEST: Duration = Duration::from_secs(10);

/// By when the next iteration of the loop begins, nanoseconds of CLOCK_MONOTONIC. Written by the loop alone.
#[derive(Clone, Debug)]
pub(crate) struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// That of a loop that is about to start.
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(mono_ns().saturating_add(LONGEST_TURN_NS))))
    }

    /// An iteration begins.
    pub(crate) fn turn(&self, now_ns: u64) {
        self.0.store(now_ns.saturating_add(LONGEST_TURN_NS), Ordering::Relaxed);
    }

    /// An iteration has ended; the timer is set for the next.
    pub(crate) fn rest(&self, due_ns: u64) {
        self.0.store(due_ns, Ordering::Relaxed);
    }

    /// How late the loop is, once that is more than it may be.
    pub(crate) fn missing_ns(&self, now_ns: u64) -> Option<u64> {
        let missing = now_ns.saturating_sub(self.0.load(Ordering::Relaxed));
        (missing > ALLOWANCE_NS).then_some(missing)
    }

    /// In what time to check again.
    fn next_check(&self, now_ns: u64) -> Duration {
        let expected = self.0.load(Ordering::Relaxed).saturating_add(ALLOWANCE_NS);
        Duration::from_nanos(expected.saturating_sub(now_ns)).clamp(SOONEST, LATEST)
    }
}

/// What there is to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StallChange {
    Stalled { missing_ns: u64 },
    Resumed { missed_ns: u64 },
}

/// What was reported.
#[derive(Debug, Default)]
struct Watchdog {
    due_ns: u64,
    stalled_since_ns: Option<u64>,
}

impl Watchdog {
    /// Checks once. A watchdog that was itself held up (a process that was stopped, a machine that was frozen) reports no
    /// stall before its next check.
    fn check(&mut self, now_ns: u64, missing_ns: Option<u64>, next: Duration) -> Option<StallChange> {
        let held_up = self.due_ns != 0 && now_ns > self.due_ns.saturating_add(SECOND_NS);
        self.due_ns = now_ns.saturating_add(nanos(next));
        match (missing_ns, self.stalled_since_ns) {
            (Some(_), None) if held_up => None,
            (Some(missing_ns), None) => {
                self.stalled_since_ns = Some(now_ns.saturating_sub(missing_ns));
                Some(StallChange::Stalled { missing_ns })
            }
            (None, Some(since_ns)) => {
                self.stalled_since_ns = None;
                Some(StallChange::Resumed { missed_ns: now_ns.saturating_sub(since_ns) })
            }
            (Some(_), Some(_)) | (None, None) => None,
        }
    }
}

/// Watches until dropped, by a timer of the kernel: tokio's own wakes up several times for one that is
/// seconds away. Feeds the watchdog of systemd while `/healthz` would answer 200.
pub(crate) async fn watch(
    heartbeat: Heartbeat,
    thread: Pid,
    metrics: Arc<Metrics>,
    manager: Arc<ServiceManager>,
    timer: Timer,
) {
    let mut watchdog = Watchdog::default();
    loop {
        let now_ns = mono_ns();
        let next = heartbeat.next_check(now_ns);
        let next = manager.watchdog_interval().map_or(next, |interval| next.min(interval));
        let missing_ns = heartbeat.missing_ns(now_ns);
        if missing_ns.is_none() {
            manager.notify(Notification::Watchdog);
        }
        match watchdog.check(now_ns, missing_ns, next) {
            Some(StallChange::Stalled { missing_ns }) => {
                metrics.loop_stalled.set(1);
                metrics.loop_stalls.inc();
                let seconds = missing_ns / SECOND_NS;
                let (state, waits_in) = doing(thread);
                tracing::error!(
                    seconds,
                    state,
                    waits_in,
                    "the control loop has stopped: this node is not watched"
                );
            }
            Some(StallChange::Resumed { missed_ns }) => {
                metrics.loop_stalled.set(0);
                tracing::warn!(seconds = missed_ns / SECOND_NS, "the control loop runs again");
            }
            None => {}
        }
        let waited = match timer.set_once(next) {
            Ok(()) => timer.expired().await,
            Err(error) => Err(error),
        };
        if let Err(error) = waited {
            tracing::error!(%error, "the watchdog's timer: the control loop is not watched any more");
            return;
        }
    }
}

/// What the kernel says the thread is doing: its state, and where in the kernel it waits.
fn doing(thread: Pid) -> (String, String) {
    let read = |name| std::fs::read_to_string(format!("/proc/self/task/{thread}/{name}"));
    let stat = read("stat").unwrap_or_default();
    // After the name, which may hold anything.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or("?").to_owned();
    let waits_in = read("wchan").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "?".to_owned());
    (state, waits_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_is_late_is_missed_after_the_allowance() {
        let heartbeat = Heartbeat::new();
        let missing = |now| heartbeat.missing_ns(now);
        heartbeat.rest(110 * SECOND_NS);
        assert_eq!(missing(0), None, "a clock that runs backwards");
        assert_eq!(missing(112 * SECOND_NS), None);
        assert_eq!(missing(113 * SECOND_NS), Some(3 * SECOND_NS));
        heartbeat.turn(113 * SECOND_NS);
        assert_eq!(missing(117 * SECOND_NS), None, "a long turn");
        assert_eq!(missing(118 * SECOND_NS), Some(3 * SECOND_NS));
        heartbeat.rest(u64::MAX);
        assert_eq!(missing(u64::MAX), None);
    }

    #[test]
    fn it_is_looked_at_when_it_could_be_missed_first_within_bounds() {
        let heartbeat = Heartbeat::new();
        heartbeat.rest(100 * SECOND_NS + 1);
        assert_eq!(heartbeat.next_check(96 * SECOND_NS), Duration::from_nanos(6_000_000_001));
        assert_eq!(heartbeat.next_check(200 * SECOND_NS), SOONEST);
        heartbeat.rest(110 * SECOND_NS);
        assert_eq!(heartbeat.next_check(100 * SECOND_NS), LATEST);
    }

    #[test]
    fn a_stall_is_reported_once_and_so_is_its_end() {
        let mut watchdog = Watchdog::default();
        let mut check = |second: u64, missing: Option<u64>| {
            watchdog.check(second * SECOND_NS, missing.map(|it| it * SECOND_NS), Duration::from_secs(1))
        };
        assert_eq!(check(10, None), None);
        assert_eq!(check(11, Some(3)), Some(StallChange::Stalled { missing_ns: 3 * SECOND_NS }));
        assert_eq!(check(12, Some(4)), None);
        assert_eq!(check(13, None), Some(StallChange::Resumed { missed_ns: 5 * SECOND_NS }));
        assert_eq!(check(14, None), None);
    }

    #[test]
    fn who_was_held_up_himself_looks_twice() {
        let mut watchdog = Watchdog::default();
        let mut check = |second: u64, missing: Option<u64>| {
            watchdog.check(second * SECOND_NS, missing.map(|it| it * SECOND_NS), Duration::from_secs(1))
        };
        assert_eq!(check(10, None), None);
        assert_eq!(check(500, Some(480)), None, "the whole process was stopped");
        assert_eq!(check(501, None), None);
        assert_eq!(check(900, Some(380)), None);
        assert_eq!(check(901, Some(381)), Some(StallChange::Stalled { missing_ns: 381 * SECOND_NS }));
    }

    #[tokio::test]
    async fn the_watchdog_of_systemd_is_fed_while_the_loop_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = tokio::net::UnixDatagram::bind(&path).unwrap();
        let interval = Duration::from_millis(20);
        let manager = Arc::new(ServiceManager::at(path.as_os_str(), Some(interval)).unwrap());
        let (metrics, heartbeat) = (Arc::new(Metrics::new("0", "0")), Heartbeat::new());
        heartbeat.rest(0);
        let (thread, timer) = (rustix::thread::gettid(), Timer::new().unwrap());
        tokio::spawn(watch(heartbeat.clone(), thread, Arc::clone(&metrics), manager, timer));
        while metrics.loop_stalled.get() == 0 {
            tokio::task::yield_now().await;
        }
        let mut buffer = [0; 64];
        assert!(socket.try_recv(&mut buffer).is_err(), "a loop that has stopped feeds nothing");
        heartbeat.rest(u64::MAX);
        for _ in 0..2 {
            let length = socket.recv(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..length], b"WATCHDOG=1");
        }
    }

    #[test]
    fn what_a_thread_does_is_told_in_the_kernel_s_words() {
        let (state, waits_in) = doing(rustix::thread::gettid());
        assert_eq!(state, "R");
        assert!(!waits_in.is_empty());
    }
}
