//! `/proc/vmstat`: the number of OOM kills on the machine.
#![forbid(unsafe_code)]

use std::path::Path;

use crate::file::{OpenFile, parse_keys};
use eviction_core::reading::{Reading, UnknownReason};

/// Parses the number of processes that the OOM killer has killed since boot, for any limit (`oom_kill` in the
/// text of `/proc/vmstat`, from 4.13).
pub fn parse_oom_kills(text: &[u8]) -> Result<u64, UnknownReason> {
    let [kills] = parse_keys(text, [b"oom_kill"], None);
    kills
}

/// The longest text that is read, in bytes. The text has about 4 KiB.
const MAX_BYTES: usize = 1 << 20;

/// Reads the OOM kills through an open descriptor into a buffer that is kept, so that the control loop waits
/// neither for a path lookup nor for the allocator.
#[derive(Debug)]
pub struct OomKillCounter {
    file: Result<OpenFile, UnknownReason>,
    text: Vec<u8>,
}

impl OomKillCounter {
    /// Opens `vmstat` in the folder `proc`.
    pub fn open(proc: &Path) -> Self {
        let mut counter = Self { file: OpenFile::open(&proc.join("vmstat")), text: Vec::new() };
        // This grows the buffer to its size.
        counter.read();
        counter
    }

    /// Reads the number of OOM kills since boot.
    pub fn read(&mut self) -> Reading<u64> {
        let file = self.file.as_ref().map_err(|why| *why);
        file.and_then(|file| parse_oom_kills(file.read_all(&mut self.text, MAX_BYTES)?)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn oom_kill_count_is_parsed() {
        assert_eq!(parse_oom_kills(b"nr_free_pages 1\noom_kill 7\noom_killers 9\n"), Ok(7));
        assert_eq!(parse_oom_kills(b"nr_free_pages 1\n"), Err(UnknownReason::Absent));
        assert_eq!(parse_oom_kills(b"oom_kill 7\noom_kill 7\n"), Err(UnknownReason::Unparsable));
        assert_eq!(parse_oom_kills(b"oom_kill 7"), Err(UnknownReason::Unparsable));
        assert_eq!(parse_oom_kills(b"oom_kill -7\n"), Err(UnknownReason::Implausible));
    }

    #[test]
    fn oom_kill_count_of_this_machine_is_read() {
        assert!(OomKillCounter::open(Path::new("/proc")).read().known().is_some());
        assert_eq!(
            OomKillCounter::open(Path::new("/nonexistent")).read(),
            Reading::Unknown(UnknownReason::Unreadable(2))
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>) {
            let _ = parse_oom_kills(&bytes);
        }
    }
}
