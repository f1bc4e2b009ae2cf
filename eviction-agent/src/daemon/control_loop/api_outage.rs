//! While the API server cannot be asked. The engine knows it, and pauses what has to pause; what was
//! asked for and not answered stays open until somebody knows.

use eviction_core::in_flight::{ApiPhase, ExecutorUpdate, InFlightEviction};
use eviction_core::input::{ApiReachability, Event, Input};
use eviction_core::policy::eviction_settings::WhenApiServerDown;

use super::ControlLoop;
use super::evictions::grace_of;

impl ControlLoop {
    /// From now on the API server can be asked, or cannot.
    pub(super) fn take_reach(&mut self, reach: ApiReachability) {
        self.state.reach = reach;
        let at = self.clock.now().wall;
        self.step(Input { at, event: Event::ApiServer(reach) });
        if reach == ApiReachability::Reachable {
            // Before the next one is evicted.
            return self.review_freeze();
        }
        match self.engine.policy().eviction.when_api_server_down {
            WhenApiServerDown::Wait => {}
            WhenApiServerDown::Kill => self.kill_unanswered(),
            WhenApiServerDown::Freeze => self.freeze_unanswered(),
        }
    }

    /// Those that a hard threshold waits for, and that no server has said yes to.
    pub(super) fn unanswered(&self) -> Vec<InFlightEviction> {
        let pods = self.engine.pods();
        let is_meant = |it: &&InFlightEviction| {
            let is_unanswered = matches!(it.api, Some(ApiPhase::Asked | ApiPhase::Unconfirmed));
            it.hard && is_unanswered && !it.killing && pods.index_of(&it.pod.uid).is_some()
        };
        self.executing().filter(is_meant).cloned().collect()
    }

    /// Kills them: they were chosen, so no other pod has to be.
    fn kill_unanswered(&mut self) {
        for it in self.unanswered() {
            let Some(target) = self.target_again(&it, grace_of(&it)) else { continue };
            match self.executor.begin(&target) {
                Ok(()) => self.update(target.decision, ExecutorUpdate::KillStarted),
                Err(refused) => self.tell_no_stand_in(&it, &refused),
            }
        }
    }
}
