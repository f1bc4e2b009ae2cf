//! While the API server cannot be asked. The engine knows it, and pauses what has to pause; what was
//! asked for and not answered stays open until somebody knows.

use std::sync::Arc;

use eviction_core::input::{ApiReachability, Event, Input};
use eviction_core::pod::PodName;
use eviction_core::policy::eviction_settings::WhenApiServerDown;
use eviction_kill::KillStarted;

use super::super::clock::mono_ns;
use super::{ActiveEviction, ApiPhase, ControlLoop, State};

impl ControlLoop {
    /// From now on the API server can be asked, or cannot.
    pub(super) fn take_reach(&mut self, reach: ApiReachability) {
        self.state.reach = reach;
        let at = self.clock.now().wall;
        self.step(Input { at, event: Event::ApiServer(reach) });
        if reach == ApiReachability::Unreachable
            && self.engine.policy().hands.when_api_server_down == WhenApiServerDown::Kill
        {
            self.kill_unanswered();
        }
    }

    /// Whether nobody new is chosen until it is known what came of a request, where the engine does
    /// not know of it.
    pub(super) fn awaits_answer(&self) -> bool {
        let State { flight, reach, under_way, .. } = &self.state;
        let is_open = |it: &ActiveEviction| it.by_api == Some(ApiPhase::Open);
        flight.is_some() && *reach == ApiReachability::Reachable && under_way.iter().any(is_open)
    }

    /// Nobody knows what came of the request: the eviction is under way until somebody does.
    pub(super) fn leave_open(&mut self, pod: &PodName) {
        let at = self.clock.now().wall;
        self.step(Input { at, event: Event::EvictionUnconfirmed(pod.uid.clone()) });
    }

    /// Those that a hard threshold waits for, and that no server has said yes to, are killed: they
    /// were chosen, and nobody else has to be.
    fn kill_unanswered(&mut self) {
        let pods = Arc::clone(self.engine.pods());
        for index in 0..self.state.under_way.len() {
            let it = &self.state.under_way[index];
            let is_unanswered = matches!(it.by_api, Some(ApiPhase::Asked | ApiPhase::Open));
            let is_there = pods.place(&it.pod.uid).is_some();
            if !(is_there && it.hard && is_unanswered && !it.by_kill) {
                continue;
            }
            let groups = self.groups_of(&it.pod.uid);
            let target = it.target(groups, it.grace, mono_ns(), self.kill_on_growth());
            match self.executor.begin(&target) {
                Ok(KillStarted::Started | KillStarted::Hurried { .. }) => {
                    self.state.under_way[index].by_kill = true;
                    self.keep.note();
                }
                Err(refused) => {
                    self.notes.send(self.state.under_way[index].no_stand_in(&refused));
                }
            }
        }
    }
}
