//! Ctrl-C: whoever waits gives up, so that everything is cleared away on the way out.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Whether the program was asked to end.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// The error of a wait that was broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// As a shell reports what was ended by SIGINT.
const INTERRUPTED: u8 = 130;

/// How a program ends whose work came out well, or not, or came to an error, which is reported.
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

/// How long a wait goes without a look.
pub const LOOK: Duration = Duration::from_millis(10);

impl Interrupt {
    /// From now on SIGINT, SIGTERM and SIGHUP break off every wait instead of ending the program.
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

    /// Sleeps.
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
            std::thread::sleep(left.min(LOOK));
        }
    }

    /// Looks again and again until there is something, at most for `guard`: a bound for a
    /// program that hangs, not a measure.
    ///
    /// # Errors
    /// [`Interrupted`], what `look` fails with, or `what` did not come about.
    pub fn until<T>(
        &self,
        what: &str,
        guard: Duration,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let end = Instant::now() + guard;
        loop {
            self.check()?;
            if let Some(found) = look()? {
                return Ok(found);
            }
            if Instant::now() >= end {
                anyhow::bail!("waited {} s in vain: {what}", guard.as_secs());
            }
            std::thread::sleep(LOOK.min(guard));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_what_was_found() {
        let mut looks = 0;
        let found = Interrupt::default().until("three looks", Duration::from_secs(60), || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(found.ok(), Some(3));
    }

    #[test]
    fn a_wait_in_vain_says_what_for() {
        let error = Interrupt::default()
            .until("a miracle", Duration::ZERO, || Ok(None::<()>))
            .expect_err("there is none");
        assert_eq!(error.to_string(), "waited 0 s in vain: a miracle");
    }

    #[test]
    fn a_flag_breaks_off_every_wait() {
        let interrupt = Interrupt::default();
        interrupt.0.store(true, Ordering::Relaxed);
        assert_eq!(interrupt.sleep(Duration::from_secs(3600)), Err(Interrupted));
        let error = interrupt.until("nothing", Duration::from_secs(3600), || Ok(None::<()>));
        assert!(error.expect_err("broken off").is::<Interrupted>());
    }
}
