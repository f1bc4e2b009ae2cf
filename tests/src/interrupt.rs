//! Ctrl-C: it interrupts every wait, so that everything is removed before the program ends.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// A flag that is set when the program is asked to end.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// The error of a wait that was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// The exit code that a shell reports after SIGINT.
const INTERRUPTED: u8 = 130;

/// Returns the exit code of a program for success, failure or an error, which is printed.
pub fn exit(program: &str, result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("interrupted; everything is cleared away");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            eprintln!("error: {program}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The interval at which a wait checks its condition.
pub const POLL_INTERVAL: Duration = Duration::from_millis(10);

impl Interrupt {
    /// Installs handlers: from now on SIGINT, SIGTERM and SIGHUP interrupt every wait instead of ending the
    /// program.
    ///
    /// # Errors
    /// If a handler cannot be set.
    pub fn install() -> Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt.0))
                .with_context(|| format!("catch signal {signal}"))?;
        }
        Ok(interrupt)
    }

    /// Fails if the program was asked to end.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }

    /// Sleeps, until it is interrupted.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    /// Calls `poll` repeatedly until it returns a value, at most for `guard`: a timeout for a program that
    /// hangs, which does not measure speed.
    ///
    /// # Errors
    /// [`Interrupted`], the error of `poll`, or a timeout, which names `what`.
    pub fn until<T>(
        &self,
        what: &str,
        guard: Duration,
        mut poll: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let end = Instant::now() + guard;
        loop {
            self.check()?;
            if let Some(found) = poll()? {
                return Ok(found);
            }
            if Instant::now() >= end {
                anyhow::bail!("waited {} s in vain: {what}", guard.as_secs());
            }
            std::thread::sleep(POLL_INTERVAL.min(guard));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_returns_the_found_value() {
        let mut polls = 0;
        let found = Interrupt::default().until("three polls", Duration::from_secs(60), || {
            polls += 1;
            Ok((polls == 3).then_some(polls))
        });
        assert_eq!(found.ok(), Some(3));
    }

    #[test]
    fn timeout_error_names_the_awaited_condition() {
        let error = Interrupt::default()
            .until("a miracle", Duration::ZERO, || Ok(None::<()>))
            .expect_err("there is none");
        assert_eq!(error.to_string(), "waited 0 s in vain: a miracle");
    }

    #[test]
    fn interrupt_ends_every_wait() {
        let interrupt = Interrupt::default();
        interrupt.0.store(true, Ordering::Relaxed);
        assert_eq!(interrupt.sleep(Duration::from_secs(3600)), Err(Interrupted));
        let error = interrupt.until("nothing", Duration::from_secs(3600), || Ok(None::<()>));
        assert!(error.expect_err("broken off").is::<Interrupted>());
    }
}
