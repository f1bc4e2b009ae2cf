//! After the first samples, sampling takes no memory: nothing on the way to a decision may
//! wait for an allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use eviction_node::cgroup::sample::Tasks;
use eviction_node::proc::tasks::TaskCounter;

use crate::recorded;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts what the thread asks for.
struct Counting;

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn sampling_does_not_allocate() {
    assert!(allocations(|| drop(vec![0_u8; 10])) == 1, "counting works");
    for (recording, root) in
        [(recorded::V1, "/kubepods"), (recorded::V2, "/kubepods.slice"), (recorded::V2, "/")]
    {
        let node = recorded::Node::unpack(recording);
        let mut sampler = node.sampler(root);
        let dirty: Vec<u64> = sampler.pods().pods.iter().flat_map(|pod| pod.leaves.clone()).collect();
        let level = sampler.pods().pods[0].cgroup_id;
        let tasks = TaskCounter::open(&node.path("proc"));
        let mut sample = || {
            sampler.sample_node(&dirty);
            sampler.sample_group(level, &dirty);
            sampler.sample_changed(8, u64::MAX, Tasks::Leave);
            sampler.sample_all(1, Tasks::Count);
            sampler.group(level);
            tasks.read();
        };
        sample();
        assert_eq!(allocations(sample), 0, "{root}");
    }
}
