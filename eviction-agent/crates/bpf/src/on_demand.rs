//! Programs that are attached while that is worth its cost, and not a moment longer.
//!
//! The kernel changes its code when a program is attached or taken off, and may wait until no task
//! runs what was there before: `synchronize_rcu_tasks` in each change of a trampoline up to 5.11,
//! `synchronize_rcu` for probes and tracepoints. That is some tenths of a second, just when memory is
//! short; whoever reacts to that must not wait for it. So a thread does it.
#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;

use super::attach::{Link, Program};
use super::attach_methods::{AttachWhen, EventClass};

/// Programs that were loaded, and proved that they can be attached.
#[derive(Debug)]
pub(super) struct OnDemandProbe {
    pub(super) class: EventClass,
    pub(super) when: AttachWhen,
    pub(super) switch: DetachSwitch<Vec<Link>>,
    /// Kept for what the kernel counts of them, which outlives each link.
    programs: Vec<Arc<Program>>,
}

impl OnDemandProbe {
    /// Takes the programs off.
    ///
    /// # Errors
    /// If the thread that attaches them cannot be started.
    pub(super) fn new(class: EventClass, when: AttachWhen, attached: Vec<Link>) -> io::Result<Self> {
        let programs: Vec<_> = attached.iter().map(|link| Arc::clone(&link.program)).collect();
        drop(attached);
        let again = programs.clone();
        let attach = move || again.iter().map(Program::attach).collect();
        Ok(Self { class, when, switch: DetachSwitch::new("hook", attach)?, programs })
    }

    /// See [`Program::runs_missed`].
    pub(super) fn runs_missed(&self) -> u64 {
        self.programs.iter().filter_map(|program| program.runs_missed().ok()).sum()
    }
}

const OFF: u8 = 0;
const ON: u8 = 1;
/// For ever: the error was kept.
const FAILED: u8 = 2;

/// On while the thing that was made is kept.
pub(super) struct DetachSwitch<T> {
    shared: Arc<SwitchShared<T>>,
    thread: Option<JoinHandle<()>>,
}

struct SwitchShared<T> {
    wanted: AtomicBool,
    ended: AtomicBool,
    state: AtomicU8,
    /// Held for a move only.
    kept: Mutex<SwitchState<T>>,
}

enum SwitchState<T> {
    Nothing,
    Made(T),
    Error(io::Error),
}

impl<T> SwitchShared<T> {
    fn keep(&self, kept: SwitchState<T>, state: u8) -> SwitchState<T> {
        let before = std::mem::replace(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner), kept);
        self.state.store(state, Ordering::Release);
        before
    }

    /// Until it is ended, or nothing can be made.
    fn follow(&self, make: impl Fn() -> io::Result<T>) {
        while !self.ended.load(Ordering::Acquire) {
            let is_on = self.state.load(Ordering::Acquire) == ON;
            match (self.wanted.load(Ordering::Acquire), is_on) {
                (true, false) => match make() {
                    Ok(made) => drop(self.keep(SwitchState::Made(made), ON)),
                    Err(error) => {
                        self.keep(SwitchState::Error(error), FAILED);
                        return;
                    }
                },
                (false, true) => drop(self.keep(SwitchState::Nothing, OFF)),
                (true, true) | (false, false) => std::thread::park(),
            }
        }
        drop(self.keep(SwitchState::Nothing, OFF));
    }
}

impl<T: Send + 'static> DetachSwitch<T> {
    /// Off; `make` switches it on, and dropping what it made off again.
    pub(super) fn new(name: &str, make: impl Fn() -> io::Result<T> + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(SwitchShared {
            wanted: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            state: AtomicU8::new(OFF),
            kept: Mutex::new(SwitchState::Nothing),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || theirs.follow(make))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Asks for it to be on or off, and does not wait.
    ///
    /// # Errors
    /// What has kept it from being switched on, once.
    pub(super) fn request(&mut self, wanted: bool) -> io::Result<()> {
        if self.shared.state.load(Ordering::Acquire) == FAILED
            && let SwitchState::Error(error) = self.shared.keep(SwitchState::Nothing, FAILED)
        {
            return Err(error);
        }
        if self.shared.wanted.swap(wanted, Ordering::AcqRel) != wanted {
            self.wake();
        }
        Ok(())
    }

    fn wake(&self) {
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }
}

impl<T> DetachSwitch<T> {
    /// Whether it is on.
    pub(super) fn is_on(&self) -> bool {
        self.shared.state.load(Ordering::Acquire) == ON
    }

    /// Whether what was asked for is not yet so, and may still be.
    pub(super) fn is_changing(&self) -> bool {
        let state = self.shared.state.load(Ordering::Acquire);
        state != FAILED && self.shared.wanted.load(Ordering::Acquire) != (state == ON)
    }

    /// Looks at what was made, unless it is not there, or comes or goes this very moment.
    pub(super) fn with<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R> {
        let kept = match self.shared.kept.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        match &*kept {
            SwitchState::Made(made) => Some(read(made)),
            SwitchState::Nothing | SwitchState::Error(_) => None,
        }
    }
}

impl<T> Drop for DetachSwitch<T> {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It is off when this is gone.
            let _ = thread.join();
        }
    }
}

impl<T> fmt::Debug for DetachSwitch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switch").field("is_on", &self.is_on()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Counts how many there are.
    struct Thing(Arc<AtomicUsize>);

    impl Thing {
        fn new(there: &Arc<AtomicUsize>) -> Self {
            there.fetch_add(1, Ordering::SeqCst);
            Self(Arc::clone(there))
        }
    }

    impl Drop for Thing {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn until(condition: impl Fn() -> bool) {
        while !condition() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn it_is_switched_by_its_thread_as_often_as_asked() {
        let there = Arc::new(AtomicUsize::new(0));
        let theirs = Arc::clone(&there);
        let mut switch = DetachSwitch::new("test", move || Ok(Thing::new(&theirs))).unwrap();
        assert!(!switch.is_on());
        for _ in 0..3 {
            switch.request(true).unwrap();
            switch.request(true).unwrap();
            until(|| switch.is_on());
            assert_eq!(there.load(Ordering::SeqCst), 1);
            assert_eq!(switch.with(|_| ()), Some(()));
            switch.request(false).unwrap();
            until(|| !switch.is_on() && there.load(Ordering::SeqCst) == 0);
        }
        switch.request(true).unwrap();
        until(|| switch.is_on());
        assert!(!switch.is_changing());
        drop(switch);
        assert_eq!(there.load(Ordering::SeqCst), 0, "off when it is gone");
    }

    #[test]
    fn who_asks_does_not_wait_and_what_is_wanted_last_counts() {
        let (go, gate) = mpsc::channel::<()>();
        let mut switch = DetachSwitch::new("test", move || gate.recv().map_err(io::Error::other)).unwrap();
        switch.request(true).unwrap();
        assert!(!switch.is_on() && switch.is_changing(), "it is being made");
        switch.request(false).unwrap();
        go.send(()).unwrap();
        until(|| switch.shared.state.load(Ordering::SeqCst) == OFF);
        assert!(!switch.shared.wanted.load(Ordering::SeqCst));
    }

    #[test]
    fn a_refusal_is_told_once() {
        let mut switch = DetachSwitch::<()>::new("test", || Err(io::Error::other("no"))).unwrap();
        switch.request(true).unwrap();
        until(|| switch.shared.state.load(Ordering::SeqCst) == FAILED);
        assert_eq!(switch.request(true).unwrap_err().to_string(), "no");
        switch.request(true).unwrap();
        assert!(!switch.is_on());
    }
}
