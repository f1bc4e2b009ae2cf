//! What a recorded decision needs of the engine, which only this thread knows.

use crate::core::memory::Memory;
use crate::journal::Before;

use super::Reaction;

impl Reaction {
    /// What the engine knows before a look, where decisions are recorded.
    pub(super) fn memory_to_record(&self) -> Option<Memory> {
        self.records.then(|| self.engine.memory())
    }

    /// The same with what it decided by, if anybody went.
    pub(super) fn before(&self, memory: Option<Memory>, evicts: bool) -> Option<Box<Before>> {
        let memory = memory.filter(|_| evicts)?;
        Some(Box::new(Before { policy: self.engine.policy().clone(), memory }))
    }
}
