//! `/proc/vmstat`: the machine's own count of out-of-memory kills.
#![forbid(unsafe_code)]

use std::path::Path;

use rustix::io::Errno;

use crate::file::{KeptFile, unreadable};
use crate::kv_file::{SingleValue, complete_lines, parse_number};
use eviction_core::reading::{Reading, UnknownReason};

/// Processes that out-of-memory killers have killed since boot, whoever's limit it was
/// (`oom_kill` in the text of `/proc/vmstat`, from 4.13).
pub fn parse_oom_kills(text: &[u8]) -> Result<u64, UnknownReason> {
    let mut kills = SingleValue::NEW;
    for line in complete_lines(text)? {
        if let Some(value) = line.strip_prefix(b"oom_kill ") {
            kills.found(parse_number(value));
        }
    }
    kills.get()
}

/// The text has some 4 KiB.
const MOST: usize = 1 << 20;

/// Reads them through a descriptor and into room that are kept: the control loop waits for neither
/// a look-up nor the allocator.
#[derive(Debug)]
pub struct OomKillCounter {
    file: Result<KeptFile, Errno>,
    text: Vec<u8>,
}

impl OomKillCounter {
    /// Opens `vmstat` in the folder `proc`.
    pub fn open(proc: &Path) -> Self {
        let mut counter = Self { file: KeptFile::open(&proc.join("vmstat")), text: Vec::new() };
        // The room finds its size.
        counter.read();
        counter
    }

    /// Kills until now.
    pub fn read(&mut self) -> Reading<u64> {
        let Self { file, text } = self;
        match file {
            Ok(file) => file.read_all(text, MOST).and_then(parse_oom_kills).into(),
            Err(errno) => Reading::Unknown(unreadable(*errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn oom_kills() {
        assert_eq!(parse_oom_kills(b"nr_free_pages 1\noom_kill 7\noom_killers 9\n"), Ok(7));
        assert_eq!(parse_oom_kills(b"nr_free_pages 1\n"), Err(UnknownReason::Absent));
        assert_eq!(parse_oom_kills(b"oom_kill 7\noom_kill 7\n"), Err(UnknownReason::Unparsable));
        assert_eq!(parse_oom_kills(b"oom_kill 7"), Err(UnknownReason::Unparsable));
        assert_eq!(parse_oom_kills(b"oom_kill -7\n"), Err(UnknownReason::Implausible));
    }

    #[test]
    fn this_machine() {
        assert!(OomKillCounter::open(Path::new("/proc")).read().known().is_some());
        assert_eq!(
            OomKillCounter::open(Path::new("/nonexistent")).read(),
            Reading::Unknown(UnknownReason::Unreadable(2))
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            let _ = parse_oom_kills(&bytes);
        }
    }
}
