//! Two ways to read kernel memory.

use aya_ebpf::helpers::bpf_probe_read_kernel;

/// A way to read kernel memory through a pointer. A fault reads as 0.
pub(crate) trait Read {
    /// Whether adjacent members are read together in one call, at the price of one. Plain loads read each
    /// member separately.
    const COMBINES_READS: bool;

    /// Reads a `T` at `offset` bytes behind `base`.
    ///
    /// # Safety
    /// `base` is a pointer that the hook gave or that was read by the same `Read`.
    unsafe fn at<T: Copy + Default>(base: *const u8, offset: u32) -> T;
}

/// Plain loads, for pointers whose type the verifier knows from BTF. They cost half as much as the helper. A
/// pointer keeps its type: a css cannot be read as the memory cgroup around it.
pub(crate) struct Direct;

impl Read for Direct {
    const COMBINES_READS: bool = false;

    #[inline(always)]
    unsafe fn at<T: Copy + Default>(base: *const u8, offset: u32) -> T {
        // SAFETY: the verifier checks it against the type in BTF, and a fault reads as 0.
        // Volatile, since the kernel may change it at the same time.
        unsafe { core::ptr::read_volatile(base.add(offset as usize).cast()) }
    }
}

/// Reads by the helper, from any address.
pub(crate) struct Probe;

impl Read for Probe {
    const COMBINES_READS: bool = true;

    #[inline(always)]
    unsafe fn at<T: Copy + Default>(base: *const u8, offset: u32) -> T {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel(base.wrapping_add(offset as usize).cast()) }.unwrap_or_default()
    }
}

/// How the css chain and the page counter chain of a memory cgroup are read.
pub(crate) trait ReadStrategy {
    type Css: Read;
    type Counter: Read;
}

impl ReadStrategy for Direct {
    type Css = Self;
    type Counter = Self;
}

impl ReadStrategy for Probe {
    type Css = Self;
    type Counter = Self;
}

/// For hooks that pass a page counter of known type: the page counter is read directly. The css address is
/// computed as a plain number, so the css is read by the helper.
pub(crate) struct ByCounter;

impl ReadStrategy for ByCounter {
    type Css = Probe;
    type Counter = Direct;
}
