//! How much of the machine's memory the kernel keeps free. Free memory beyond that can be allocated without
//! reclaiming page cache; a kernel kill depends on it.
//!
//! Before the kernel allocates a page for a process, a zone must have more free pages than its watermark plus
//! its reserve for allocations that can use no other zone (`lowmem_reserve`; `__zone_watermark_ok` in
//! mm/page_alloc.c). If no zone has as many, `kswapd` or the process itself reclaims page cache.
//!
//! `/proc/zoneinfo` is not read in the control loop, since it has several lines for each CPU and zone.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::file::{NOT_FOUND, complete_lines, parse_number, read_once, reason_text, record_once, words};
use eviction_core::reading::{Reading, UnknownReason};

/// The read interval. Watermarks change when an administrator sets them, and rise for a moment when memory is
/// fragmented.
const PERIOD: Duration = Duration::from_secs(5);

/// The longest text that is read, in bytes. A machine with 1024 CPUs has less.
const LIMIT: usize = 8 << 20;

const UNKNOWN: u64 = u64::MAX;

/// The last value, in bytes. The control loop reads it; a task outside of the loop writes it.
#[derive(Clone, Debug)]
pub struct Watermarks(Arc<AtomicU64>);

impl Default for Watermarks {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(UNKNOWN)))
    }
}

impl Watermarks {
    /// Returns how much of `free` can be allocated without reclaim, in bytes; `None` if either value is
    /// unknown.
    pub fn above_reserve(&self, free: Reading<u64>) -> Option<u64> {
        let reserved = self.0.load(Ordering::Relaxed);
        free.known().filter(|_| reserved != UNKNOWN).map(|free| free.saturating_sub(reserved))
    }

    /// Reads the watermarks periodically, until dropped.
    pub async fn refresh(self, proc: PathBuf) {
        let mut was_known = true;
        loop {
            was_known = self.read(&proc, was_known);
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Reads the watermarks. Returns whether they are known; logs once when they become unknown.
    fn read(&self, proc: &Path, was_known: bool) -> bool {
        let path = proc.join("zoneinfo");
        let page = rustix::param::page_size() as u64;
        match read_once(&path, LIMIT).and_then(|text| parse_zoneinfo_reserve(&text)) {
            Ok(pages) => {
                self.0.store(pages.saturating_mul(page).min(UNKNOWN - 1), Ordering::Relaxed);
                true
            }
            Err(why) => {
                self.0.store(UNKNOWN, Ordering::Relaxed);
                if was_known {
                    tracing::warn!(
                        path = %path.display(),
                        why = %reason_text(why), "no kernel kill while the page cache is reclaimed");
                }
                false
            }
        }
    }
}

/// Parses how many pages are free now and stay free: of each zone as many as its high watermark, up to which
/// `kswapd` works, and its reserve against memory of processes.
///
/// # Errors
/// Why the number is unknown: the text is cut off, or a zone lacks one of the values.
pub fn parse_zoneinfo_reserve(text: &[u8]) -> Result<u64, UnknownReason> {
    let mut reserved = 0_u64;
    let mut zone: Option<[Result<u64, UnknownReason>; 3]> = None;
    for line in complete_lines(text)? {
        let mut words = words(line);
        let Some(first) = words.next() else { continue };
        if first == b"Node" {
            reserved = add_zone(reserved, zone)?;
            zone = Some([NOT_FOUND; 3]);
            continue;
        }
        let Some([free, high, reserve]) = &mut zone else { continue };
        match first {
            b"pages" if words.next() == Some(b"free") => record_once(free, number(words.next())),
            b"high" => record_once(high, number(words.next())),
            // The last reserve is the one against allocations from any zone, such as memory of processes.
            b"protection:" => {
                record_once(reserve, number(words.last().and_then(|word| word.strip_suffix(b")"))));
            }
            _ => {}
        }
    }
    add_zone(reserved, zone.ok_or(UnknownReason::Absent).map(Some)?)
}

fn add_zone(reserved: u64, zone: Option<[Result<u64, UnknownReason>; 3]>) -> Result<u64, UnknownReason> {
    let Some([free, high, reserve]) = zone else { return Ok(reserved) };
    let zone_reserved = high?.saturating_add(reserve?);
    Ok(reserved.saturating_add(free?.min(zone_reserved)))
}

/// Parses a number. The number of a list with one element has the bracket before it.
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
    fn each_zone_keeps_its_watermark_and_its_reserve_free() {
        // All pages of the first zone, which are fewer than its reserve; the last zone has none.
        assert_eq!(parse_zoneinfo_reserve(TEXT.as_bytes()), Ok(3840 + 3660 + 21071));
    }

    #[test]
    fn missing_or_invalid_zone_value_makes_the_result_unknown() {
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
            assert_eq!(
                parse_zoneinfo_reserve(TEXT.replacen(from, to, 1).as_bytes()),
                Err(why),
                "{from} → {to}"
            );
        }
        assert_eq!(parse_zoneinfo_reserve(b""), Err(UnknownReason::Unparsable));
        assert_eq!(parse_zoneinfo_reserve(b"\n"), Err(UnknownReason::Absent));
        assert_eq!(parse_zoneinfo_reserve(TEXT.trim_end().as_bytes()), Err(UnknownReason::Unparsable));
    }

    #[test]
    fn zoneinfo_of_this_machine_is_parsed() {
        let text = std::fs::read("/proc/zoneinfo").unwrap();
        assert!(parse_zoneinfo_reserve(&text).unwrap() > 0);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>) {
            let _ = parse_zoneinfo_reserve(&bytes);
        }
    }

    #[test]
    fn free_memory_beyond_the_watermarks_can_be_allocated() {
        let folder = tempfile::tempdir().unwrap();
        let watermarks = Watermarks::default();
        assert_eq!(watermarks.above_reserve(Reading::Known(1 << 30)), None, "not read so far");
        let text = "Node 0, zone Normal\n  pages free 5000\n        high 100\n        protection: (0, 28)\n";
        std::fs::write(folder.path().join("zoneinfo"), text).unwrap();
        assert!(watermarks.read(folder.path(), true));
        let bytes = 128 * rustix::param::page_size() as u64;
        assert_eq!(watermarks.above_reserve(Reading::Known(bytes + 7)), Some(7));
        assert_eq!(watermarks.above_reserve(Reading::Known(7)), Some(0));
        assert_eq!(watermarks.above_reserve(Reading::Unknown(UnknownReason::Absent)), None);
        std::fs::write(folder.path().join("zoneinfo"), "Node 0, zone Normal\n").unwrap();
        assert!(!watermarks.read(folder.path(), true));
        assert_eq!(
            watermarks.above_reserve(Reading::Known(bytes)),
            None,
            "what was known once may be so no more"
        );
    }
}
