//! `/proc/vmstat`: the machine's own count of out-of-memory kills.
#![forbid(unsafe_code)]

use std::path::Path;

use crate::core::reading::{Reading, Why};
use crate::source::file::read_once;
use crate::source::text::{Once, complete_lines, parse_number};

/// Processes that out-of-memory killers have killed since boot, whoever's limit it was
/// (`oom_kill` in the text of `/proc/vmstat`, from 4.13).
pub fn parse_oom_kills(text: &[u8]) -> Result<u64, Why> {
    let mut kills = Once::NEW;
    for line in complete_lines(text)? {
        if let Some(value) = line.strip_prefix(b"oom_kill ") {
            kills.found(parse_number(value));
        }
    }
    kills.get()
}

/// Reads `vmstat` in the folder `proc`.
pub fn read_oom_kills(proc: &Path) -> Reading<u64> {
    read_once(&proc.join("vmstat"), 1 << 20).and_then(|text| parse_oom_kills(&text)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn oom_kills() {
        assert_eq!(parse_oom_kills(b"nr_free_pages 1\noom_kill 7\noom_killers 9\n"), Ok(7));
        assert_eq!(parse_oom_kills(b"nr_free_pages 1\n"), Err(Why::Absent));
        assert_eq!(parse_oom_kills(b"oom_kill 7\noom_kill 7\n"), Err(Why::Unparsable));
        assert_eq!(parse_oom_kills(b"oom_kill 7"), Err(Why::Unparsable));
        assert_eq!(parse_oom_kills(b"oom_kill -7\n"), Err(Why::Implausible));
    }

    #[test]
    fn this_machine() {
        assert!(read_oom_kills(Path::new("/proc")).known().is_some());
        assert_eq!(read_oom_kills(Path::new("/nonexistent")), Reading::Unknown(Why::Unreadable(2)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            let _ = parse_oom_kills(&bytes);
        }
    }
}
