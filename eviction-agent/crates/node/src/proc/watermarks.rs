//! How much of the machine's memory the kernel keeps free: what is free beyond that can be taken
//! without page cache making room, which a kernel kill must know.
//!
//! Before a page is taken for a process, more must be free in its zone than the zone's watermark
//! and what it holds ready for those who can use no other (`lowmem_reserve`; `__zone_watermark_ok` in
//! mm/page_alloc.c). Where no zone has as much, `kswapd` or the process itself takes page cache back.
//!
//! `/proc/zoneinfo` is read on the slow side, since it has several lines for each CPU and zone.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::file::{InWords, read_once};
use crate::kv_file::{SingleValue, complete_lines, parse_number, words};
use crate::timer::Timer;
use eviction_core::reading::{Reading, UnknownReason};

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
                tracing::error!(%error, "the timer of free memory: no kernel kill while the page cache is reclaimed");
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
                        why = %InWords(why), "no kernel kill while the page cache is reclaimed");
                }
                false
            }
        }
    }
}

/// Pages that are free now and will stay so: of each zone as many as its high watermark, up to which
/// `kswapd` works, and its reserve against memory of processes.
///
/// # Errors
/// Why it is not known: the text is cut off, or a zone lacks one of the figures.
pub fn parse_kept_free(text: &[u8]) -> Result<u64, UnknownReason> {
    let mut kept = 0_u64;
    let mut zone: Option<[SingleValue; 3]> = None;
    for line in complete_lines(text)? {
        let mut words = words(line);
        let Some(first) = words.next() else { continue };
        if first == b"Node" {
            kept = add(kept, zone)?;
            zone = Some([SingleValue::NEW; 3]);
            continue;
        }
        let Some([free, high, reserve]) = &mut zone else { continue };
        match first {
            b"pages" if words.next() == Some(b"free") => free.found(number(words.next())),
            b"high" => high.found(number(words.next())),
            // The last one is against what may be anywhere, as memory of processes may.
            b"protection:" => reserve.found(number(words.last().and_then(|word| word.strip_suffix(b")")))),
            _ => {}
        }
    }
    add(kept, zone.ok_or(UnknownReason::Absent).map(Some)?)
}

fn add(kept: u64, zone: Option<[SingleValue; 3]>) -> Result<u64, UnknownReason> {
    let Some(zone) = zone else { return Ok(kept) };
    let [free, high, reserve] = zone.map(SingleValue::get);
    let held = high?.saturating_add(reserve?);
    Ok(kept.saturating_add(free?.min(held)))
}

/// A number, of a list with one element with the bracket before it.
fn number(word: Option<&[u8]>) -> Result<u64, UnknownReason> {
    let word = word.ok_or(UnknownReason::Unparsable)?;
    parse_number(word.strip_prefix(b"(").unwrap_or(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 92019
  pages free     3840
        boost    0
        min      10
        low      13
        high     16
        spanned  4095
        protection: (0, 3019, 24090, 24090, 24090)
      nr_free_pages 3840
  pagesets
    cpu: 0
              count:    0
              high:     0
Node 0, zone    DMA32
  pages free     766810
        high     3660
        protection: (0, 0, 21071, 21071, 21071)
              high:     1444
Node 0, zone  Movable
  pages free     0
        high     32
        protection: (0)
";

    #[test]
    fn each_zone_keeps_its_watermark_and_its_reserve() {
        // All of the first, which is less than its reserve; of the last there is nothing.
        assert_eq!(parse_kept_free(TEXT.as_bytes()), Ok(3840 + 3660 + 21071));
    }

    #[test]
    fn what_is_missing_makes_all_unknown() {
        for (from, to, why) in [
            ("  pages free     766810\n", "", UnknownReason::Absent),
            ("        high     16\n", "", UnknownReason::Absent),
            (
                "        high     16\n",
                "        high     16\n        high     17\n",
                UnknownReason::Unparsable,
            ),
            ("high     16", "high     -16", UnknownReason::Implausible),
            ("24090)", "24090", UnknownReason::Unparsable),
            ("24090)", "many)", UnknownReason::Unparsable),
        ] {
            assert_eq!(parse_kept_free(TEXT.replacen(from, to, 1).as_bytes()), Err(why), "{from} → {to}");
        }
        assert_eq!(parse_kept_free(b""), Err(UnknownReason::Unparsable));
        assert_eq!(parse_kept_free(b"\n"), Err(UnknownReason::Absent));
        assert_eq!(parse_kept_free(TEXT.trim_end().as_bytes()), Err(UnknownReason::Unparsable));
    }

    #[test]
    fn this_machine_has_one() {
        let text = std::fs::read("/proc/zoneinfo").unwrap();
        assert!(parse_kept_free(&text).unwrap() > 0);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            let _ = parse_kept_free(&bytes);
        }
    }

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
