//! The BPF programs: one file per family of hooks, one for the maps.
//!
//! Each program is thin; what it does is in a function that takes what the hook gave, so that
//! another hook for the same family is another thin program. A program that is not attached
//! costs nothing, and whatever this kernel lacks is left out by the verifier ([`config`]).
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(
    internal_features,
    reason = "the target has no compare-and-exchange, so core offers no atomic addition for it"
)]

mod ancestors;
mod cgroup;
mod config;
mod disk;
mod disk_ext4;
mod disk_kill;
mod disk_xfs;
mod events;
mod kernel_kill;
mod maps;
mod memcg;
mod memcg_charge;
mod oom;
mod oom_context;
mod page_counter;
mod probe_read;
mod reclaim;
mod task;
mod task_alarm;
mod threshold;

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel lends its helpers to programs under a licence compatible with its own only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
