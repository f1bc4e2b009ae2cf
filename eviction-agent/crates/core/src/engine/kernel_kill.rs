//! The decision made ahead: [`crate::kernel_kill`].

use crate::input::{Event, Input};
use crate::kernel_kill::{ArmedKillOrder, HardLine, NotArmedReason, judge};
use crate::policy::eviction_settings::KernelKill;
use crate::snapshot::Snapshot;
use crate::time::Timestamp;

use super::Engine;

impl Engine {
    /// Who goes if the nearest hard line of memory is crossed, on a look with the figures of all
    /// pods at this time; changes nothing. Nobody if the line is more than `reach` bytes away.
    ///
    /// When it was carried out, a look at [`ArmedKillOrder::crossed_at`] tells the engine: the same
    /// decision comes of it, for real.
    ///
    /// # Errors
    /// Why nobody may be killed without another look.
    pub fn standing(
        &self,
        at: Timestamp,
        snapshot: &Snapshot,
        reach: u64,
    ) -> Result<ArmedKillOrder, NotArmedReason> {
        if self.policy.reflex == KernelKill::Off {
            return Err(NotArmedReason::Off);
        }
        if self.proposal.is_some() {
            return Err(NotArmedReason::PolicyWaits);
        }
        let line = HardLine::of(&self.thresholds, &self.policy.rules, snapshot, reach)?;
        let mut trial = self.clone();
        // The look may have been decided on already; its figures are as good as new.
        trial.thresholds.forget_figures();
        let event = Event::Sample(line.crossed(snapshot, at));
        judge(line, trial.step(Input { at, event }))
    }
}
