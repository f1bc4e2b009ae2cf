//! The memory of a look that nobody needs any more, for the next one.

use std::mem::take;
use std::sync::Arc;

use super::{Snapshot, SnapshotBuilder};

/// Room for one snapshot. While every snapshot comes back before the next one is begun, looks
/// allocate nothing, unless there is more to see than there ever was.
#[derive(Debug, Default)]
pub struct SnapshotPool(Option<Arc<Snapshot>>);

impl SnapshotPool {
    /// Begins a snapshot: in the memory of the one that came back, if there is one.
    pub fn begin(&mut self) -> SnapshotBuilder {
        match self.0.as_mut().and_then(Arc::get_mut) {
            Some(old) => SnapshotBuilder::reuse(take(old)),
            None => SnapshotBuilder::new(),
        }
    }

    /// Shares a snapshot that is finished.
    pub fn share(&mut self, snapshot: Snapshot) -> Arc<Snapshot> {
        let Some(mut block) = self.0.take() else {
            return Arc::new(snapshot);
        };
        match Arc::get_mut(&mut block) {
            Some(place) => *place = snapshot,
            None => block = Arc::new(snapshot),
        }
        block
    }

    /// Takes a snapshot back, unless somebody else keeps it.
    pub fn recycle(&mut self, mut snapshot: Arc<Snapshot>) {
        if Arc::get_mut(&mut snapshot).is_some() {
            self.0 = Some(snapshot);
        }
    }
}
