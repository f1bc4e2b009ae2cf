//! The iterator over cgroups: figures of all memory cgroups in one pass (from 6.1).
//!
//! The kernel walks the cgroups below the one that the link was made with, in a task's context and
//! under its mutex of cgroups, and calls the program for each. The rows go to a map and not to
//! the iterator's own output, which holds 32 KB and cannot be continued. Some 0.5 µs a cgroup,
//! and thrice that where nothing of it is in the processor's caches: so it leaves behind where each
//! was found, and most passes go there at once ([`crate::again`]).

use core::ffi::c_void;

use aya_ebpf::helpers::bpf_ktime_get_ns;
use eviction_common::{Place, Usage};

use crate::{
    again::{is_read_again, note_start},
    lists::{first_lists, has_inactive_file, inactive_file, told},
    maps::{PLACES, USAGES},
    memcg::{Memcg, id_of_cgroup},
    read::{Direct, Probe, Read},
    setup::{is_ours, offset},
};

/// Called for each cgroup, each parent before its children, and once more at the end.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/cgroup")]
fn usages(ctx: *mut c_void) -> i32 {
    // SAFETY: `struct bpf_iter__cgroup`: two pointers, which the verifier knows the types of.
    let (meta, cgroup) = unsafe {
        let ctx = ctx.cast::<*const u8>();
        (core::ptr::read_volatile(ctx), core::ptr::read_volatile(ctx.add(1)))
    };
    if is_ours() {
        // SAFETY: the first is a `bpf_iter_meta`.
        let (session, number): (u64, u64) =
            unsafe { (Direct::at(meta, told!(meta_session)), Direct::at(meta, told!(meta_number))) };
        match cgroup.is_null() {
            true => note_end(session, number),
            false => note(session, number, cgroup),
        }
    }
    0
}

/// The pass is over; its last cgroup had this number.
#[inline(always)]
fn note_end(session: u64, number: u64) {
    if let Some(row) = USAGES.get_ptr_mut(0) {
        // SAFETY: the map's value.
        unsafe { *row = Usage { session, id: number.wrapping_add(1), ..Usage::EMPTY } };
    }
}

#[inline(always)]
fn note(session: u64, number: u64, cgroup: *const u8) {
    // SAFETY: `cgroup` is a cgroup that the verifier knows, and the types are those of the members.
    let (css, dying, level): (u64, u32, u32) = unsafe {
        (
            Direct::at(cgroup, told!(cgroup_memory)),
            Direct::at(cgroup, told!(cgroup_dying)),
            Direct::at(cgroup, offset!(cgroup_level)),
        )
    };
    // Before it looks at any other, so that what comes meanwhile is seen the next time.
    if number == 0 && is_read_again() {
        note_start(cgroup);
    }
    // Removed meanwhile, or the controller is off there: its tasks are charged to a cgroup above.
    if css == 0 {
        return;
    }
    let index = number.wrapping_add(1) as u32;
    let (Some(row), Some(place)) = (USAGES.get_ptr_mut(index), PLACES.get_ptr_mut(index)) else {
        return;
    };
    let css = css as *const u8;
    // SAFETY: a css is the first member of its memory cgroup (the loader checks it).
    let memcg = unsafe { Memcg::new(css) };
    let lists = first_lists(css);
    let inactive_file = inactive_file(css, lists);
    // SAFETY: the maps' values; members of the memory cgroup; a helper without arguments.
    unsafe {
        if is_read_again() {
            *place = Place { css: css as u64, serial: Probe::at(css, offset!(css_serial)), lists };
        }
        *row = Usage {
            session,
            id: id_of_cgroup::<Direct>(cgroup),
            usage: memcg.usage::<Probe>(),
            max: memcg.max::<Probe>(),
            failures: Probe::at(css.wrapping_add(offset!(memcg_memory) as usize), told!(counter_failures)),
            inactive_file,
            ktime_ns: bpf_ktime_get_ns(),
            dying,
            level: level as u16,
            has_inactive_file: has_inactive_file() as u16,
        };
    }
}
