//! A sample as the kubelet's Summary has it, and the kernel's other values of memory.

use serde_json::{Value, json};

use eviction_core::disk_layout::Parts;
use eviction_core::reading::Reading;
use eviction_core::snapshot::{
    FsStats, MemoryDetail, MemoryStats, NodeStats, PodStatValues, PodStats, ProcessStats, Snapshot,
};

/// The values of the node and of its pods.
pub(crate) fn summary(snapshot: &Snapshot) -> Value {
    let NodeStats {
        memory,
        allocatable_memory,
        node_fs,
        image_fs,
        container_fs,
        processes,
        memory_detail: _,
        unmeasured,
    } = snapshot.node;
    let of_pods = allocatable_memory.known().map(|it| json!({"name": "pods", "memory": node_memory(it)}));
    let mut summary = json!({
        "node": {
            "memory": memory.known().map(node_memory),
            "systemContainers": of_pods.into_iter().collect::<Vec<_>>(),
            "fs": node_fs.known().map(disk),
            "runtime": {"imageFs": image_fs.known().map(disk), "containerFs": container_fs.known().map(disk)},
            "rlimit": processes.known().map(|ProcessStats { max, running, time, source: _ }| {
                json!({"time": time, "maxpid": max, "curproc": running})
            }),
        },
        "pods": snapshot.pods().map(pod).collect::<Vec<_>>(),
    });
    if unmeasured != Parts::default() {
        summary["node"]["unmeasured"] = json!(unmeasured);
    }
    summary
}

/// The node's memory by measures that the Summary does not have.
pub(crate) fn memory(detail: &MemoryDetail) -> Value {
    let &MemoryDetail { mem_available, active_file, some_avg10, full_avg10, stalled, swap_used, swap_total } =
        detail;
    #[expect(clippy::cast_precision_loss, reason = "hundredths of a percent are small")]
    let percent = |hundredths: Reading<u64>| hundredths.known().map(|share| share as f64 / 100.0);
    json!({
        "memAvailable": mem_available.known(),
        "activeFile": active_file.known(),
        "someAvg10": percent(some_avg10),
        "fullAvg10": percent(full_avg10),
        "stalled": stalled.known(),
        "swapUsed": swap_used.known(),
        "swapTotal": swap_total.known(),
    })
}

fn node_memory(MemoryStats { available, working_set, time, source: _ }: MemoryStats) -> Value {
    json!({"time": time, "availableBytes": available, "workingSetBytes": working_set})
}

fn disk(FsStats { available, capacity, inodes_free, inodes, time, source: _ }: FsStats) -> Value {
    json!({
        "time": time, "availableBytes": available, "capacityBytes": capacity,
        "inodesFree": inodes_free, "inodes": inodes,
    })
}

fn pod(pod: PodStats<'_>) -> Value {
    let PodStatValues {
        has_memory,
        memory_working_set,
        memory_anonymous,
        ephemeral_storage_used,
        process_count,
    } = pod.values();
    let memory = json!({"workingSetBytes": memory_working_set, "rssBytes": memory_anonymous});
    let containers = pod.containers().map(|container| {
        let figures = container.values();
        json!({
            "name": container.name(),
            "memory": figures.memory_working_set.map(|bytes| json!({"workingSetBytes": bytes})),
            "rootfs": {"usedBytes": figures.rootfs_used, "inodesUsed": figures.rootfs_inodes},
            "logs": {"usedBytes": figures.logs_used, "inodesUsed": figures.logs_inodes},
        })
    });
    let volumes = pod.volumes().map(|volume| {
        let figures = volume.values();
        json!({"name": volume.name(), "usedBytes": figures.used, "inodesUsed": figures.inodes})
    });
    json!({
        "podRef": {"uid": pod.uid()},
        "memory": has_memory.then_some(memory),
        "ephemeral-storage": ephemeral_storage_used.map(|used| json!({"usedBytes": used})),
        "process_stats": process_count.map(|count| json!({"process_count": count})),
        "containers": containers.collect::<Vec<_>>(),
        "volume": volumes.collect::<Vec<_>>(),
    })
}
