//! Writes records into the ring.

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_RING_SIZE},
    helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
};
use eviction_common::{ABI_VERSION, Counter, Header, Kind};

use crate::maps::{EVENTS, count, counter_value};

/// The flag for urgent records: wakes the reader.
pub(crate) const URGENT: u64 = BPF_RB_FORCE_WAKEUP as u64;

/// Returns the header of the next record of this CPU, and counts the record.
#[inline(always)]
pub(crate) fn header<T>(kind: Kind) -> Header {
    // SAFETY: helpers without arguments.
    let (cpu, ktime_ns) = unsafe { (bpf_get_smp_processor_id() as u32, bpf_ktime_get_ns()) };
    let header = Header {
        kind: kind as u16,
        abi: ABI_VERSION,
        len: size_of::<T>() as u32,
        cpu,
        pad: 0,
        seq: counter_value(Counter::Records),
        ktime_ns,
    };
    count(Counter::Records);
    header
}

/// Counts a record that did not fit.
#[inline(always)]
pub(crate) fn lost(counter: Counter) {
    count(Counter::Records);
    count(counter);
}

/// Returns the flag for records that can wait until the next time the reader runs. The reader is woken only
/// when the ring is half full, since such records must not take the space of the urgent ones.
#[inline(always)]
pub(crate) fn routine() -> u64 {
    match EVENTS.query(BPF_RB_AVAIL_DATA as u64) > EVENTS.query(BPF_RB_RING_SIZE as u64) / 2 {
        true => URGENT,
        false => BPF_RB_NO_WAKEUP as u64,
    }
}
