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

use crate::file::parse_keys;
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::MemoryDetail;

/// Memory usage of the node or of a cgroup, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Bytes in use, page cache included.
    pub usage: u64,
    /// Bytes in use less page cache that has not been used lately, never below zero (cadvisor's
    /// `setMemoryStats`).
    pub working_set: u64,
}

impl MemoryUsage {
    /// Returns the two values that were read.
    pub fn of(usage: Reading<u64>, working_set: Reading<u64>) -> Reading<Self> {
        usage.zip(working_set).map(|(usage, working_set)| Self { usage, working_set })
    }

    /// Returns the usage by another measure than the working set: what that measure does not count as available
    /// is used. No measure subtracts more than is charged.
    pub fn by_measure(self, capacity: u64, available: Option<i64>) -> Self {
        let used = available.map(|available| capacity.saturating_sub(available.max(0).unsigned_abs()));
        Self { working_set: used.unwrap_or(self.working_set), ..self }
    }
}

/// Returns the usage less inactive file pages.
pub(crate) fn working_set_of(usage: Reading<u64>, inactive_file: Reading<u64>) -> Reading<u64> {
    usage.zip(inactive_file).map(|(usage, inactive)| usage.saturating_sub(inactive))
}

/// The values that were read of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSample {
    /// The usage and working set of the node.
    pub memory: Reading<MemoryUsage>,
    /// MemFree of the machine. Known only if the node is the whole machine; otherwise it is not read.
    pub free: Reading<u64>,
    /// MemTotal of the machine, which the kubelet reports as the capacity. For a node that is a cgroup with a
    /// limit: that limit if it is lower than MemTotal was when the sampler was created.
    pub capacity: Reading<u64>,
    /// The other measures, without stalls. For a node that is a cgroup only the active file pages are known,
    /// which may be older than the rest.
    pub detail: MemoryDetail,
}

impl NodeSample {
    /// Returns the values after a read of `/proc/meminfo` that failed.
    pub(crate) fn unknown(why: UnknownReason) -> Self {
        let unknown = Reading::Unknown(why);
        let detail = MemoryDetail {
            mem_available: unknown,
            active_file: unknown,
            swap_used: unknown,
            swap_total: unknown,
            ..MemoryDetail::default()
        };
        Self { memory: Reading::Unknown(why), free: unknown, capacity: unknown, detail }
    }
}

/// Parses the text of `/proc/meminfo`. Each value is parsed independently, and other lines are ignored.
/// Allocates nothing, which is why procfs is not used for it.
pub fn parse_meminfo(text: &[u8]) -> NodeSample {
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
    let (usage, inactive_file) = (usage.into(), inactive_file.into());
    NodeSample {
        memory: MemoryUsage::of(usage, working_set_of(usage, inactive_file)),
        free: free.into(),
        capacity: total.into(),
        detail: MemoryDetail {
            mem_available: available.into(),
            active_file: active_file.into(),
            swap_total: swap_total.into(),
            swap_used: swap_used.into(),
            ..MemoryDetail::default()
        },
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
        assert_eq!(meminfo.capacity, Known(24_684_096 << 10));
        assert_eq!(meminfo.free, Known(22_390_348 << 10));
        let usage = (379_840 + 1_548_796 + 17_188 + 4) << 10;
        let working_set = usage - (1_082_388 << 10);
        assert_eq!(meminfo.memory, Known(MemoryUsage { usage, working_set }));
        let MemoryDetail { mem_available, active_file, swap_total, swap_used, .. } = meminfo.detail;
        assert_eq!((mem_available, active_file), (Known(23_809_496 << 10), Known(474_824 << 10)));
        assert_eq!((swap_total, swap_used), (Known(4096 << 10), Known(1024 << 10)));
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
            assert_eq!(meminfo.memory, Unknown(why), "{to}");
            assert_eq!(meminfo.capacity, Known(24_684_096 << 10));
        }
        assert_eq!(parse_meminfo(b""), NodeSample::unknown(UnknownReason::Unparsable));
        assert_eq!(parse_meminfo(TEXT.trim_end().as_bytes()), NodeSample::unknown(UnknownReason::Unparsable));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>) {
            parse_meminfo(&bytes);
        }

        #[test]
        fn a_sum_that_overflows_is_implausible(kib in proptest::array::uniform4(0..=u64::MAX)) {
            let text = format!("Inactive(file): 0 kB\nAnonPages: {} kB\nCached: {} kB\nBuffers: {} kB\nSwapCached: {} kB\n", kib[0], kib[1], kib[2], kib[3]);
            let exact = kib.iter().map(|kib| u128::from(*kib) * 1024).sum::<u128>();
            match parse_meminfo(text.as_bytes()).memory {
                Known(MemoryUsage { usage, .. }) => prop_assert_eq!(u128::from(usage), exact),
                Unknown(why) => prop_assert_eq!(why, UnknownReason::Implausible),
            }
        }
    }
}
