//! A hook for a time: attached while it is worth its cost, and not a moment longer.

use std::io;
use std::os::fd::OwnedFd;

use super::attach::{self, Link};
use super::attach_method::{AttachWhen, HookPoint};
use super::switch::DetachSwitch;

/// A program that was loaded, and proved that it can be attached.
#[derive(Debug)]
pub(super) struct OnDemandProbe {
    pub(super) when: AttachWhen,
    switch: DetachSwitch<Link>,
    /// Kept for what the kernel counts of it, which outlives each link.
    program: OwnedFd,
}

impl OnDemandProbe {
    /// Takes the program off.
    ///
    /// # Errors
    /// If the thread that attaches it cannot be started.
    pub(super) fn new(when: AttachWhen, at: HookPoint, program: OwnedFd, link: Link) -> io::Result<Self> {
        let id = link.program;
        drop(link);
        let kept = program.try_clone()?;
        Ok(Self {
            when,
            switch: DetachSwitch::new("hook", move || Link::new(at, &program, id))?,
            program: kept,
        })
    }

    pub(super) fn is_attached(&self) -> bool {
        self.switch.is_on()
    }

    pub(super) fn is_changing(&self) -> bool {
        self.switch.is_changing()
    }

    /// Asks for it to be attached, or taken off, and does not wait.
    ///
    /// # Errors
    /// The kernel's, if it has refused to attach it.
    pub(super) fn ask(&mut self, wanted: bool) -> io::Result<()> {
        self.switch.ask(wanted)
    }

    /// See [`attach::runs_missed`].
    pub(super) fn runs_missed(&self) -> io::Result<u64> {
        attach::runs_missed(&self.program)
    }

    /// Looks at the link, if there is one.
    pub(super) fn link<R>(&self, look: impl FnOnce(&Link) -> R) -> Option<R> {
        self.switch.look(look)
    }
}
