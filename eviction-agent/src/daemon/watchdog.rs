//! Monitors the control loop from the main thread, and reports a loop that has stopped.
//!
//! In each iteration the loop stores by when the next one begins. The watchdog only reads that value: a loop
//! that has stopped could not respond.

use std::sync::Arc;
use std::time::Duration;

use rustix::thread::Pid;

use crate::daemon::service_manager::ServiceManager;
use crate::telemetry::health::Health;
use crate::telemetry::metrics::Metrics;
use eviction_core::time::nanos;
use eviction_node::notify::timer::Timer;

use eviction_node::clock::mono_ns;

const SECOND_NS: u64 = 1_000_000_000;

/// The minimum and the maximum interval between checks while the loop runs.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(5);
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Returns the time until the next check.
fn next_check(health: &Health, now_ns: u64) -> Duration {
    let left = health.late_from_ns().saturating_sub(now_ns);
    Duration::from_nanos(left).clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL)
}

/// The state of the watchdog between two checks.
#[derive(Debug, Default)]
struct Watchdog {
    /// When the next check is due.
    due_ns: u64,
    /// Since when the loop has stopped, once that was reported.
    stalled_since_ns: Option<u64>,
}

impl Watchdog {
    /// Checks once, and reports a stall or its end. If the watchdog itself was held up (a stopped process, a frozen
    /// machine), it reports no stall before its next check.
    fn check(
        &mut self,
        now_ns: u64,
        late_by_ns: Option<u64>,
        next: Duration,
        thread: Pid,
        metrics: &Metrics,
    ) {
        let held_up = self.due_ns != 0 && now_ns > self.due_ns.saturating_add(SECOND_NS);
        self.due_ns = now_ns.saturating_add(nanos(next));
        match (late_by_ns, self.stalled_since_ns) {
            (Some(late_by_ns), None) if !held_up => {
                self.stalled_since_ns = Some(now_ns.saturating_sub(late_by_ns));
                metrics.loop_stalled.set(1);
                metrics.loop_stalls.inc();
                let seconds = late_by_ns / SECOND_NS;
                let (state, waits_in) = thread_state(thread);
                tracing::error!(
                    seconds,
                    state,
                    waits_in,
                    "the control loop has stopped: this node is not watched"
                );
            }
            (None, Some(since_ns)) => {
                self.stalled_since_ns = None;
                metrics.loop_stalled.set(0);
                let seconds = now_ns.saturating_sub(since_ns) / SECOND_NS;
                tracing::warn!(seconds, "the control loop runs again");
            }
            _ => {}
        }
    }
}

/// Runs the watchdog until it is dropped, with a timer of the kernel: tokio's own timer wakes up several times
/// for a deadline that is seconds away. Feeds the watchdog of systemd while `/healthz` would return 200.
pub(crate) async fn watch(
    health: Arc<Health>,
    thread: Pid,
    metrics: Arc<Metrics>,
    manager: Arc<ServiceManager>,
    timer: Timer,
) {
    let mut watchdog = Watchdog::default();
    loop {
        let now_ns = mono_ns();
        let next = next_check(&health, now_ns);
        let next = manager.watchdog_interval().map_or(next, |interval| next.min(interval));
        let late_by_ns = health.late_by_ns(now_ns);
        if late_by_ns.is_none() {
            manager.notify("WATCHDOG=1");
        }
        watchdog.check(now_ns, late_by_ns, next, thread, &metrics);
        let waited = match timer.set_once(next) {
            Ok(()) => timer.expired().await,
            Err(error) => Err(error),
        };
        if let Err(error) = waited {
            tracing::error!(%error, "the watchdog's timer failed: the control loop is no longer watched");
            return;
        }
    }
}

/// Returns the state of the thread, and where in the kernel it waits.
fn thread_state(thread: Pid) -> (String, String) {
    let read = |name| std::fs::read_to_string(format!("/proc/self/task/{thread}/{name}"));
    let stat = read("stat").unwrap_or_default();
    // The state follows the name, which may contain any character.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or("?").to_owned();
    let waits_in = read("wchan").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "?".to_owned());
    (state, waits_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_check_is_when_the_loop_could_be_late_within_bounds() {
        let health = Health::new();
        health.end_iteration(100 * SECOND_NS + 1);
        assert_eq!(next_check(&health, 96 * SECOND_NS), Duration::from_nanos(6_000_000_001));
        assert_eq!(next_check(&health, 200 * SECOND_NS), MIN_CHECK_INTERVAL);
        health.end_iteration(110 * SECOND_NS);
        assert_eq!(next_check(&health, 100 * SECOND_NS), MAX_CHECK_INTERVAL);
    }

    /// Returns a check at this second of a loop that has been late for so many seconds, with its results: how many
    /// stalls were reported, and since which second the present one lasts.
    fn checks() -> impl FnMut(u64, Option<u64>) -> (u64, Option<u64>) {
        let (mut watchdog, metrics) = (Watchdog::default(), Metrics::new("0", "0"));
        move |second, late_by| {
            let (now_ns, late_by_ns) = (second * SECOND_NS, late_by.map(|it| it * SECOND_NS));
            let thread = rustix::thread::gettid();
            watchdog.check(now_ns, late_by_ns, Duration::from_secs(1), thread, &metrics);
            let since = watchdog.stalled_since_ns.map(|ns| ns / SECOND_NS);
            assert_eq!(metrics.loop_stalled.get(), i64::from(since.is_some()));
            (metrics.loop_stalls.get(), since)
        }
    }

    #[test]
    fn a_stall_is_reported_once_and_so_is_its_end() {
        let mut check = checks();
        assert_eq!(check(10, None), (0, None));
        assert_eq!(check(11, Some(3)), (1, Some(8)));
        assert_eq!(check(12, Some(4)), (1, Some(8)));
        assert_eq!(check(13, None), (1, None));
        assert_eq!(check(14, None), (1, None));
    }

    #[test]
    fn a_watchdog_that_was_held_up_checks_again_before_it_reports() {
        let mut check = checks();
        assert_eq!(check(10, None), (0, None));
        assert_eq!(check(500, Some(480)), (0, None), "the whole process was stopped");
        assert_eq!(check(501, None), (0, None));
        assert_eq!(check(900, Some(380)), (0, None));
        assert_eq!(check(901, Some(381)), (1, Some(520)));
    }

    #[tokio::test]
    async fn the_watchdog_of_systemd_is_fed_while_the_loop_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = tokio::net::UnixDatagram::bind(&path).unwrap();
        let interval = Duration::from_millis(20);
        let manager = Arc::new(ServiceManager::at(path.as_os_str(), Some(interval)).unwrap());
        let (metrics, health) = (Arc::new(Metrics::new("0", "0")), Arc::new(Health::new()));
        health.end_iteration(0);
        let (thread, timer) = (rustix::thread::gettid(), Timer::new().unwrap());
        tokio::spawn(watch(Arc::clone(&health), thread, Arc::clone(&metrics), manager, timer));
        while metrics.loop_stalled.get() == 0 {
            tokio::task::yield_now().await;
        }
        let mut buffer = [0; 64];
        assert!(socket.try_recv(&mut buffer).is_err(), "a loop that has stopped feeds nothing");
        health.end_iteration(u64::MAX);
        for _ in 0..2 {
            let length = socket.recv(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..length], b"WATCHDOG=1");
        }
    }

    #[test]
    fn the_state_of_a_thread_is_read_from_proc() {
        let (state, waits_in) = thread_state(rustix::thread::gettid());
        assert_eq!(state, "R");
        assert!(!waits_in.is_empty());
    }
}
