//! The BPF programs: one file per family of hooks, one for the maps.
//!
//! Each program is thin; what it does is in a function that takes what the hook gave, so that
//! another hook for the same family is another thin program. A program that is not attached
//! costs nothing, and whatever this kernel lacks is left out by the verifier ([`setup`]).
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(
    internal_features,
    reason = "the target has no compare-and-exchange, so core offers no atomic addition for it"
)]

mod alarm;
mod cgroup;
mod charge;
mod choice;
mod counter;
mod emit;
mod level;
mod maps;
mod memcg;
mod oom;
mod read;
mod reclaim;
mod reflex;
mod setup;
mod task;
mod way;

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel lends its helpers to programs under a licence compatible with its own only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
