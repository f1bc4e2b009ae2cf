//! What a watch has been through, to be exported.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use eviction_node::clock::now_ns;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// An object came, changed in what counts, or went.
    Changed,
    /// An object is as it was, in everything that counts.
    Unchanged,
    /// An event that was told before.
    Repeated,
    /// An event that is older than what is known.
    Reordered,
    /// An object or a line that is not understood.
    Unreadable,
    /// An object or a line that is too long.
    TooLong,
    /// An object beyond the number that is kept.
    TooMany,
    /// A bookmark.
    Bookmark,
    /// A list was read from begin to end.
    Listed,
    /// A watch was begun.
    Watched,
    /// The server ended a watch in time.
    Closed,
    /// The server no longer knows what has happened since.
    Expired,
    /// A list or a watch did not come about, or broke.
    Failed,
}

impl Happened {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 13] = [
        Self::Changed,
        Self::Unchanged,
        Self::Repeated,
        Self::Reordered,
        Self::Unreadable,
        Self::TooLong,
        Self::TooMany,
        Self::Bookmark,
        Self::Listed,
        Self::Watched,
        Self::Closed,
        Self::Expired,
        Self::Failed,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Repeated => "repeated",
            Self::Reordered => "reordered",
            Self::Unreadable => "unreadable",
            Self::TooLong => "too_long",
            Self::TooMany => "too_many",
            Self::Bookmark => "bookmark",
            Self::Listed => "listed",
            Self::Watched => "watched",
            Self::Closed => "closed",
            Self::Expired => "expired",
            Self::Failed => "failed",
        }
    }
}

/// Counters of one watch; shared with whoever exports them.
#[derive(Debug, Default)]
pub struct Figures {
    counts: [AtomicU64; Happened::ALL.len()],
    /// On the monotonic clock; 0 for never.
    heard_ns: AtomicU64,
    objects: AtomicU64,
}

impl Figures {
    /// How often it happened.
    pub fn count(&self, happened: Happened) -> u64 {
        self.counts.get(happened as usize).map_or(0, |count| count.load(Relaxed))
    }

    /// Seconds since the server was last heard of in this matter: a list, the begin of a watch, an
    /// event or a bookmark.
    pub fn age_seconds(&self) -> Option<f64> {
        let heard = self.heard_ns.load(Relaxed);
        #[expect(clippy::cast_precision_loss, reason = "seconds for a metric")]
        let age = (heard > 0).then(|| now_ns().saturating_sub(heard) as f64 / 1e9);
        age
    }

    /// How many objects are known.
    pub fn objects(&self) -> u64 {
        self.objects.load(Relaxed)
    }

    pub(super) fn add(&self, happened: Happened) {
        if let Some(count) = self.counts.get(happened as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn heard(&self) {
        self.heard_ns.store(now_ns().max(1), Relaxed);
    }

    pub(super) fn hold(&self, objects: usize) {
        self.objects.store(objects as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Happened;

    #[test]
    fn each_has_its_own_counter() {
        for (place, happened) in Happened::ALL.into_iter().enumerate() {
            assert_eq!(happened as usize, place);
        }
    }
}
