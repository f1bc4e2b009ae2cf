//! Freezing a pod for a while: it uses no more memory, loses nothing, and can go on.

use std::os::fd::AsFd as _;

use super::killer::{KillMode, Killer};
use super::scoped_write::ScopedWrite;
use super::target::CgroupDirs;
use eviction_core::error::chain;
use eviction_core::progress::KillRejection;

/// A frozen pod. Its processes run again when this is dropped, and when an agent starts after one that was killed.
#[derive(Debug)]
pub struct FrozenPod {
    _holds: Vec<ScopedWrite>,
}

impl Killer {
    /// Freezes a pod's groups, and returns before all of their tasks have stopped. Nothing for a dry run, in which it
    /// is only checked whether they may be frozen.
    ///
    /// # Errors
    /// Why the pod cannot be frozen; no part of it is frozen then.
    pub fn freeze(&mut self, groups: &[CgroupDirs]) -> Result<Option<FrozenPod>, KillRejection> {
        let groups = self.pin(groups)?;
        match self.count(&groups) {
            // No signal is sent, so that it does not matter in which PID namespace the processes are.
            Ok(_) | Err(KillRejection::Unreachable { .. }) => {}
            Err(rejection) => return Err(rejection),
        }
        let broken = |what: String| KillRejection::Broken { what };
        let mut holds = Vec::with_capacity(groups.len());
        for group in &groups {
            let (dir, path) =
                group.freezer.as_ref().ok_or_else(|| broken("the pod has no freezer".into()))?;
            if self.mode() == KillMode::DryRun {
                continue;
            }
            match ScopedWrite::freeze(dir.as_fd(), path, self.undo_log()) {
                Ok(hold) => holds.extend(hold),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(broken(chain(&error))),
            }
        }
        Ok((self.mode() == KillMode::Kill).then_some(FrozenPod { _holds: holds }))
    }
}
