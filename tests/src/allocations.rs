//! Counting what code asks of the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::fmt;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static TRACES: Cell<bool> = const { Cell::new(false) };
    static FIRST: RefCell<Option<Backtrace>> = const { RefCell::new(None) };
}

/// The system's allocator, counted thread by thread. To be set as `#[global_allocator]`.
#[derive(Clone, Copy, Debug)]
pub struct Counting;

/// Runs `work` and says how many blocks it asked for, those that it made grow included.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = ALLOCATIONS.with(Cell::get);
    let result = work();
    (result, ALLOCATIONS.with(Cell::get) - before)
}

/// As [`counted`], with the place that asked first: for what is to ask for nothing, since finding the place takes long.
pub fn traced<T>(work: impl FnOnce() -> T) -> (T, Asked) {
    TRACES.with(|on| on.set(true));
    let (result, blocks) = counted(work);
    TRACES.with(|on| on.set(false));
    (result, Asked { blocks, first: FIRST.with(RefCell::take) })
}

/// What was asked of the allocator.
#[derive(Debug, Default)]
pub struct Asked {
    /// So many blocks.
    pub blocks: u64,
    first: Option<Backtrace>,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks", self.blocks)?;
        self.first.as_ref().map_or(Ok(()), |first| write!(f, ", the first at\n{first}"))
    }
}

fn count() {
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
    // What the trace itself asks for is not traced, but would be counted.
    if TRACES.with(|on| on.replace(false)) {
        let counted = ALLOCATIONS.with(Cell::get);
        FIRST.with(|first| first.replace(Some(Backtrace::force_capture())));
        ALLOCATIONS.with(|count| count.set(counted));
    }
}

// SAFETY: everything is passed on to the system's allocator as it came; counting allocates
// nothing, since the counter needs neither a destructor nor an initialiser at run time; what a trace
// allocates is not traced.
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
