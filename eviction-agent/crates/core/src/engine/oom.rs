//! The engine's part in the OOM story: records go in, verdicts come out with any decision.

use crate::decision::{Action, DecisionKind};
use crate::oom::{ContainerEnded, EndedContainer, OomKill, OomTracker, OomUpdate};
use crate::time::Timestamp;

use super::Engine;

impl Engine {
    /// Who was killed by the kernel, and why containers ended.
    pub fn story(&self) -> &OomTracker {
        &self.story
    }

    /// What this engine decides is not carried out (a dry run): its evictions explain no
    /// container's end.
    pub fn only_advises(&mut self) {
        self.story.only_advises();
    }

    pub(super) fn take_kill(&mut self, at: Timestamp, kill: OomKill) -> DecisionKind {
        DecisionKind::Story(OomUpdate::Kill(Box::new(self.story.kill(at, kill, &self.pods))))
    }

    pub(super) fn take_end(&mut self, at: Timestamp, end: ContainerEnded) -> DecisionKind {
        DecisionKind::Story(OomUpdate::End(Box::new(self.story.end(at, end, &self.pods))))
    }

    /// The verdicts that can be given after this input. What it evicts itself explains no end
    /// that came before.
    pub(super) fn settle(
        &mut self,
        at: Timestamp,
        subject: &DecisionKind,
        actions: &[Action],
    ) -> Vec<EndedContainer> {
        let touched = match subject {
            DecisionKind::Story(OomUpdate::Kill(note)) => note.kill.pod.as_deref(),
            DecisionKind::Story(OomUpdate::End(note)) => Some(&*note.end.pod),
            DecisionKind::Noted
            | DecisionKind::Pass(_)
            | DecisionKind::NoPass(_)
            | DecisionKind::Admission(_) => None,
        };
        let ended = self.story.settle(at, touched, &self.pods);
        if let DecisionKind::Pass(pass) = subject {
            for action in actions {
                let Action::Evict(eviction) = action else { continue };
                if let Some(known) = pass.pods.pods().get(eviction.place as usize) {
                    self.story.evicting(at, known, &pass.pods);
                }
            }
        }
        ended
    }
}
