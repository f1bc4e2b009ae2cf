//! A hook for a time: attached while it is worth its cost, and not a moment longer.

use std::io;
use std::os::fd::OwnedFd;

use super::attach::Link;
use super::plan::{At, When};

/// A program that was loaded, and proved that it can be attached.
#[derive(Debug)]
pub(super) struct Near {
    pub(super) when: When,
    at: At,
    program: OwnedFd,
    id: u32,
    link: Option<Link>,
}

impl Near {
    /// Takes the program off.
    pub(super) fn new(when: When, at: At, program: OwnedFd, link: Link) -> Self {
        Self { when, at, program, id: link.program, link: None }
    }

    pub(super) fn is_attached(&self) -> bool {
        self.link.is_some()
    }

    pub(super) fn attach(&mut self) -> io::Result<()> {
        if self.link.is_none() {
            self.link = Some(Link::new(self.at, &self.program, self.id)?);
        }
        Ok(())
    }

    pub(super) fn detach(&mut self) {
        self.link = None;
    }

    pub(super) fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }
}
