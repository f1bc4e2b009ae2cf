//! Samples of a node, its pods and containers.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

pub use super::cgroup_memory::GroupSample;
use super::files::{Version, parse_limit};
use super::memory_tree::MemoryTree;
use super::names::PodUid;
use super::node_root::NodeRoot;
use super::pods::{Pod, Pods};
use super::tree::Tree;
use crate::backend::BackendInfo;
use crate::file::{FileError, OpenFile, parse_number_line, read_once};
pub use crate::proc::meminfo::{MemoryUsage, NodeSample};
use crate::proc::meminfo::{parse_meminfo, working_set_of};
use crate::proc::process::parse_task_count;
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::MemoryDetail;

const MEMINFO_BUFFER: usize = 16 << 10;

/// Returns how many files a sampler may keep open: all descriptors that the process may have (RLIMIT_NOFILE), less
/// some for the rest of the agent.
pub fn max_descriptors() -> usize {
    // Among them are those of init processes of containers.
    const RESERVED: u64 = 768;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
    usize::try_from(limit.saturating_sub(RESERVED)).unwrap_or(usize::MAX)
}

/// Reads the memory of a node, its pods and containers through descriptors that stay open.
///
/// Between refreshes a sample allocates nothing, unless there are more cgroups than descriptors.
#[derive(Debug)]
pub struct Sampler {
    root: NodeRoot,
    groups: MemoryTree,
    pods: Pods,
    /// The tasks of each pod, in the order of the pods, if they were counted since the last sample.
    task_counts: Vec<Reading<u64>>,
    /// `/proc/loadavg` of the machine, or `pids.current` of a node that is a cgroup.
    node_tasks: Result<OpenFile, UnknownReason>,
    meminfo: Result<OpenFile, UnknownReason>,
    meminfo_buffer: Box<[u8]>,
    /// MemTotal when the sampler was created.
    machine_total: Reading<u64>,
    /// The path of a file that is opened for a sample; its allocation is reused.
    path: PathBuf,
}

impl Sampler {
    /// Creates a sampler of `root` with the tree as it is now; `proc` is the folder of the proc file system. It keeps
    /// up to `max_descriptors` files open, two for each cgroup, and opens the others for each read. `is_known`
    /// returns which uids are pods' where names alone do not show it ([`Pods::find`]).
    pub fn new(
        root: NodeRoot,
        proc: &Path,
        max_descriptors: usize,
        is_known: impl Fn(&PodUid) -> bool,
    ) -> Result<Self, FileError> {
        let tree = Tree::scan(&root.memory)?;
        let node_tasks = match &root.pids {
            _ if root.whole_machine => OpenFile::open(&proc.join("loadavg")),
            Some(folder) => OpenFile::open(&folder.join("pids.current")),
            None => Err(UnknownReason::Absent),
        };
        let mut sampler = Self {
            groups: MemoryTree::new(root.version, max_descriptors, tree),
            root,
            pods: Pods::default(),
            task_counts: Vec::new(),
            path: PathBuf::new(),
            node_tasks,
            meminfo: OpenFile::open(&proc.join("meminfo")),
            meminfo_buffer: vec![0; MEMINFO_BUFFER].into(),
            machine_total: Reading::Unknown(UnknownReason::Absent),
        };
        sampler.machine_total = sampler.read_meminfo().capacity;
        sampler.find_pods(is_known);
        Ok(sampler)
    }

    /// Reads the tree again and adapts to it. This takes one `stat` for each cgroup, and a listing for each one
    /// that changed.
    pub fn refresh(&mut self, is_known: impl Fn(&PodUid) -> bool) -> Result<(), FileError> {
        let tree = self.groups.tree.rescan()?;
        self.groups.adopt(tree);
        self.find_pods(is_known);
        Ok(())
    }

    fn find_pods(&mut self, is_known: impl Fn(&PodUid) -> bool) {
        self.pods = Pods::find(&self.groups.tree, is_known);
        self.task_counts.clear();
        self.task_counts.reserve(self.pods.pods.len());
    }

    /// Returns the node's root.
    pub fn root(&self) -> &NodeRoot {
        &self.root
    }

    /// Returns the tree as of the last refresh.
    pub fn tree(&self) -> &Tree {
        &self.groups.tree
    }

    /// Returns the pods as of the last refresh.
    pub fn pods(&self) -> &Pods {
        &self.pods
    }

    /// Returns whether a cgroup was found to be removed since the last refresh.
    pub fn is_stale(&self) -> bool {
        self.groups.stale
    }

    /// Samples the memory of the node.
    ///
    /// For the whole machine that is one read of /proc/meminfo. For a node that is a cgroup it reads usages,
    /// then the memory.stat of cgroups in which something moved, `charged` ones (by cgroup id) before others,
    /// and then that of the node's cgroup.
    pub fn sample_node(&mut self, charged: &[u64]) -> NodeSample {
        self.task_counts.clear();
        if self.root.whole_machine {
            return self.read_meminfo();
        }
        self.groups.sweep_moved(charged);
        self.groups.read_level(0);
        let memory = &self.groups.memory[0];
        let working_set = working_set_of(memory.usage, memory.stat.inactive_file);
        let capacity = match memory.limit() {
            Some(limit) => self.machine_total.map(|total| total.min(limit)),
            None => self.machine_total,
        };
        let detail = MemoryDetail { active_file: memory.stat.active_file, ..MemoryDetail::default() };
        NodeSample {
            memory: MemoryUsage::of(memory.usage, working_set),
            free: Reading::Unknown(UnknownReason::Absent),
            capacity,
            detail,
        }
    }

    /// Reads the limits of a cgroup again.
    pub fn read_limit(&mut self, cgroup_id: u64) {
        if let Some(index) = self.groups.index(cgroup_id) {
            self.groups.read_limit(index);
        }
    }

    /// Samples a cgroup now, for instance the pods' root. Everything below it is read first where that is
    /// little, else what moved, as [`Self::sample_node`] does for a node that is a cgroup. Returns `None` if it
    /// is not in the tree or was removed.
    pub fn sample_group(&mut self, cgroup_id: u64, charged: &[u64]) -> Option<GroupSample> {
        let index = self.groups.index(cgroup_id)?;
        if self.groups.has_few_below(index) {
            self.groups.read_subtree(index);
        } else {
            self.groups.sweep_moved(charged);
            self.groups.read_level(index);
        }
        let memory = &self.groups.memory[index];
        memory.is_available().then(|| memory.sample())
    }

    /// Samples every pod in full: the usages of all cgroups, the memory.stat of those in which something moved
    /// and of those above them, and memory.stat and the limits of one in `turns` of the others.
    pub fn sample_all(&mut self, turns: usize) {
        self.task_counts.clear();
        self.groups.read_in_turn(turns);
    }

    /// Samples every pod for a decision. Reads usages as far down as something moved, then the memory.stat of
    /// pods, with all cgroups in them, that can have changed and were not read since `since_ns`, when the
    /// sample began. Pods that use most memory are read first, up to `most` files.
    pub fn sample_changed(&mut self, most: usize, since_ns: u64) {
        self.task_counts.clear();
        if self.groups.swept_ns < since_ns {
            self.groups.sweep_moved(&[]);
        }
        self.groups.read_changed(self.pods.pods.iter().map(|pod| pod.cgroup_id), most, since_ns);
    }

    /// Counts the tasks of every pod, which reads a file for each. The next sample of the node or of pods discards
    /// the counts: until it counts them again, they are unknown.
    pub fn count_tasks(&mut self) {
        self.task_counts.clear();
        for pod in &self.pods.pods {
            let count = match &self.root.pids {
                Some(root) => {
                    self.path.clear();
                    self.path.extend([root, &pod.path, Path::new("pids.current")]);
                    OpenFile::open(&self.path).and_then(|file| parse_number_line(file.read(&mut [0; 32])?))
                }
                None => Err(UnknownReason::Absent),
            };
            self.task_counts.push(count.into());
        }
    }

    /// Reads the memory of a pod now, that of cgroups below it first (of many, those in which something moved),
    /// unless it was read since `since_ns`. Returns whether it was read.
    pub fn read_again(&mut self, cgroup_id: u64, since_ns: u64) -> bool {
        self.groups.index(cgroup_id).is_some_and(|index| self.groups.read_again(index, since_ns))
    }

    /// Returns every pod with its last values. Those of containers are available from [`Self::group`].
    pub fn last_pods(&self) -> impl Iterator<Item = (&Pod, GroupSample)> {
        self.pods.pods.iter().enumerate().filter_map(|(index, pod)| {
            let tasks = self.task_counts.get(index).copied().unwrap_or_default();
            Some((pod, GroupSample { tasks, ..self.group(pod.cgroup_id)? }))
        })
    }

    /// Returns the last values of a cgroup.
    pub fn group(&self, cgroup_id: u64) -> Option<GroupSample> {
        Some(self.groups.memory[self.groups.index(cgroup_id)?].sample())
    }

    /// Reads the tasks of the node.
    pub fn read_task_count(&self) -> Reading<u64> {
        let parse = if self.root.whole_machine { parse_task_count } else { parse_number_line };
        let file = self.node_tasks.as_ref().map_err(|why| *why);
        file.and_then(|file| parse(file.read(&mut [0; 128])?)).into()
    }

    /// Reads the limit on the tasks of a node that is a cgroup: `pids.max`. Absent if there is none.
    pub fn read_task_limit(&self) -> Reading<u64> {
        let Some(folder) = &self.root.pids else { return Reading::Unknown(UnknownReason::Absent) };
        match read_once(&folder.join("pids.max"), 32).and_then(|text| parse_limit(&text)) {
            Ok(Some(limit)) => Reading::Known(limit),
            Ok(None) => Reading::Unknown(UnknownReason::Absent),
            Err(why) => Reading::Unknown(why),
        }
    }

    /// Returns the backends of the node's values: memory and tasks.
    pub fn info(&self) -> [BackendInfo; 2] {
        if self.root.whole_machine {
            let memory = "the values that the kubelet reads, never stale";
            let tasks = "all tasks of the machine, as the kubelet counts them";
            return [
                BackendInfo::plain("node memory", "meminfo", memory),
                BackendInfo::plain("node tasks", "loadavg", tasks),
            ];
        }
        let memory = "the node is a group: those below it in which something moved are read first";
        let backend = match self.root.version {
            Version::V1 => "cgroup v1, leaf first",
            Version::V2 => "cgroup v2, leaf first",
        };
        let tasks = match self.root.pids {
            Some(_) => BackendInfo::plain("node tasks", "pids.current", "the node is a group"),
            None => BackendInfo::plain("node tasks", "", "no hierarchy has the pids controller"),
        };
        [BackendInfo::plain("node memory", backend, memory), tasks]
    }

    fn read_meminfo(&mut self) -> NodeSample {
        let text = match &self.meminfo {
            Ok(file) => file.read(&mut self.meminfo_buffer),
            Err(why) => Err(*why),
        };
        text.map_or_else(NodeSample::unknown, parse_meminfo)
    }
}
