//! How a record gets into the ring.

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_RING_SIZE},
    helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
};
use eviction_common::{ABI_VERSION, Counter, Header, Kind};

use crate::maps::{EVENTS, count, counted};

/// Wakes the reader: for what must not wait.
pub(crate) const URGENT: u64 = BPF_RB_FORCE_WAKEUP as u64;

/// The header of the next record of this CPU, and counts it.
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
        seq: counted(Counter::Records),
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

/// For what can wait until the reader comes by: it is woken only when the ring is half full,
/// since a ring that is full of such records would have no room for the others.
#[inline(always)]
pub(crate) fn routine() -> u64 {
    match EVENTS.query(BPF_RB_AVAIL_DATA as u64) > EVENTS.query(BPF_RB_RING_SIZE as u64) / 2 {
        true => URGENT,
        false => BPF_RB_NO_WAKEUP as u64,
    }
}
