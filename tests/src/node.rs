//! A small node: a cgroup subtree with pods as the kubelet lays them out, and the two files that describe them
//! to the agent.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::cgroup::{Driver, Group, Qos, Subtree, container_id, pod_uid};
use crate::file_system::FileSystem;
use crate::folder::Folder;
use crate::workload::Workload;

/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;

/// The contents of a pod's manifest.
#[derive(Clone, Debug)]
pub struct PodSpec {
    /// The namespace.
    pub namespace: &'static str,
    /// The name.
    pub name: String,
    /// The names of its containers.
    pub containers: &'static [&'static str],
    /// The memory request of each container, MiB.
    pub request_mib: u64,
    /// The ephemeral storage request of each container, MiB; 0 for none.
    pub storage_request_mib: u64,
    /// The ephemeral storage limit of each container that has one, MiB: those of the first containers.
    pub storage_limits_mib: &'static [u64],
    /// The name of its emptyDir volume, if it has one.
    pub volume: Option<&'static str>,
    /// `sizeLimit` of that volume, MiB.
    pub volume_limit_mib: Option<u64>,
    /// The memory limit of each container, MiB.
    pub limit_mib: Option<u64>,
    /// The priority; absent counts as 0.
    pub priority: Option<i32>,
    /// Whether it is a static pod, which the node itself starts from a manifest file: such a pod is critical.
    pub is_static: bool,
}

impl PodSpec {
    /// Creates a pod without a limit or a priority, which is not static.
    pub fn new(
        namespace: &'static str,
        name: impl Into<String>,
        containers: &'static [&'static str],
        request_mib: u64,
    ) -> Self {
        let name = name.into();
        Self {
            namespace,
            name,
            containers,
            request_mib,
            storage_request_mib: 0,
            storage_limits_mib: &[],
            volume: None,
            volume_limit_mib: None,
            limit_mib: None,
            priority: None,
            is_static: false,
        }
    }

    /// Returns `resources` of its nth container.
    pub(crate) fn resources(&self, nth: usize) -> Value {
        let mut resources = json!({"requests": {"memory": format!("{}Mi", self.request_mib)}});
        if let Some(limit) = self.limit_mib {
            resources["limits"] = json!({"memory": format!("{limit}Mi")});
        }
        if let Some(limit) = self.storage_limits_mib.get(nth) {
            resources["limits"]["ephemeral-storage"] = json!(format!("{limit}Mi"));
        }
        if self.storage_request_mib > 0 {
            resources["requests"]["ephemeral-storage"] = json!(format!("{}Mi", self.storage_request_mib));
        }
        resources
    }

    /// Returns its emptyDir volume as `volumes` of a pod, if it has one.
    pub(crate) fn volumes(&self) -> Option<Value> {
        let (name, limit) = (self.volume?, self.volume_limit_mib);
        let empty_dir = limit.map_or_else(|| json!({}), |limit| json!({"sizeLimit": format!("{limit}Mi")}));
        Some(json!([{"name": name, "emptyDir": empty_dir}]))
    }
}

/// Returns the annotations of the mirror of a static pod, as the kubelet writes them.
pub(crate) fn mirror_annotations(hash: &str) -> Value {
    json!({
        "kubernetes.io/config.source": "file",
        "kubernetes.io/config.hash": hash,
        "kubernetes.io/config.mirror": hash,
    })
}

/// A pod, with its cgroups.
#[derive(Debug)]
pub struct Pod {
    spec: PodSpec,
    uid: String,
    hash: Option<String>,
    /// Its cgroup.
    pub group: Group,
    /// Its containers, in the order of the manifest.
    pub containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Debug)]
pub struct Container {
    /// Its name in the manifest.
    pub name: &'static str,
    /// The runtime's ID.
    pub id: String,
    /// Its cgroup.
    pub group: Group,
}

impl Pod {
    /// Returns `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.spec.namespace, self.spec.name)
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &'static str {
        self.spec.namespace
    }

    /// Returns the UID in the API.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the contents of the manifest.
    pub fn spec(&self) -> &PodSpec {
        &self.spec
    }

    /// Returns the cgroup of its first container.
    ///
    /// # Errors
    /// If it has none.
    pub fn first(&self) -> Result<&Group> {
        let container =
            self.containers.first().with_context(|| format!("{} has no container", self.full_name()))?;
        Ok(&container.group)
    }

    /// Creates the directory of its emptyDir volume on a file system that is the node's nodefs, if it does not exist
    /// yet, and returns it.
    ///
    /// # Errors
    /// If it has no volume, or the directory cannot be created.
    pub fn create_volume(&self, disk: &FileSystem) -> Result<PathBuf> {
        let name = self.spec.volume.with_context(|| format!("{} has no volume", self.full_name()))?;
        // The path of a static pod has the hash of its manifest.
        let uid = self.hash.as_deref().unwrap_or(&self.uid);
        let pod = disk.kubelet_root().join("pods").join(uid);
        let path = pod.join("volumes/kubernetes.io~empty-dir").join(name);
        fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(path)
    }

    /// Returns the working set: the usage of the pod less its inactive file pages. The value of each container
    /// is read from its own cgroup, since that of an ancestor may be two seconds old.
    ///
    /// # Errors
    /// If a file of the kernel cannot be read.
    pub fn working_set(&self) -> Result<u64> {
        let usage = self.group.memory()?;
        Ok(usage.saturating_sub(self.inactive_file()?))
    }

    fn inactive_file(&self) -> Result<u64> {
        self.containers.iter().map(|container| container.group.memory_stat("inactive_file")).sum()
    }

    /// Returns the OOM kills that the kernel has counted in all of its cgroups.
    ///
    /// # Errors
    /// If a file of the kernel cannot be read.
    pub fn oom_kills(&self) -> Result<u64> {
        let mut kills = self.group.oom_kills()?;
        for container in &self.containers {
            kills += container.group.oom_kills()?;
        }
        Ok(kills)
    }

    fn manifest(&self) -> Value {
        let Self { spec, uid, hash, group: _, containers } = self;
        let PodSpec { namespace, name, priority, .. } = spec;
        let annotations = hash.as_deref().map_or_else(|| json!({}), mirror_annotations);
        let of_spec: Vec<Value> = containers
            .iter()
            .enumerate()
            .map(|(nth, container)| json!({"name": container.name, "resources": spec.resources(nth)}))
            .collect();
        let of_status: Vec<Value> = containers
            .iter()
            .map(|container| {
                json!({
                    "name": container.name,
                    "containerID": format!("containerd://{}", container.id),
                    "state": {"running": {}},
                })
            })
            .collect();
        let mut pod_spec = json!({"containers": of_spec});
        if let Some(volumes) = spec.volumes() {
            pod_spec["volumes"] = volumes;
        }
        if let Some(priority) = priority {
            pod_spec["priority"] = json!(priority);
        }
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": annotations},
            "spec": pod_spec,
            "status": {"phase": "Running", "qosClass": "Burstable", "containerStatuses": of_status},
        })
    }
}

/// A small node.
#[derive(Debug)]
pub struct Node {
    // Dropped first: processes in the cgroups have open files in the folder.
    tree: Subtree,
    folder: Folder,
    /// Its pods.
    pub pods: Vec<Pod>,
    /// The number of pods that were ever added, so that no two containers have the same ID.
    added: u64,
    memory: u64,
    pids: u64,
}

impl Node {
    /// Creates a node with so much memory and so many process IDs. Both are limits of the subtree, so that
    /// nothing in it endangers the machine.
    ///
    /// # Errors
    /// If cgroups cannot be created or limited here.
    pub fn new(label: &str, memory: u64, pids: u64) -> Result<Self> {
        let tree = Subtree::new(label)?;
        tree.root().limit_memory(memory)?;
        tree.root().limit_pids(pids)?;
        let folder = Folder::in_memory(&format!("eviction-{label}"))?;
        Ok(Self { tree, folder, pods: Vec::new(), added: 0, memory, pids })
    }

    /// Adds a pod with its cgroups, and returns its index.
    ///
    /// # Errors
    /// If a cgroup cannot be created or limited.
    pub fn add(&mut self, spec: PodSpec) -> Result<usize> {
        self.add_with_uid(spec, pod_uid(self.added))
    }

    /// Returns the hash that replaces the UID in the path of a static pod that is added at this index.
    pub fn config_hash(index: usize) -> String {
        format!("{:032x}", 0x00c0_ffee_usize + index)
    }

    /// Adds a pod with the UID that an API server has assigned, and returns its index.
    ///
    /// # Errors
    /// If a cgroup cannot be created or limited.
    pub fn add_with_uid(&mut self, spec: PodSpec, uid: String) -> Result<usize> {
        let serial = self.added;
        self.added += 1;
        let hash = spec.is_static.then(|| Self::config_hash(self.pods.len()));
        let in_path = hash.as_deref().unwrap_or(&uid);
        let group = self.tree.pod(Driver::Cgroupfs, Qos::Burstable, in_path)?;
        let mut containers = Vec::new();
        for (nth, &name) in spec.containers.iter().enumerate() {
            let id = container_id(serial * 100 + u64::try_from(nth).context("number of containers")?);
            let container = group.group(Driver::Cgroupfs.container(&id))?;
            if let Some(limit) = spec.limit_mib {
                container.limit_memory(limit * MIB)?;
            }
            containers.push(Container { name, id, group: container });
        }
        if let Some(limit) = spec.limit_mib {
            // The kubelet limits a pod to the sum, once each container has a limit.
            group.limit_memory(limit * MIB * u64::try_from(containers.len()).context("containers")?)?;
        }
        self.pods.push(Pod { spec, uid, hash, group, containers });
        Ok(self.pods.len() - 1)
    }

    /// Returns the memory of the node, bytes.
    pub fn memory_capacity(&self) -> u64 {
        self.memory
    }

    /// Returns the number of process IDs of the node.
    pub fn pid_capacity(&self) -> u64 {
        self.pids
    }

    /// Returns the cgroup that represents the node.
    pub fn root(&self) -> &Group {
        self.tree.root()
    }

    /// Returns the agent's cgroup root.
    pub fn cgroup_root(&self) -> String {
        self.tree.path().display().to_string()
    }

    /// Starts `workload` with these arguments in the first container of a pod. It is ready, and waits for the go.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn workload(&self, pod: usize, arguments: &[&str]) -> Result<Workload> {
        Workload::start(self.pods[pod].first()?, arguments)
    }

    /// Starts a workload as [`Self::workload`] does, and lets it go at once.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn run(&self, pod: usize, arguments: &[&str]) -> Result<Workload> {
        Workload::run(self.pods[pod].first()?, arguments)
    }

    /// Starts a process that holds `size` in the first container of a pod, and waits until it does.
    ///
    /// # Errors
    /// If it cannot be started, or ends before.
    pub fn hold(&self, pod: usize, size: &str) -> Result<Workload> {
        Workload::hold(self.pods[pod].first()?, size)
    }

    /// Returns a file in the folder of this node.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the current working set of the node. Its own memory.stat may be two seconds old, but all charges
    /// are in the containers, which have current values.
    ///
    /// # Errors
    /// If a file of the kernel cannot be read.
    pub fn working_set(&self) -> Result<u64> {
        let usage = self.root().memory()?;
        let inactive: u64 = self.pods.iter().map(Pod::inactive_file).sum::<Result<u64>>()?;
        Ok(usage.saturating_sub(inactive))
    }

    /// Returns the OOM kills that the kernel has counted anywhere in the node.
    ///
    /// # Errors
    /// If a file of the kernel cannot be read.
    pub fn oom_kills(&self) -> Result<u64> {
        let pods: u64 = self.pods.iter().map(Pod::oom_kills).sum::<Result<u64>>()?;
        Ok(pods + self.root().oom_kills()?)
    }

    /// Writes the pods file atomically, and returns it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_pods(&self) -> Result<PathBuf> {
        let items: Vec<Value> = self.pods.iter().map(Pod::manifest).collect();
        self.write("pods.json", &json!({"apiVersion": "v1", "kind": "PodList", "items": items}))
    }

    /// Writes the kubelet's configuration with these fields, and returns the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_config(&self, fields: &Value) -> Result<PathBuf> {
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            // A small node has no separate cgroup of all pods to which a limit could apply.
            "enforceNodeAllocatable": [],
        });
        self.write("kubelet.yaml", &with_fields(config, fields)?)
    }

    /// Writes the agent's configuration with these fields, and returns the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_agent_config(&self, fields: &Value) -> Result<PathBuf> {
        let config = json!({"apiVersion": "eviction-agent.io/v1alpha1", "kind": "AgentConfiguration"});
        self.write("agent.yaml", &with_fields(config, fields)?)
    }

    fn write(&self, name: &str, value: &Value) -> Result<PathBuf> {
        let (path, half) = (self.file(name), self.file(&format!("{name}.half")));
        let text = serde_json::to_string_pretty(value).context("write JSON")?;
        fs::write(&half, text).with_context(|| format!("write {}", half.display()))?;
        fs::rename(&half, &path).with_context(|| format!("rename to {}", path.display()))?;
        Ok(path)
    }
}

/// Sets these fields of a configuration.
pub(crate) fn with_fields(mut config: Value, fields: &Value) -> Result<Value> {
    for (key, value) in fields.as_object().context("fields of a configuration")? {
        config[key] = value.clone();
    }
    Ok(config)
}
