//! After the first samples, sampling takes no memory: nothing on the way to a decision may
//! wait for an allocator.

use tests::allocations::{CountingAllocator, count_allocations};

use crate::recorded;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn sampling_does_not_allocate() {
    assert_eq!(count_allocations(|| drop(vec![0_u8; 10])).1, 1, "counting works");
    for (recording, root) in
        [(recorded::V1, "/kubepods"), (recorded::V2, "/kubepods.slice"), (recorded::V2, "/")]
    {
        let node = recorded::Node::unpack(recording);
        let mut sampler = node.sampler(root);
        let dirty: Vec<u64> = sampler.pods().pods.iter().flat_map(|pod| pod.leaves.clone()).collect();
        let level = sampler.pods().pods[0].cgroup_id;
        let mut sample = || {
            sampler.sample_node(&dirty);
            sampler.sample_group(level, &dirty);
            sampler.sample_changed(8, u64::MAX);
            sampler.sample_all(1);
            sampler.count_tasks();
            sampler.group(level);
            assert!(sampler.last_pods().count() > 0);
            sampler.read_task_count();
        };
        sample();
        assert_eq!(count_allocations(sample).1, 0, "{root}");
    }
}
