//! The memory in use of the node or of a cgroup.

/// Memory in use, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Bytes in use, page cache included.
    pub usage: u64,
    /// Bytes in use less inactive page cache.
    pub working_set: u64,
}

impl MemoryUsage {
    /// The same where another measure than the working set says what is available: what it
    /// does not call available is used. No measure loses more than is charged.
    pub fn by_measure(self, capacity: u64, available: Option<i64>) -> Self {
        let used = available.map(|available| capacity.saturating_sub(available.max(0).unsigned_abs()));
        Self { working_set: used.unwrap_or(self.working_set), ..self }
    }
}
