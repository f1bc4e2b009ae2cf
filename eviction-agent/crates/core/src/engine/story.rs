//! The engine's part in the OOM story: records go in, verdicts come out with any decision.

use crate::decision::{Action, Subject};
use crate::oom::{ContainerEnded, EndedContainer, OomKill, Story, StoryNote};
use crate::time::Timestamp;

use super::Engine;

impl Engine {
    /// Who was killed by the kernel, and why containers ended.
    pub fn story(&self) -> &Story {
        &self.story
    }

    /// What this engine decides is not carried out (a dry run): its evictions explain no
    /// container's end.
    pub fn only_advises(&mut self) {
        self.story.only_advises();
    }

    pub(super) fn take_kill(&mut self, at: Timestamp, kill: OomKill) -> Subject {
        Subject::Story(StoryNote::Kill(Box::new(self.story.kill(at, kill, &self.pods))))
    }

    pub(super) fn take_end(&mut self, at: Timestamp, end: ContainerEnded) -> Subject {
        Subject::Story(StoryNote::End(Box::new(self.story.end(at, end, &self.pods))))
    }

    /// The verdicts that can be given after this input. What it evicts itself explains no end
    /// that came before.
    pub(super) fn settle(
        &mut self,
        at: Timestamp,
        subject: &Subject,
        actions: &[Action],
    ) -> Vec<EndedContainer> {
        let touched = match subject {
            Subject::Story(StoryNote::Kill(note)) => note.kill.pod.as_deref(),
            Subject::Story(StoryNote::End(note)) => Some(&*note.end.pod),
            Subject::Noted | Subject::Pass(_) | Subject::NoPass(_) | Subject::Admission(_) => None,
        };
        let ended = self.story.settle(at, touched, &self.pods);
        if let Subject::Pass(pass) = subject {
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
