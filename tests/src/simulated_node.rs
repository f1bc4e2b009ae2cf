//! Simulated nodes full of pods, generated from a seed, in the format of scenario files, so that the agent and
//! the kubelet can get the same ones.
//!
//! Every pod has three containers with requests and limits and four volumes, three of them local. A quarter of
//! the pods uses more than it requested, of memory and of local storage alike. None is above its limits, so
//! that only a threshold of the node leads to an eviction. One in a hundred is critical. Statistics have a
//! different order, as those of a kubelet do.

use std::fmt::{self, Write as _};

use serde_json::{Value, json};

use crate::random::Random;

/// The bytes of a MiB.
const MIB: u64 = 1 << 20;
/// The names of the containers of every pod.
const CONTAINERS: [&str; 3] = ["app", "proxy", "log-shipper"];

/// The pressure on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// No pressure.
    Calm,
    /// No pressure, and the pods' limits of local storage are not enforced.
    CalmNoLocalStorage,
    /// The hard threshold of `memory.available` is met.
    MemoryPressure,
    /// The hard threshold of `nodefs.available` is met, and garbage collection does not help.
    DiskPressure,
}

impl Case {
    /// All cases.
    pub const ALL: [Self; 4] =
        [Self::Calm, Self::CalmNoLocalStorage, Self::MemoryPressure, Self::DiskPressure];

    /// Returns the name in rows and scenarios.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::CalmNoLocalStorage => "calm, no local storage",
            Self::MemoryPressure => "memory pressure",
            Self::DiskPressure => "disk pressure",
        }
    }

    /// Returns the node's configuration: the kubelet's defaults except for one field.
    pub fn configuration(self) -> Value {
        json!({"localStorageCapacityIsolation": self != Self::CalmNoLocalStorage})
    }
}

/// The pods of a node, and what they use.
#[derive(Clone, Debug)]
pub struct SimulatedNode {
    pods: Vec<Pod>,
    /// The order of the statistics.
    order: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Pod {
    uid: String,
    name: String,
    namespace: String,
    token: String,
    priority: Option<i32>,
    memory_request: u64,
    storage_request: u64,
    memory: [u64; 3],
    rootfs: [u64; 3],
    logs: [u64; 3],
    inodes: [u64; 3],
    volumes: [u64; 3],
    processes: u64,
}

impl SimulatedNode {
    /// Creates a node with so many pods. The same seed always gives the same node.
    pub fn new(pods: usize, seed: u64) -> Self {
        let mut random = Random(seed);
        let pods: Vec<Pod> = (0..pods).map(|index| Pod::new(index, &mut random)).collect();
        let mut order: Vec<usize> = (0..pods.len()).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        Self { pods, order }
    }

    /// Returns the pods, each a `v1.Pod`.
    pub fn pods(&self) -> impl ExactSizeIterator<Item = Value> {
        self.pods.iter().map(Pod::specification)
    }

    /// Returns the `Summary` of `stats/v1alpha1` so many seconds after the first one, as JSON text: as a tree
    /// it would fill hundreds of megabytes.
    pub fn summary(&self, case: Case, after_seconds: i64) -> String {
        let time = time(after_seconds);
        let free = |pressed, calm| if case == pressed { MIB } else { calm };
        let capacity = 512 * 1024 * MIB;
        let disk = free(Case::DiskPressure, capacity / 2);
        let file_system = json!({
            "time": time, "availableBytes": disk, "capacityBytes": capacity, "usedBytes": capacity - disk,
            "inodesFree": 20_000_000, "inodes": 32_000_000, "inodesUsed": 12_000_000,
        });
        let memory = json!({
            "time": time,
            "availableBytes": free(Case::MemoryPressure, 64 * 1024 * MIB),
            "workingSetBytes": 192 * 1024 * MIB,
        });
        let node = json!({
            "nodeName": "node",
            "memory": memory,
            "systemContainers": [{"name": "pods", "memory": memory}],
            "fs": file_system,
            "runtime": {"imageFs": file_system, "containerFs": file_system},
            "rlimit": {"time": time, "maxpid": 4_194_304, "curproc": 60_000},
        });
        let pods = self.order.iter().map(|&index| self.pods[index].statistics(&time));
        format!(r#"{{"node":{node},"pods":{}}}"#, list(pods))
    }

    /// Returns a scenario of so many steps, as a line of JSON.
    pub fn scenario(&self, case: Case, steps: u32) -> String {
        let name = json!(format!("{}, {} pods", case.name(), self.pods.len()));
        let (configuration, pods) = (case.configuration(), list(self.pods()));
        let step = |step: u32| {
            let after = i64::from(step) * 10;
            let (at, summary) = (json!(time(after)), self.summary(case, after));
            format!(r#"{{"at":{at},"summary":{summary}}}"#)
        };
        let steps = list((0..steps).map(step));
        format!(r#"{{"name":{name},"kubeletConfiguration":{configuration},"pods":{pods},"steps":{steps}}}"#)
    }
}

fn list(elements: impl Iterator<Item = impl fmt::Display>) -> String {
    let mut text = String::from("[");
    for (index, element) in elements.enumerate() {
        let comma = if index > 0 { "," } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}{element}");
    }
    text + "]"
}

/// Formats a time as RFC 3339. A simulated node lasts a few hours.
fn time(after_seconds: i64) -> String {
    let seconds = 8 * 3600 + after_seconds;
    format!("2026-01-05T{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

impl Pod {
    fn new(index: usize, random: &mut Random) -> Self {
        let exceeds = random.below(4) == 0;
        let memory_request = random.between(64, 1024) * MIB;
        let storage_request = random.between(256, 2048) * MIB;
        // Per mille of the request.
        let share = |random: &mut Random| {
            if exceeds { random.between(1_010, 2_000) } else { random.between(100, 950) }
        };
        let memory = memory_request * share(random) / 1000;
        let storage = storage_request * share(random) / 1000;
        let storage: [u64; 9] = parts(storage, random);
        let priority = match random.below(100) {
            0 => Some(2_000_001_000),
            1..20 => Some(1_000_000),
            20..50 => Some(1_000),
            50..80 => Some(0),
            _ => None,
        };
        Self {
            uid: random.uid(),
            name: format!("service-{index}-{}", random.letters(5)),
            namespace: format!("team-{}", random.below(12)),
            token: format!("kube-api-access-{}", random.letters(5)),
            priority,
            memory_request,
            storage_request,
            memory: parts(memory, random),
            rootfs: [storage[0], storage[1], storage[2]],
            logs: [storage[3], storage[4], storage[5]],
            volumes: [storage[6], storage[7], storage[8]],
            inodes: std::array::from_fn(|_| random.between(10, 5_000)),
            processes: random.between(3, 200),
        }
    }

    fn specification(&self) -> Value {
        let third = |bytes: u64| (bytes / 3).to_string();
        let (memory, storage) = (third(self.memory_request), third(self.storage_request));
        let resources = json!({
            "requests": {"cpu": "100m", "memory": memory, "ephemeral-storage": storage},
            "limits": {"memory": "4Gi", "ephemeral-storage": "8Gi"},
        });
        json!({
            "metadata": {
                "uid": self.uid, "name": self.name, "namespace": self.namespace, "generation": 1,
                "labels": {"app.kubernetes.io/name": self.name, "pod-template-hash": "6d4b75cb6d"},
                "annotations": {"kubernetes.io/config.source": "api"},
            },
            "spec": {
                "priority": self.priority,
                "terminationGracePeriodSeconds": 30,
                "containers": CONTAINERS.map(|name| json!({"name": name, "resources": resources})),
                "volumes": [
                    {"name": "scratch", "emptyDir": {"sizeLimit": "8Gi"}},
                    {"name": "cache", "emptyDir": {}},
                    {"name": "settings", "configMap": {"name": "settings"}},
                    {"name": self.token, "projected": {}},
                ],
                "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
            },
            "status": {"phase": "Running", "qosClass": "Burstable", "startTime": time(-3600)},
        })
    }

    fn statistics(&self, time: &str) -> Value {
        let fs = |used: u64, inodes: u64| json!({"time": time, "usedBytes": used, "inodesUsed": inodes});
        let memory = |bytes: u64| json!({"time": time, "workingSetBytes": bytes});
        let container = |index: usize| {
            json!({
                "name": CONTAINERS[index],
                "memory": memory(self.memory[index]),
                "rootfs": fs(self.rootfs[index], self.inodes[index]),
                "logs": fs(self.logs[index], 2),
            })
        };
        let volume = |name: &str, used: u64, inodes: u64| {
            let mut volume = fs(used, inodes);
            volume["name"] = json!(name);
            volume
        };
        let storage: u64 = [self.rootfs, self.logs, self.volumes].iter().flatten().sum();
        let [scratch, cache, settings] = self.volumes;
        json!({
            "podRef": {"name": self.name, "namespace": self.namespace, "uid": self.uid},
            "startTime": time,
            "memory": memory(self.memory.iter().sum()),
            "ephemeral-storage": fs(storage, self.inodes.iter().sum()),
            "process_stats": {"process_count": self.processes},
            "containers": [container(0), container(1), container(2)],
            "volume": [
                volume(&self.token, 12_288, 9),
                volume("settings", settings, 5),
                volume("cache", cache, 100),
                volume("scratch", scratch, 100),
            ],
        })
    }
}

/// Splits a number into parts.
fn parts<const N: usize>(whole: u64, random: &mut Random) -> [u64; N] {
    let mut left = whole;
    let mut parts = [0; N];
    for part in &mut parts[1..] {
        *part = random.below(left / 2 + 1);
        left -= *part;
    }
    parts[0] = left;
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_node() {
        let scenario = |seed| SimulatedNode::new(20, seed).scenario(Case::Calm, 2);
        assert_eq!(scenario(7), scenario(7));
        assert_ne!(scenario(7), scenario(8));
    }

    #[test]
    fn a_quarter_of_the_pods_is_above_its_request() {
        let node = SimulatedNode::new(1000, 1);
        let above = |used: u64, requested: u64| used > requested;
        let memory = |pod: &&Pod| above(pod.memory.iter().sum(), pod.memory_request);
        let storage = |pod: &&Pod| {
            above([pod.rootfs, pod.logs, pod.volumes].iter().flatten().sum(), pod.storage_request)
        };
        let count = node.pods.iter().filter(memory).count();
        assert!((200..300).contains(&count), "{count}");
        assert_eq!(count, node.pods.iter().filter(storage).count());
    }

    #[test]
    fn times_are_formatted_as_rfc_3339() {
        assert_eq!(
            [time(0), time(59), time(3_601)],
            ["2026-01-05T08:00:00Z", "2026-01-05T08:00:59Z", "2026-01-05T09:00:01Z"]
        );
    }
}
