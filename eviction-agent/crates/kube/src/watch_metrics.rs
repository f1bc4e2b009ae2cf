//! What a watch has been through, to be exported.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEvent {
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

impl WatchEvent {
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
pub struct WatchMetrics {
    counts: [AtomicU64; WatchEvent::ALL.len()],
    /// Milliseconds since the Unix epoch; 0 for never.
    heard_ms: AtomicU64,
    objects: AtomicU64,
}

impl WatchMetrics {
    /// How often it happened.
    pub fn count(&self, happened: WatchEvent) -> u64 {
        self.counts.get(happened as usize).map_or(0, |count| count.load(Relaxed))
    }

    /// When the last list, begin of a watch, event or bookmark came, since the Unix epoch.
    pub fn last_event(&self) -> Option<Duration> {
        let heard = self.heard_ms.load(Relaxed);
        (heard > 0).then(|| Duration::from_millis(heard))
    }

    /// How many objects are known.
    pub fn objects(&self) -> u64 {
        self.objects.load(Relaxed)
    }

    pub(crate) fn add(&self, happened: WatchEvent) {
        if let Some(count) = self.counts.get(happened as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn heard(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.heard_ms.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn hold(&self, objects: usize) {
        self.objects.store(objects as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::WatchEvent;

    #[test]
    fn each_has_its_own_counter() {
        for (place, happened) in WatchEvent::ALL.into_iter().enumerate() {
            assert_eq!(happened as usize, place);
        }
    }
}
