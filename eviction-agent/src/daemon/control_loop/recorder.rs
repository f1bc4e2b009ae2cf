//! What the recorder is told beside the inputs.

use std::sync::Arc;

use super::ControlLoop;
use crate::telemetry::recording::Key;

impl ControlLoop {
    /// Sends all that an engine needs to go on from here, if the recorder begins a segment. That allocates,
    /// so it comes at the end of an iteration.
    pub(crate) fn record_key(&mut self) {
        let Some(recorder) = self.recorder.as_mut().filter(|it| it.wants_key()) else { return };
        let layout = (!self.engine.wants_layout()).then(|| self.node_sampler.disks.layout());
        recorder.key(Key {
            at: self.clock.now().wall,
            policy: self.engine.policy().clone(),
            dry_run: false,
            state: self.engine.state(),
            layout,
            terminating: self.state.terminating.iter().map(|it| it.uid().into()).collect(),
            api: self.state.reach,
            lost: 0,
            pods: Arc::clone(self.engine.pods()),
        });
    }
}
