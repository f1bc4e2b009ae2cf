//! The dense hook: attached while a line is near, and not a moment longer.

use std::io;
use std::os::fd::OwnedFd;

use super::sys::attach_tracepoint;

/// A program that was loaded, and proved that it can be attached.
#[derive(Debug)]
pub(super) struct Near {
    program: OwnedFd,
    /// Closing it detaches the program.
    link: Option<OwnedFd>,
}

impl Near {
    pub(super) fn new(program: OwnedFd) -> Self {
        Self { program, link: None }
    }

    pub(super) fn is_attached(&self) -> bool {
        self.link.is_some()
    }

    pub(super) fn attach(&mut self) -> io::Result<()> {
        if self.link.is_none() {
            self.link = Some(attach_tracepoint(&self.program)?);
        }
        Ok(())
    }

    pub(super) fn detach(&mut self) {
        self.link = None;
    }
}
