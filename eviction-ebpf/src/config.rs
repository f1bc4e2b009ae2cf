//! The configuration from the loader. It is read-only and frozen before the programs are loaded, so the
//! verifier knows each value and removes the code that depends on an absent one.

use aya_ebpf::Global;
use eviction_common::{ABI_VERSION, ProgramConfig};

/// The configuration, which the loader overrides.
#[unsafe(no_mangle)]
pub(crate) static PROGRAM_CONFIG: Global<ProgramConfig> = Global::new(ProgramConfig::NONE);

/// The value of one member of [`eviction_common::Offsets`], in bytes.
macro_rules! offset {
    ($member:ident) => {
        crate::config::offset_at(
            core::mem::offset_of!(eviction_common::ProgramConfig, offsets)
                + core::mem::offset_of!(eviction_common::Offsets, $member),
        )
    };
}
pub(crate) use offset;

/// Returns the u32 at `place` bytes into [`PROGRAM_CONFIG`].
#[inline(always)]
pub(crate) fn offset_at(place: usize) -> u32 {
    // SAFETY: `offset!` gives the place of a u32 inside it. Volatile, since the loader changes it.
    unsafe { core::ptr::read_volatile(program_config().byte_add(place).cast()) }
}

/// The value of one member of [`ProgramConfig`].
macro_rules! member {
    ($member:ident) => {
        // SAFETY: a static; volatile, since the loader changes it.
        unsafe { core::ptr::read_volatile(&raw const (*program_config()).$member) }
    };
}

/// Whether the loader uses the same layout as the programs.
#[inline(always)]
pub(crate) fn abi_matches() -> bool {
    member!(abi) == ABI_VERSION as u32
}

/// Returns the hierarchy of the memory controller.
#[inline(always)]
pub(crate) fn hierarchy() -> i32 {
    member!(hierarchy)
}

/// Whether a kill order may be armed.
#[inline(always)]
pub(crate) fn has_kernel_kill() -> bool {
    member!(kernel_kill) != 0
}

/// Whether a css with these flags belongs to a cgroup that exists and is not removed.
#[inline(always)]
pub(crate) fn is_online(flags: u32) -> bool {
    let online = member!(css_online);
    flags & (online | member!(css_dying)) == online
}

/// Whether this event number counts reclaimed pages.
#[inline(always)]
pub(crate) fn is_reclaim(event: u32) -> bool {
    event.wrapping_sub(member!(reclaimed_first)) < member!(reclaimed_events)
}

/// Returns the number of forks in a window that cause an alarm; 0 means no alarm.
#[inline(always)]
pub(crate) fn storm_forks() -> u32 {
    member!(storm_forks)
}

/// Returns the address of the configuration. `Global` is transparent, and loading it as a whole would copy it
/// to the stack.
#[inline(always)]
fn program_config() -> *const ProgramConfig {
    (&raw const PROGRAM_CONFIG).cast()
}
