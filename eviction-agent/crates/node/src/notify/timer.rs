//! A timer of sub-millisecond precision.
//!
//! tokio's own clock ticks in milliseconds; near a threshold a sample is due within one.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use super::{register, take_count};
use crate::backend::BackendInfo;

/// The name of the timer as a backend.
pub const NAME: &str = "timerfd";

/// A timer on CLOCK_MONOTONIC behind an async descriptor.
#[derive(Debug)]
pub struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    /// Creates a timer that is not set. Needs a tokio runtime with IO.
    pub fn new() -> io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        register(timer).map(Self)
    }

    /// Returns the description of the timer for `check` and the log.
    pub fn info() -> BackendInfo {
        BackendInfo::plain("timer", NAME, "samples before a threshold can be reached, on every kernel")
    }

    /// Makes the timer fire once after `delay`, in place of any earlier setting.
    pub fn set_once(&self, delay: Duration) -> io::Result<()> {
        // Zero would disarm the timer.
        let delay = delay.max(Duration::from_nanos(1));
        let setting = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(delay) };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &setting)?;
        Ok(())
    }

    /// Waits until the timer has fired. Returns how often it fired since the last call.
    pub async fn expired(&self) -> io::Result<u64> {
        take_count(&self.0).await
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        // 136 years are long enough.
        tv_sec: duration.as_secs().min(u64::from(u32::MAX)).cast_signed(),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn timer_fires_once_and_not_early() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timer = Timer::new().unwrap();
            for delay in [Duration::ZERO, Duration::from_micros(200), Duration::from_millis(3)] {
                let start = Instant::now();
                timer.set_once(delay).unwrap();
                assert_eq!(timer.expired().await.unwrap(), 1);
                assert!(start.elapsed() >= delay);
            }
            let expiry = tokio::time::timeout(Duration::from_millis(20), timer.expired());
            assert!(expiry.await.is_err(), "a timer that fired once does not fire again");
            timer.set_once(Duration::from_millis(1)).unwrap();
            timer.set_once(Duration::MAX).unwrap();
            let expiry = tokio::time::timeout(Duration::from_millis(20), timer.expired());
            assert!(expiry.await.is_err(), "a new delay replaces the earlier one");
        });
    }
}
