//! Copies of the engine's state for recorded decisions.
//!
//! A copy allocates, so it is made at the end of an iteration, for the next one.

use crate::telemetry::decision_log::DecisionInputs;
use eviction_core::state::EngineState;

use super::ControlLoop;

/// The engine's state at the end of the last iteration.
#[derive(Debug, Default)]
pub(super) struct EngineCopy {
    memory: Option<EngineState>,
    /// The engine had another input since. Kept until the iteration ends: dropping it calls the allocator.
    is_old: bool,
}

impl EngineCopy {
    /// The engine has another input.
    pub(super) fn outdate(&mut self) {
        self.is_old = true;
    }
}

impl ControlLoop {
    /// Copies the engine's state, where decisions are recorded.
    pub(super) fn take_down(&mut self) {
        let EngineCopy { memory, is_old } = &self.state.engine_copy;
        if self.records && (memory.is_none() || *is_old) {
            self.state.engine_copy = EngineCopy { memory: Some(self.engine.state()), is_old: false };
        }
    }

    /// The engine's state before a sample, where decisions are recorded.
    pub(super) fn memory_to_record(&mut self) -> Option<EngineState> {
        let EngineCopy { memory, is_old } = &mut self.state.engine_copy;
        match memory {
            Some(_) if !*is_old => memory.take(),
            // It had another input since, such as an OOM kill.
            _ => self.records.then(|| self.engine.state()),
        }
    }

    /// The same with the policy, if a pod was evicted.
    pub(super) fn decision_inputs(
        &self,
        memory: Option<EngineState>,
        evicts: bool,
    ) -> Option<Box<DecisionInputs>> {
        let memory = memory.filter(|_| evicts)?;
        Some(Box::new(DecisionInputs { policy: self.engine.policy().clone(), memory }))
    }
}
