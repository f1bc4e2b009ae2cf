//! A hook for a time: attached while it is worth its cost, and not a moment longer.

use std::io;
use std::os::fd::OwnedFd;

use super::attach::{self, Link};
use super::attach_best::AttachedProgram;
use super::attach_method::{AttachWhen, EventClass};
use super::switch::DetachSwitch;

/// Programs that were loaded, and proved that they can be attached.
#[derive(Debug)]
pub(super) struct OnDemandProbe {
    pub(super) class: EventClass,
    pub(super) when: AttachWhen,
    switch: DetachSwitch<Vec<Link>>,
    /// Kept for what the kernel counts of it, which outlives each link.
    programs: Vec<OwnedFd>,
}

impl OnDemandProbe {
    /// Takes the programs off.
    ///
    /// # Errors
    /// If the thread that attaches them cannot be started.
    pub(super) fn new(
        class: EventClass,
        when: AttachWhen,
        attached: Vec<AttachedProgram>,
    ) -> io::Result<Self> {
        let (mut programs, mut again) = (Vec::new(), Vec::new());
        for AttachedProgram { at, program, link } in attached {
            programs.push(program.try_clone()?);
            again.push((at, program, link.program));
        }
        let attach = move || again.iter().map(|(at, program, id)| Link::new(*at, program, *id)).collect();
        Ok(Self { class, when, switch: DetachSwitch::new("hook", attach)?, programs })
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
    pub(super) fn runs_missed(&self) -> u64 {
        self.programs.iter().filter_map(|program| attach::runs_missed(program).ok()).sum()
    }

    /// Looks at the links, if there are any.
    pub(super) fn links<R>(&self, look: impl FnOnce(&[Link]) -> R) -> Option<R> {
        self.switch.look(|links| look(links))
    }
}
