//! `/proc/meminfo`: the memory of the whole machine.
//!
//! The kubelet computes the working set of the node as the usage of the root cgroup less its inactive file
//! pages. On v1 that usage is `memory.usage_in_bytes`, for which the kernel adds up NR_FILE_PAGES and
//! NR_ANON_MAPPED of the machine (`mem_cgroup_usage` in mm/memcontrol.c). On v2 the kubelet adds `anon` and
//! `file` of the root's memory.stat itself (`rootStatsFromMeminfo` in opencontainers/cgroups), which are the
//! same two. Here they are AnonPages and Cached + Buffers + SwapCached (`meminfo_proc_show` subtracts buffers
//! and swap cache from the file pages), and inactive file pages are Inactive(file). So the values are the same
//! for either version, all of one moment, cost one read, and are not stale as the root's memory.stat may be.
#![forbid(unsafe_code)]

use serde::Serialize;

use crate::kv_file::parse_keys;
use eviction_core::reading::{Reading, UnknownReason};

/// Values of `/proc/meminfo`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Meminfo {
    /// `MemTotal`: the capacity that the kubelet reports.
    pub total: Reading<u64>,
    /// `MemFree`.
    pub free: Reading<u64>,
    /// `MemAvailable`, the kernel's own estimate; the kubelet does not use it.
    pub available: Reading<u64>,
    /// Anonymous memory and page cache: the usage of the root cgroup.
    pub usage: Reading<u64>,
    /// `Inactive(file)`.
    pub inactive_file: Reading<u64>,
    /// `Active(file)`.
    pub active_file: Reading<u64>,
    /// `SwapTotal`.
    pub swap_total: Reading<u64>,
    /// `SwapTotal` less `SwapFree`.
    pub swap_used: Reading<u64>,
}

impl Meminfo {
    /// Returns the values after a read that failed.
    pub fn unknown(why: UnknownReason) -> Self {
        let unknown = Reading::Unknown(why);
        Self {
            total: unknown,
            free: unknown,
            available: unknown,
            usage: unknown,
            inactive_file: unknown,
            active_file: unknown,
            swap_total: unknown,
            swap_used: unknown,
        }
    }
}

/// Parses the text of `/proc/meminfo`. Each value is parsed independently, and other lines are ignored.
/// Allocates nothing, which is why procfs is not used for it.
pub fn parse_meminfo(text: &[u8]) -> Meminfo {
    const KEYS: [&[u8]; 11] = [
        b"MemTotal:",
        b"MemAvailable:",
        b"Buffers:",
        b"Cached:",
        b"SwapCached:",
        b"Inactive(file):",
        b"AnonPages:",
        b"Active(file):",
        b"SwapTotal:",
        b"SwapFree:",
        b"MemFree:",
    ];
    let found = parse_keys(text, KEYS, Some(b"kB"));
    let found = found.map(|kib| kib?.checked_mul(1024).ok_or(UnknownReason::Implausible));
    let [total, available, buffers, cached, swap_cached, inactive_file, anon, ..] = found;
    let [.., active_file, swap_total, swap_free, free] = found;
    let swap_used =
        swap_total.and_then(|total| total.checked_sub(swap_free?).ok_or(UnknownReason::Implausible));
    let usage = [anon, cached, buffers, swap_cached]
        .into_iter()
        .try_fold(0_u64, |sum, part| sum.checked_add(part?).ok_or(UnknownReason::Implausible));
    Meminfo {
        total: total.into(),
        free: free.into(),
        available: available.into(),
        usage: usage.into(),
        inactive_file: inactive_file.into(),
        active_file: active_file.into(),
        swap_total: swap_total.into(),
        swap_used: swap_used.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Reading::{Known, Unknown};
    use proptest::prelude::*;

    const TEXT: &str = "MemTotal:       24684096 kB\nMemFree:        22390348 kB\nMemAvailable:   23809496 kB\n\
        Buffers:           17188 kB\nCached:          1548796 kB\nSwapCached:            4 kB\nActive(file):     474824 kB\n\
        Inactive(file):  1082388 kB\nAnonPages:        379840 kB\nShmem:              8788 kB\nSwapTotal:          4096 kB\nSwapFree:           3072 kB\nHugePages_Total:       0\n";

    #[test]
    fn real_meminfo_is_parsed() {
        let meminfo = parse_meminfo(TEXT.as_bytes());
        assert_eq!(meminfo.total, Known(24_684_096 << 10));
        assert_eq!(meminfo.available, Known(23_809_496 << 10));
        assert_eq!(meminfo.free, Known(22_390_348 << 10));
        assert_eq!(meminfo.usage, Known((379_840 + 1_548_796 + 17_188 + 4) << 10));
        assert_eq!(meminfo.inactive_file, Known(1_082_388 << 10));
        assert_eq!(meminfo.active_file, Known(474_824 << 10));
        assert_eq!((meminfo.swap_total, meminfo.swap_used), (Known(4096 << 10), Known(1024 << 10)));
    }

    #[test]
    fn invalid_line_makes_only_its_own_values_unknown() {
        for (from, to, why) in [
            ("Buffers:           17188 kB\n", "", UnknownReason::Absent),
            ("Buffers:           17188 kB", "Buffers:           17188", UnknownReason::Unparsable),
            ("Buffers:           17188 kB", "Buffers:           17188 MB", UnknownReason::Unparsable),
            ("Buffers:           17188 kB", "Buffers:  9223372036854775807 kB", UnknownReason::Implausible),
            ("Buffers:           17188 kB", "Buffers:  -4 kB", UnknownReason::Implausible),
            ("Buffers:           17188 kB", "Buffers: 1 kB\nBuffers: 1 kB", UnknownReason::Unparsable),
        ] {
            let meminfo = parse_meminfo(TEXT.replace(from, to).as_bytes());
            assert_eq!(meminfo.usage, Unknown(why), "{to}");
            assert_eq!(meminfo.total, Known(24_684_096 << 10));
        }
        assert_eq!(parse_meminfo(b""), Meminfo::unknown(UnknownReason::Unparsable));
        assert_eq!(parse_meminfo(TEXT.trim_end().as_bytes()), Meminfo::unknown(UnknownReason::Unparsable));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>) {
            parse_meminfo(&bytes);
        }

        #[test]
        fn a_sum_that_overflows_is_implausible(kib in proptest::array::uniform4(0..=u64::MAX)) {
            let text = format!("AnonPages: {} kB\nCached: {} kB\nBuffers: {} kB\nSwapCached: {} kB\n", kib[0], kib[1], kib[2], kib[3]);
            let exact = kib.iter().map(|kib| u128::from(*kib) * 1024).sum::<u128>();
            match parse_meminfo(text.as_bytes()).usage {
                Known(usage) => prop_assert_eq!(u128::from(usage), exact),
                Unknown(why) => prop_assert_eq!(why, UnknownReason::Implausible),
            }
        }
    }
}
