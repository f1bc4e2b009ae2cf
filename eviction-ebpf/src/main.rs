//! The BPF programs: one file per event class, and one for the maps.
//!
//! Each program is thin and calls a function with the hook's arguments, so that another hook of the same
//! event class only needs another thin program. A program that is not attached costs nothing. The verifier
//! removes the code for members that the kernel does not have ([`config`]).
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

/// The kernel allows its GPL-only helpers only to programs with a compatible license.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
