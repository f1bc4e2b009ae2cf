//! Two ways to read kernel memory.

use aya_ebpf::helpers::bpf_probe_read_kernel;

/// How a program reads what a pointer of the kernel points to. A fault reads as 0.
pub(crate) trait Read {
    /// What lies side by side is read at once, for the price of one; plain loads are by member.
    const AT_ONCE: bool;

    /// Reads a `T` that lies `offset` bytes behind `base`.
    ///
    /// # Safety
    /// `base` is a pointer that the hook gave or that was read by the same `Read`.
    unsafe fn at<T: Copy + Default>(base: *const u8, offset: u32) -> T;
}

/// Plain loads, where the verifier knows from BTF what a pointer points to; half the price of
/// the other. A pointer keeps its type: a css cannot be read as the memory cgroup around it.
pub(crate) struct Direct;

impl Read for Direct {
    const AT_ONCE: bool = false;

    #[inline(always)]
    unsafe fn at<T: Copy + Default>(base: *const u8, offset: u32) -> T {
        // SAFETY: the verifier checks it against the type in BTF, and a fault reads as 0.
        // Volatile, since the kernel changes it meanwhile.
        unsafe { core::ptr::read_volatile(base.add(offset as usize).cast()) }
    }
}

/// Reads by helper: any address goes.
pub(crate) struct Probe;

impl Read for Probe {
    const AT_ONCE: bool = true;

    #[inline(always)]
    unsafe fn at<T: Copy + Default>(base: *const u8, offset: u32) -> T {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel(base.wrapping_add(offset as usize).cast()) }.unwrap_or_default()
    }
}

/// How the two chains of a memory cgroup are read, that of its css and that of its counter.
pub(crate) trait Means {
    type Css: Read;
    type Counter: Read;
}

impl Means for Direct {
    type Css = Self;
    type Counter = Self;
}

impl Means for Probe {
    type Css = Self;
    type Counter = Self;
}

/// Where a hook gives the counter and BTF says so: the way from it to the css is a number.
pub(crate) struct ByCounter;

impl Means for ByCounter {
    type Css = Probe;
    type Counter = Direct;
}
