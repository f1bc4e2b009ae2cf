//! What the loader told: read-only and frozen before the programs are loaded, so that the
//! verifier knows each value and leaves out what hangs on an absent one.

use aya_ebpf::Global;
use eviction_common::{ABI_VERSION, ProgramConfig};

/// Overridden by the loader.
#[unsafe(no_mangle)]
pub(crate) static PROGRAM_CONFIG: Global<ProgramConfig> = Global::new(ProgramConfig::NONE);

/// The value of one member of [`eviction_common::Offsets`], bytes.
macro_rules! offset {
    ($member:ident) => {
        crate::config::offset_at(
            core::mem::offset_of!(eviction_common::ProgramConfig, offsets)
                + core::mem::offset_of!(eviction_common::Offsets, $member),
        )
    };
}
pub(crate) use offset;

/// The word that lies `place` bytes into [`PROGRAM_CONFIG`].
#[inline(always)]
pub(crate) fn offset_at(place: usize) -> u32 {
    // SAFETY: `offset!` gives the place of a u32 inside it. Volatile, since the loader changes it.
    unsafe { core::ptr::read_volatile(setup().byte_add(place).cast()) }
}

/// Whether the loader and the programs mean the same layout.
#[inline(always)]
pub(crate) fn is_ours() -> bool {
    // SAFETY: a static; volatile, since the loader changes it.
    unsafe { core::ptr::read_volatile(&raw const (*setup()).abi) == ABI_VERSION as u32 }
}

/// The memory controller's hierarchy.
#[inline(always)]
pub(crate) fn hierarchy() -> i32 {
    // SAFETY: a static; volatile, since the loader changes it.
    unsafe { core::ptr::read_volatile(&raw const (*setup()).hierarchy) }
}

/// Whether a kill order may be armed.
#[inline(always)]
pub(crate) fn has_kernel_kill() -> bool {
    // SAFETY: a static; volatile, since the loader changes it.
    unsafe { core::ptr::read_volatile(&raw const (*setup()).kernel_kill) != 0 }
}

/// The bit that an online css has.
#[inline(always)]
fn css_online() -> u32 {
    // SAFETY: a static; volatile, since the loader changes it.
    unsafe { core::ptr::read_volatile(&raw const (*setup()).css_online) }
}

/// The bit that a css has once its cgroup is removed.
#[inline(always)]
fn css_dying() -> u32 {
    // SAFETY: a static; volatile, since the loader changes it.
    unsafe { core::ptr::read_volatile(&raw const (*setup()).css_dying) }
}

/// Whether a css with these flags is of a cgroup that is there and not removed.
#[inline(always)]
pub(crate) fn is_online(flags: u32) -> bool {
    flags & (css_online() | css_dying()) == css_online()
}

/// Whether an event of this number counts what reclaim took.
#[inline(always)]
pub(crate) fn is_reclaim(event: u32) -> bool {
    // SAFETY: statics; volatile, since the loader changes them.
    let (first, events) = unsafe {
        (
            core::ptr::read_volatile(&raw const (*setup()).reclaimed_first),
            core::ptr::read_volatile(&raw const (*setup()).reclaimed_events),
        )
    };
    event.wrapping_sub(first) < events
}

/// How many forks in a window are a storm; 0 none.
#[inline(always)]
pub(crate) fn storm_forks() -> u32 {
    // SAFETY: a static; volatile, since the loader changes it.
    unsafe { core::ptr::read_volatile(&raw const (*setup()).storm_forks) }
}

/// `Global` is transparent, and loading it as a whole would copy it to the stack.
#[inline(always)]
fn setup() -> *const ProgramConfig {
    (&raw const PROGRAM_CONFIG).cast()
}
