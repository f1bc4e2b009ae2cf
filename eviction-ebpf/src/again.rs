//! The figures of the iterator's last pass once more, of the same memory cgroups: without the kernel's walk
//! and its mutex, and with a third of the memory to look at.
//!
//! It is attached to nothing: user space runs it (`BPF_PROG_TEST_RUN`), for some rows at a time.
//!
//! That no other cgroup is there it knows from the number that the hierarchy gave last; that one is still what it
//! was from the css at its address. That is trusted when it has the number that it had, is online and is not being
//! removed: css' numbers are never given twice, and the kernel frees a css that is online now no sooner than RCU
//! readers of now are done, as this program is one (`css_release_work_fn` and `css_free_rwork_fn` in
//! kernel/cgroup/cgroup.c). Something else may be where a css was; the helper reads any address.
//!
//! Nothing of a cgroup is in the processor's caches when a second has passed, and a call is a bound for
//! what it fetches ahead (where it returns by a mitigated return, always). So one call fetches all of a
//! memory cgroup's own structure, and one the sizes of its lists (of each memory node; with MGLRU three more).

use core::ffi::c_void;

use aya_ebpf::{
    helpers::{bpf_ktime_get_ns, generated::bpf_probe_read_kernel},
    macros::map,
    maps::{Array, PerCpuArray},
    programs::RawTracePointContext,
};
use eviction_common::{
    ABSENT, AGAIN_CHANGED, AGAIN_DONE, AGAIN_ROWS, AGAIN_UNABLE, Place, SPAN_BYTES, Start,
};

use crate::{
    lists::{inactive_file, told},
    maps::{PLACES, USAGES},
    read::{Probe, Read},
    setup::{css_dying, is_online, is_ours, offset},
};

/// The row of the cgroup that a pass begins with.
const FIRST: u64 = 1;

/// See [`Start`].
#[map]
static START: Array<Start> = Array::with_max_entries(1, 0);

/// Room for a part of a memory cgroup, since that of the stack is taken by the lists'.
#[map]
static SPAN: PerCpuArray<[u64; (SPAN_BYTES / 8) as usize]> = PerCpuArray::with_max_entries(1, 0);

/// Whether memory cgroups can be known again here.
#[inline(always)]
pub(crate) fn is_read_again() -> bool {
    told!(root_nodes) != ABSENT
        && offset!(css_flags) != ABSENT
        && offset!(css_serial) != ABSENT
        && css_dying() != 0
}

/// A pass of the iterator begins with this cgroup.
#[inline(always)]
pub(crate) fn note_start(cgroup: *const u8) {
    if let Some(start) = START.get_ptr_mut(0) {
        // SAFETY: the map's value.
        unsafe { *start = look(cgroup) };
    }
}

/// How it is with this cgroup and its hierarchy.
#[inline(always)]
fn look(cgroup: *const u8) -> Start {
    // SAFETY: any address goes.
    unsafe {
        let root: u64 = Probe::at(cgroup, offset!(cgroup_root));
        let nodes: u64 = Probe::at(root as *const u8, told!(root_nodes));
        Start {
            cgroup: cgroup as u64,
            last_node: Probe::at(nodes as *const u8, told!(nodes_last)),
            dying: Probe::at(cgroup, told!(cgroup_dying)),
        }
    }
}

/// Whether a cgroup was made since the pass began, or one that was removed is gone for good: then its memory is
/// told by others than before.
#[inline(always)]
fn is_changed() -> bool {
    let Some(start) = START.get_ptr_mut(0) else { return true };
    // SAFETY: the map's value; volatile, since the iterator's program writes it.
    let start = unsafe { start.read_volatile() };
    let now = look(start.cgroup as *const u8);
    now.last_node != start.last_node || now.dying != start.dying
}

/// Reads rows again: from the first argument on, up to the second, as many as are read at once, and of them those of the
/// pass that is the third. (aya's macro would have it answer 0 whatever it does.)
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp")]
fn usages_again(ctx: *mut c_void) -> u32 {
    let ctx = RawTracePointContext::new(ctx);
    let (first, until, session): (u64, u64, u64) = (ctx.arg(0), ctx.arg(1), ctx.arg(2));
    if !is_ours() || !is_read_again() {
        return AGAIN_UNABLE;
    }
    if first == FIRST && is_changed() {
        return AGAIN_CHANGED;
    }
    for step in 0..AGAIN_ROWS {
        let number = first.wrapping_add(step.into());
        if step >= told!(again_rows) || number >= until {
            break;
        }
        if !read_again(number as u32, session) {
            return AGAIN_CHANGED;
        }
    }
    AGAIN_DONE
}

/// Whether it is the same memory cgroup still, or was none in that pass: one that the memory controller does not
/// know, or that was being removed.
#[inline(always)]
fn read_again(number: u32, session: u64) -> bool {
    let (Some(place), Some(row)) = (PLACES.get(number), USAGES.get_ptr_mut(number)) else {
        return false;
    };
    // SAFETY: the map's value; volatile, since the iterator's program writes it.
    if unsafe { (&raw const (*row).session).read_volatile() } != session {
        return true;
    }
    let Some(figures) = figures(place) else { return false };
    let pages = inactive_file(place.css as *const u8, place.lists);
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
    let (flags, serial, counter) = (offset!(css_flags), offset!(css_serial), offset!(memcg_memory));
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
    (word(serial) == place.serial && is_online(flags)).then(|| Figures {
        usage: word(usage),
        max: word(max),
        failures: word(failures),
    })
}
