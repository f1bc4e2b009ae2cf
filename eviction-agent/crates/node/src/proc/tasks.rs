//! The tasks of the whole machine, and how many there can be.
//!
//! As in the kubelet (pkg/kubelet/stats/pidlimit/pidlimit_linux.go), the capacity is the lesser of
//! kernel.pid_max and kernel.threads-max, or one of them if the other cannot be read. The count is the total in
//! /proc/loadavg, since sysinfo(2) cuts it to 16 bits.
#![forbid(unsafe_code)]

use std::path::Path;

use crate::file::read_once;
use crate::kv_file::{parse_number, parse_number_line, words};
use eviction_core::reading::{Reading, UnknownReason};

/// Parses the number of tasks (threads of all processes) in the text of `/proc/loadavg`, for instance 3518 in
/// `1.36 3.49 4.53 2/3518 3715089`.
pub fn parse_task_count(text: &[u8]) -> Result<u64, UnknownReason> {
    let mut fields = words(text.strip_suffix(b"\n").ok_or(UnknownReason::Unparsable)?);
    let tasks = fields.nth(3).ok_or(UnknownReason::Unparsable)?;
    if fields.next().is_none() || fields.next().is_some() {
        return Err(UnknownReason::Unparsable);
    }
    let slash = tasks.iter().position(|byte| *byte == b'/').ok_or(UnknownReason::Unparsable)?;
    parse_number(&tasks[..slash])?;
    match parse_number(&tasks[slash + 1..])? {
        // The reader itself is a task.
        0 => Err(UnknownReason::Implausible),
        count => Ok(count),
    }
}

/// Reads the number of tasks of the machine from `loadavg` in the folder `proc`.
pub fn read_task_count(proc: &Path) -> Reading<u64> {
    read_once(&proc.join("loadavg"), 128).and_then(|text| parse_task_count(&text)).into()
}

/// Reads how many tasks the machine can have: the lesser of `kernel.pid_max` and `kernel.threads-max` in the
/// folder `proc`. From 6.14 on pid_max is that of the reader's PID namespace.
pub fn read_task_capacity(proc: &Path) -> Reading<u64> {
    let read = |name: &str| match read_once(&proc.join("sys/kernel").join(name), 64)
        .and_then(|text| parse_number_line(&text))
    {
        Ok(0) => Err(UnknownReason::Implausible),
        result => result,
    };
    match (read("pid_max"), read("threads-max")) {
        (Ok(pids), Ok(threads)) => Reading::Known(pids.min(threads)),
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Reading::Known(one),
        (Err(why), Err(_)) => Reading::Unknown(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn task_count_is_parsed() {
        for (text, expected) in [
            ("1.36 3.49 4.53 2/3518 3715089\n", Ok(3518)),
            ("0.00 0.00 0.00 1/100000 1\n", Ok(100_000)),
            ("0.00 0.00 0.00 1/0 1\n", Err(UnknownReason::Implausible)),
            ("0.00 0.00 0.00 1/18446744073709551615 1\n", Err(UnknownReason::Implausible)),
            ("0.00 0.00 0.00 1/-5 1\n", Err(UnknownReason::Implausible)),
            ("0.00 0.00 0.00 1/12 1", Err(UnknownReason::Unparsable)),
            ("0.00 0.00 0.00 1/12\n", Err(UnknownReason::Unparsable)),
            ("0.00 0.00 0.00 1/12 1 1\n", Err(UnknownReason::Unparsable)),
            ("0.00 0.00 0.00 12 1\n", Err(UnknownReason::Unparsable)),
            ("0.00 0.00 0.00 x/12 1\n", Err(UnknownReason::Unparsable)),
            ("0.00 0.00 1/12 1\n", Err(UnknownReason::Unparsable)),
            ("", Err(UnknownReason::Unparsable)),
        ] {
            assert_eq!(parse_task_count(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn task_capacity_is_the_lower_limit_or_the_only_readable_one() {
        let proc = tempfile::tempdir().unwrap();
        let kernel = proc.path().join("sys/kernel");
        std::fs::create_dir_all(&kernel).unwrap();
        assert_eq!(read_task_capacity(proc.path()), Reading::Unknown(UnknownReason::Unreadable(2)));
        std::fs::write(kernel.join("threads-max"), "192731\n").unwrap();
        assert_eq!(read_task_capacity(proc.path()), Reading::Known(192_731));
        std::fs::write(kernel.join("pid_max"), "32768\n").unwrap();
        assert_eq!(read_task_capacity(proc.path()), Reading::Known(32_768));
        std::fs::write(kernel.join("threads-max"), "9999\n").unwrap();
        assert_eq!(read_task_capacity(proc.path()), Reading::Known(9_999));
        std::fs::write(kernel.join("threads-max"), "0\n").unwrap();
        assert_eq!(read_task_capacity(proc.path()), Reading::Known(32_768));
        std::fs::write(kernel.join("pid_max"), "many\n").unwrap();
        assert_eq!(read_task_capacity(proc.path()), Reading::Unknown(UnknownReason::Unparsable));
    }

    #[test]
    fn task_count_of_this_machine_is_within_its_capacity() {
        let proc = Path::new("/proc");
        let count = read_task_count(proc).known().unwrap();
        let capacity = read_task_capacity(proc).known().unwrap();
        assert!((1..=capacity).contains(&count), "{count} of {capacity}");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>) {
            let _ = parse_task_count(&bytes);
        }
    }
}
