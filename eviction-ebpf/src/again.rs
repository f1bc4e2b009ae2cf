//! The figures of the iterator's last pass once more, of the same memory cgroups: without the kernel's walk
//! and its mutex, and with a third of the memory to look at.
//!
//! It is attached to nothing: user space runs it (`BPF_PROG_TEST_RUN`), for some rows at a time.
//!
//! An address is trusted when the css there has the number that it had, is online and is not being removed:
//! css' numbers are never given twice, and the kernel frees a css that is online now no sooner than RCU
//! readers of now are done, as this program is one (`css_release_work_fn` and `css_free_rwork_fn` in
//! kernel/cgroup/cgroup.c). Something else may be where a css was; the helper reads any address.
//!
//! Nothing of a cgroup is in the processor's caches when a second has passed, and a call is a bound for
//! what it fetches ahead (where it returns by a mitigated return, always). So one call fetches all of a
//! memory cgroup's own structure, and one the sizes of its lists.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::{bpf_ktime_get_ns, generated::bpf_probe_read_kernel},
    macros::map,
    maps::PerCpuArray,
    programs::RawTracePointContext,
};
use eviction_common::{ABSENT, AGAIN_ROWS, Place, SPAN_BYTES};

use crate::{
    lists::{inactive_file, inactive_file_of, told},
    maps::{PLACES, USAGES},
    read::{Probe, Read},
    setup::{css_dying, css_online, is_ours, offset},
};

/// The row of the topmost cgroup.
const TOP: u64 = 1;

/// Room for a part of a memory cgroup, since that of the stack is taken by the lists'.
#[map]
static SPAN: PerCpuArray<[u64; (SPAN_BYTES / 8) as usize]> = PerCpuArray::with_max_entries(1, 0);

/// Reads rows again: from the first argument on, up to the second, at most [`AGAIN_ROWS`], and of them those of the pass
/// that is the third. Answers 0 if all of them are of now; else the tree is to be walked. (aya's macro would answer 0
/// whatever this does.)
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp")]
fn usages_again(ctx: *mut c_void) -> i32 {
    let ctx = RawTracePointContext::new(ctx);
    let (first, until, session): (u64, u64, u64) = (ctx.arg(0), ctx.arg(1), ctx.arg(2));
    if !is_ours() || offset!(css_flags) == ABSENT || css_dying() == 0 || told!(css_serial) == ABSENT {
        return 1;
    }
    for step in 0..AGAIN_ROWS {
        let number = first.wrapping_add(step);
        if number >= until {
            return 0;
        }
        if !read_again(number, session) {
            return 1;
        }
    }
    0
}

/// Whether it is the same memory cgroup still, or was none in that pass: one that the memory controller does not
/// know, or that was being removed.
#[inline(always)]
fn read_again(number: u64, session: u64) -> bool {
    let (Some(place), Some(row)) = (PLACES.get(number as u32), USAGES.get_ptr_mut(number as u32)) else {
        return false;
    };
    // SAFETY: the map's value; volatile, since the iterator's program writes it.
    if unsafe { (&raw const (*row).session).read_volatile() } != session {
        return true;
    }
    // Each cgroup that is removed is counted at all above it, also one that came since the pass.
    if number == TOP {
        // SAFETY: any address goes, and the map's value.
        let (dying, before): (u32, u32) = unsafe {
            (
                Probe::at(place.cgroup as *const u8, told!(cgroup_dying)),
                (&raw const (*row).dying).read_volatile(),
            )
        };
        if dying != before {
            return false;
        }
    }
    let Some(figures) = figures(place) else { return false };
    let pages = match told!(nodes) {
        0 | 1 => inactive_file_of(place.lists as *const u8),
        _ => inactive_file(place.css as *const u8),
    };
    // SAFETY: the map's value. The rest is as it was: whose row it is, how deep, and how many were removed below.
    unsafe {
        (&raw mut (*row).usage).write_volatile(figures.usage);
        (&raw mut (*row).max).write_volatile(figures.max);
        (&raw mut (*row).failures).write_volatile(figures.failures);
        (&raw mut (*row).inactive_file).write_volatile(pages);
        (&raw mut (*row).ktime_ns).write_volatile(bpf_ktime_get_ns());
    }
    true
}

/// What a memory cgroup's own structure says.
struct Figures {
    usage: u64,
    max: u64,
    failures: u64,
}

/// Nothing if it is not the memory cgroup that it was.
#[inline(always)]
fn figures(place: &Place) -> Option<Figures> {
    let span = SPAN.get_ptr_mut(0)?;
    // A css is the first member of its memory cgroup (the loader checks it). All of these are constants to the verifier.
    let (flags, serial, counter) = (offset!(css_flags), told!(css_serial), offset!(memcg_memory));
    let (usage, max) = (counter + offset!(counter_usage), counter + offset!(counter_max));
    let failures = counter + told!(counter_failures);
    let first = flags.min(serial) & !7;
    let length = usage.max(max).max(failures) + 8 - first;
    if length > SPAN_BYTES {
        return None;
    }
    let from = (place.css as *const u8).wrapping_add(first as usize);
    // SAFETY: there is room for it, and any address goes.
    if unsafe { bpf_probe_read_kernel(span.cast(), length, from.cast()) } != 0 {
        return None;
    }
    let word = |offset: u32| -> u64 {
        // SAFETY: it was fetched.
        unsafe { span.cast::<u8>().add((offset - first) as usize).cast::<u64>().read_volatile() }
    };
    // SAFETY: as above.
    let flags = unsafe { span.cast::<u8>().add((flags - first) as usize).cast::<u32>().read_volatile() };
    let is_online = flags & (css_online() | css_dying()) == css_online();
    (word(serial) == place.serial && is_online).then(|| Figures {
        usage: word(usage),
        max: word(max),
        failures: word(failures),
    })
}
