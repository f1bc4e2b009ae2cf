//! What a recorded decision needs of the engine, which only this thread knows.
//!
//! To take it down takes memory, so that is done at the end of a turn, for the next one.

use crate::telemetry::decision_log::DecisionInputs;
use eviction_core::state::EngineState;

use super::ControlLoop;

/// What the engine knew at the end of the last turn.
#[derive(Debug, Default)]
pub(super) struct EngineCopy {
    memory: Option<EngineState>,
    /// The engine was told something since. Kept until the turn ends: to drop it asks the allocator as well.
    is_old: bool,
}

impl EngineCopy {
    /// The engine is told something.
    pub(super) fn outdate(&mut self) {
        self.is_old = true;
    }
}

impl ControlLoop {
    /// Takes down what the engine knows, where decisions are recorded.
    pub(super) fn take_down(&mut self) {
        let EngineCopy { memory, is_old } = &self.state.taken;
        if self.records && (memory.is_none() || *is_old) {
            self.state.taken = EngineCopy { memory: Some(self.engine.memory()), is_old: false };
        }
    }

    /// What the engine knows before a look, where decisions are recorded.
    pub(super) fn memory_to_record(&mut self) -> Option<EngineState> {
        let EngineCopy { memory, is_old } = &mut self.state.taken;
        match memory {
            Some(_) if !*is_old => memory.take(),
            // It was told of a kill, for one, a moment ago.
            _ => self.records.then(|| self.engine.memory()),
        }
    }

    /// The same with what it decided by, if anybody went.
    pub(super) fn before(&self, memory: Option<EngineState>, evicts: bool) -> Option<Box<DecisionInputs>> {
        let memory = memory.filter(|_| evicts)?;
        Some(Box::new(DecisionInputs { policy: self.engine.policy().clone(), memory }))
    }
}
