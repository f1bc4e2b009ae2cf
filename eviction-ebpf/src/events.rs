//! Writes records into the ring.

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_RING_SIZE},
    helpers::bpf_ktime_get_ns,
    maps::ring_buf::RingBufEntry,
};
use eviction_common::{ABI_VERSION, Counter, FireToken, Header, Kind};

use crate::maps::{EVENTS, FIRE_TOKENS, count};

/// The flag for urgent records: wakes the reader.
pub(crate) const URGENT: u64 = BPF_RB_FORCE_WAKEUP as u64;

/// Returns the header of a record, and counts the record.
#[inline(always)]
pub(crate) fn header<T>(kind: Kind) -> Header {
    count(Counter::Records);
    // SAFETY: a helper without arguments.
    let ktime_ns = unsafe { bpf_ktime_get_ns() };
    Header { kind: kind as u16, abi: ABI_VERSION, len: size_of::<T>() as u32, ktime_ns }
}

/// Reserves the record of a crossing, if no program has fired for this token: of all programs that see the
/// crossing, the one that removes the token fires. If the record does not fit, the token stays, and the next
/// program that sees the crossing tries again.
#[inline(always)]
pub(crate) fn reserve_once<T: 'static>(token: FireToken, counter: Counter) -> Option<RingBufEntry<T>> {
    FIRE_TOKENS.get_ptr(token)?;
    let Some(record) = EVENTS.reserve::<T>(0) else {
        lost(counter);
        return None;
    };
    if FIRE_TOKENS.remove(token).is_err() {
        record.discard(BPF_RB_NO_WAKEUP as u64);
        return None;
    }
    Some(record)
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
