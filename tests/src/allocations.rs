//! Counting what code asks of the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static TRACES: Cell<bool> = const { Cell::new(false) };
}

/// Set, it makes [`counted`] say on standard error where each block was asked for.
pub const TRACE: &str = "EVICTION_TRACE_ALLOCATIONS";

/// The system's allocator, counted thread by thread. To be set as `#[global_allocator]`.
#[derive(Clone, Copy, Debug)]
pub struct Counting;

/// Runs `work` and says how many blocks it asked for, those that it made grow included.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let traces = std::env::var_os(TRACE).is_some();
    let before = ALLOCATIONS.with(Cell::get);
    TRACES.with(|on| on.set(traces));
    let result = work();
    TRACES.with(|on| on.set(false));
    (result, ALLOCATIONS.with(Cell::get) - before)
}

fn count() {
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
    // What the trace itself asks for is not traced, but would be counted.
    if TRACES.with(|on| on.replace(false)) {
        let counted = ALLOCATIONS.with(Cell::get);
        eprintln!("allocation at\n{}", std::backtrace::Backtrace::force_capture());
        ALLOCATIONS.with(|count| count.set(counted));
        TRACES.with(|on| on.set(true));
    }
}

// SAFETY: everything is passed on to the system's allocator as it came; counting allocates
// nothing, since the counter needs neither a destructor nor an initialiser at run time.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(block, layout) }
    }
}
