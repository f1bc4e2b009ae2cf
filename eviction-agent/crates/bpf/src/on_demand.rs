//! Programs that are attached only while they are worth their cost.
//!
//! The kernel changes its code when a program is attached or detached, and may wait until no task runs the
//! previous code: `synchronize_rcu_tasks` in each change of a trampoline up to 5.11, `synchronize_rcu` for
//! probes and tracepoints. That takes some tenths of a second just when memory is short, and the control loop
//! must not wait for it. So a thread does it.
#![forbid(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::attach::{Link, Program};
use super::attach_methods::{AttachWhen, EventClass};

/// Programs that were loaded, and that have proved that they can be attached.
#[derive(Debug)]
pub(super) struct OnDemandProbe {
    pub(super) class: EventClass,
    pub(super) when: AttachWhen,
    pub(super) switch: DetachSwitch<Vec<Link>>,
    /// Kept for the kernel's counts of these programs, which outlive each link.
    programs: Vec<Arc<Program>>,
}

impl OnDemandProbe {
    /// Detaches the programs.
    ///
    /// # Errors
    /// If the thread that attaches them cannot be started.
    pub(super) fn new(class: EventClass, when: AttachWhen, attached: Vec<Link>) -> io::Result<Self> {
        let programs: Vec<_> = attached.iter().map(|link| Arc::clone(&link.program)).collect();
        drop(attached);
        let to_attach = programs.clone();
        let attach = move || to_attach.iter().map(Program::attach).collect();
        Ok(Self { class, when, switch: DetachSwitch::new(attach)?, programs })
    }

    /// See [`Program::runs_missed`].
    pub(super) fn runs_missed(&self) -> u64 {
        self.programs.iter().filter_map(|program| program.runs_missed().ok()).sum()
    }
}

/// A failed attempt is repeated once after this time: memory may be short just then.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A switch that is on while the value that was made is kept.
#[derive(Debug)]
pub(super) struct DetachSwitch<T> {
    shared: Arc<SwitchShared<T>>,
    /// It ends with an error if no value can be made.
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug)]
struct SwitchShared<T> {
    wanted: AtomicBool,
    is_dropped: AtomicBool,
    /// There is one while it is on. Locked only while a value is moved or read.
    value: Mutex<Option<T>>,
}

impl<T> SwitchShared<T> {
    /// Follows the requests until the switch is dropped, or until no value can be made.
    fn run(&self, make: impl Fn() -> io::Result<T>) -> io::Result<()> {
        let mut is_on = false;
        while !self.is_dropped.load(Ordering::Acquire) {
            let wanted = self.wanted.load(Ordering::Acquire);
            if wanted == is_on {
                std::thread::park();
                continue;
            }
            let value = if wanted { Some(make().or_else(|_| repeat(&make))?) } else { None };
            let before =
                std::mem::replace(&mut *self.value.lock().unwrap_or_else(PoisonError::into_inner), value);
            drop(before);
            is_on = wanted;
        }
        Ok(())
    }
}

/// Calls `make` after a pause, which the next request ends.
fn repeat<T>(make: impl Fn() -> io::Result<T>) -> io::Result<T> {
    std::thread::park_timeout(RETRY_AFTER);
    make()
}

impl<T: Send + 'static> DetachSwitch<T> {
    /// Creates a switch that is off. `make` switches it on, and dropping the value that it made switches it
    /// off.
    pub(super) fn new(make: impl Fn() -> io::Result<T> + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(SwitchShared {
            wanted: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
            value: Mutex::new(None),
        });
        let thread_shared = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("hook".to_owned()).spawn(move || thread_shared.run(make))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Requests that it is switched on or off, without waiting.
    ///
    /// # Errors
    /// The error that prevented switching it on, once.
    pub(super) fn request(&mut self, wanted: bool) -> io::Result<()> {
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            return thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread has panicked")));
        }
        if self.shared.wanted.swap(wanted, Ordering::AcqRel) != wanted {
            self.thread.iter().for_each(|thread| thread.thread().unpark());
        }
        Ok(())
    }
}

impl<T> DetachSwitch<T> {
    /// Returns whether it is on; false while that is changing.
    pub(super) fn is_on(&self) -> bool {
        self.with(|_| ()).is_some()
    }

    /// Returns whether the request is not yet done, and can still be done.
    pub(super) fn is_changing(&self) -> bool {
        let is_running = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        is_running && self.shared.wanted.load(Ordering::Acquire) != self.is_on()
    }

    /// Calls `read` with the value, unless there is none or it is changing at this moment.
    pub(super) fn with<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R> {
        let value = match self.shared.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        value.as_ref().map(read)
    }
}

impl<T> Drop for DetachSwitch<T> {
    fn drop(&mut self) {
        self.shared.is_dropped.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        // The value is dropped with the last reference: the switch is off when this drop returns.
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use super::*;

    /// Counts its instances.
    struct Counted(Arc<AtomicUsize>);

    impl Counted {
        fn new(instances: &Arc<AtomicUsize>) -> Self {
            instances.fetch_add(1, Ordering::SeqCst);
            Self(Arc::clone(instances))
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn wait_until(condition: impl Fn() -> bool) {
        while !condition() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn switch_follows_each_request_and_is_off_after_drop() {
        let instances = Arc::new(AtomicUsize::new(0));
        let thread_shared = Arc::clone(&instances);
        let mut switch = DetachSwitch::new(move || Ok(Counted::new(&thread_shared))).unwrap();
        assert!(!switch.is_on());
        for _ in 0..3 {
            switch.request(true).unwrap();
            switch.request(true).unwrap();
            wait_until(|| switch.is_on());
            assert_eq!(instances.load(Ordering::SeqCst), 1);
            assert_eq!(switch.with(|_| ()), Some(()));
            switch.request(false).unwrap();
            wait_until(|| !switch.is_on() && instances.load(Ordering::SeqCst) == 0);
        }
        switch.request(true).unwrap();
        wait_until(|| switch.is_on());
        assert!(!switch.is_changing());
        drop(switch);
        assert_eq!(instances.load(Ordering::SeqCst), 0, "off when it is gone");
    }

    #[test]
    fn request_does_not_wait_and_the_last_one_counts() {
        let (go, gate) = mpsc::channel::<()>();
        let mut switch = DetachSwitch::new(move || gate.recv().map_err(io::Error::other)).unwrap();
        switch.request(true).unwrap();
        assert!(!switch.is_on() && switch.is_changing(), "it is being made");
        switch.request(false).unwrap();
        go.send(()).unwrap();
        wait_until(|| !switch.is_on());
        assert!(!switch.shared.wanted.load(Ordering::SeqCst));
    }

    #[test]
    fn a_failed_attempt_is_repeated_once() {
        let attempts = AtomicUsize::new(0);
        let make = move || match attempts.fetch_add(1, Ordering::SeqCst) {
            0 => Err(io::Error::from(io::ErrorKind::OutOfMemory)),
            _ => Ok(()),
        };
        let mut switch = DetachSwitch::new(make).unwrap();
        switch.request(true).unwrap();
        wait_until(|| switch.is_on());
        switch.request(true).unwrap();
    }

    #[test]
    fn error_is_returned_by_one_request_only() {
        let mut switch = DetachSwitch::<()>::new(|| Err(io::Error::other("no"))).unwrap();
        switch.request(true).unwrap();
        wait_until(|| !switch.is_changing());
        assert_eq!(switch.request(true).unwrap_err().to_string(), "no");
        switch.request(true).unwrap();
        assert!(!switch.is_on());
    }
}
