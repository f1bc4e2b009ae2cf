//! What the kernel side and the user side of eviction-agent share: records, map keys, knobs.
//!
//! Everything here is `#[repr(C)]` with explicit padding, and is read by two programs that
//! were built by different compilers: a change of layout is a change of [`ABI_VERSION`].
#![no_std]
#![forbid(unsafe_code)]

/// Version of the layout of everything in this crate.
pub const ABI_VERSION: u32 = 1;
