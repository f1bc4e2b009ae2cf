//! Counts allocations of code.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::fmt;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static TRACES: Cell<bool> = const { Cell::new(false) };
    static FIRST: RefCell<Option<Backtrace>> = const { RefCell::new(None) };
}

/// The system's allocator, which counts allocations per thread. Set it as `#[global_allocator]`.
#[derive(Clone, Copy, Debug)]
pub struct CountingAllocator;

/// Runs `work` and returns how many blocks it allocated, including those that it reallocated.
pub fn count_allocations<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = ALLOCATIONS.with(Cell::get);
    let result = work();
    (result, ALLOCATIONS.with(Cell::get) - before)
}

/// Does the same as [`count_allocations`], and captures a backtrace of the first allocation. For code that must not
/// allocate, since a backtrace takes long.
pub fn trace_allocations<T>(work: impl FnOnce() -> T) -> (T, Allocations) {
    TRACES.with(|on| on.set(true));
    let (result, blocks) = count_allocations(work);
    TRACES.with(|on| on.set(false));
    (result, Allocations { blocks, first: FIRST.with(RefCell::take) })
}

/// The allocations of some code.
#[derive(Debug, Default)]
pub struct Allocations {
    /// The number of blocks.
    pub blocks: u64,
    first: Option<Backtrace>,
}

impl fmt::Display for Allocations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks", self.blocks)?;
        self.first.as_ref().map_or(Ok(()), |first| write!(f, ", the first at\n{first}"))
    }
}

fn count() {
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
    // The allocations of the backtrace itself are not traced, but would be counted.
    if TRACES.with(|on| on.replace(false)) {
        let counted = ALLOCATIONS.with(Cell::get);
        FIRST.with(|first| first.replace(Some(Backtrace::force_capture())));
        ALLOCATIONS.with(|count| count.set(counted));
    }
}

// SAFETY: every call is passed to the system's allocator unchanged. Counting does not allocate, since the
// counter needs neither a destructor nor an initialiser at run time. What a trace allocates is not traced.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(block, layout) }
    }
}
