//! How much of the machine's memory the kernel keeps free: what is free beyond that can be taken
//! without page cache making room, which a kernel kill must know.
//!
//! Read on the slow side, since the text has several lines for each CPU and zone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::file::{InWords, read_once};
use crate::proc::zoneinfo::parse_kept_free;
use crate::timer::Timer;
use eviction_core::reading::Reading;

/// Watermarks change when an administrator says so, and rise for a moment when memory is scattered.
const PERIOD: Duration = Duration::from_secs(5);

/// A machine with 1024 CPUs has less.
const LIMIT: usize = 8 << 20;

const UNKNOWN: u64 = u64::MAX;

/// The last figure, in bytes. Written on the slow side, read by the reaction.
#[derive(Clone, Debug)]
pub struct Watermarks(Arc<AtomicU64>);

impl Default for Watermarks {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(UNKNOWN)))
    }
}

impl Watermarks {
    /// What can be taken of so much free memory; nothing is said where either is not known.
    pub fn room(&self, free: Reading<u64>) -> Option<u64> {
        let kept = self.0.load(Ordering::Relaxed);
        free.known().filter(|_| kept != UNKNOWN).map(|free| free.saturating_sub(kept))
    }

    /// Reads it again and again, until dropped.
    pub async fn follow(self, proc: PathBuf, timer: Timer) {
        let mut was_known = true;
        loop {
            let is_known = self.read(&proc, was_known);
            was_known = is_known;
            let waited = match timer.set_once(PERIOD) {
                Ok(()) => timer.expired().await,
                Err(error) => Err(error),
            };
            if let Err(error) = waited {
                self.0.store(UNKNOWN, Ordering::Relaxed);
                tracing::error!(%error, "the timer of free memory: the reflex withholds while the page cache makes room");
                return;
            }
        }
    }

    /// Whether it is known now. Said once where it is not.
    fn read(&self, proc: &Path, was_known: bool) -> bool {
        let path = proc.join("zoneinfo");
        let page = rustix::param::page_size() as u64;
        match read_once(&path, LIMIT).and_then(|text| parse_kept_free(&text)) {
            Ok(pages) => {
                self.0.store(pages.saturating_mul(page).min(UNKNOWN - 1), Ordering::Relaxed);
                true
            }
            Err(why) => {
                self.0.store(UNKNOWN, Ordering::Relaxed);
                if was_known {
                    tracing::warn!(
                        path = %path.display(),
                        why = %InWords(why), "the reflex withholds while the page cache makes room");
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_core::reading::UnknownReason;

    #[test]
    fn what_is_free_beyond_what_is_kept_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Watermarks::default();
        assert_eq!(kept.room(Reading::Known(1 << 30)), None, "not read so far");
        let text = "Node 0, zone Normal\n  pages free 5000\n        high 100\n        protection: (0, 28)\n";
        std::fs::write(folder.path().join("zoneinfo"), text).unwrap();
        assert!(kept.read(folder.path(), true));
        let bytes = 128 * rustix::param::page_size() as u64;
        assert_eq!(kept.room(Reading::Known(bytes + 7)), Some(7));
        assert_eq!(kept.room(Reading::Known(7)), Some(0));
        assert_eq!(kept.room(Reading::Unknown(UnknownReason::Absent)), None);
        std::fs::write(folder.path().join("zoneinfo"), "Node 0, zone Normal\n").unwrap();
        assert!(!kept.read(folder.path(), true));
        assert_eq!(kept.room(Reading::Known(bytes)), None, "what was known once may be so no more");
    }
}
