//! The handling of SIGTERM.

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tests::stamps::Writer;

use crate::cli::OnTerm;

struct Term {
    stamps: Writer,
    exit: bool,
    delay: libc::timespec,
}

static TERM: OnceLock<Term> = OnceLock::new();

/// Installs a handler that stamps each SIGTERM, then acts as the arguments specify. Children inherit it.
pub(crate) fn install(stamps: Writer, on_term: OnTerm, delay: Duration) -> Result<()> {
    TERM.get_or_init(|| Term {
        stamps,
        exit: on_term == OnTerm::Exit,
        delay: libc::timespec { tv_sec: delay.as_secs() as _, tv_nsec: delay.subsec_nanos() as libc::c_long },
    });
    // SAFETY: the action is fully initialised, and its handler calls only async-signal-safe functions.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_term_signal as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGTERM, &action, std::ptr::null_mut())
    };
    if result != 0 {
        return Err(std::io::Error::last_os_error()).context("handle SIGTERM");
    }
    Ok(())
}

extern "C" fn on_term_signal(_: libc::c_int) {
    let Some(term) = TERM.get() else { return };
    term.stamps.term();
    if term.exit {
        // SAFETY: both calls are async-signal-safe; the timespec is valid.
        unsafe {
            if term.delay.tv_sec != 0 || term.delay.tv_nsec != 0 {
                libc::nanosleep(&term.delay, std::ptr::null_mut());
            }
            libc::_exit(0);
        }
    }
}
