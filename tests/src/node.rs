//! A node in small: a cgroup subtree with pods in it as the kubelet lays them out, and the two
//! files that tell the agent about them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use crate::cgroup::{Driver, Group, Qos, Subtree, container_id, pod_uid};
use crate::folder::Folder;

/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;

/// What a pod's manifest says.
#[derive(Clone, Debug)]
pub struct PodSpec {
    /// Namespace.
    pub namespace: &'static str,
    /// Name.
    pub name: String,
    /// Names of its containers.
    pub containers: &'static [&'static str],
    /// Memory that each container asks for, MiB.
    pub request_mib: u64,
    /// Ephemeral storage that each container asks for, MiB; 0 for none.
    pub storage_request_mib: u64,
    /// Name of its emptyDir volume, if it has one.
    pub volume: Option<&'static str>,
    /// `sizeLimit` of that volume, MiB.
    pub volume_limit_mib: Option<u64>,
    /// Memory that each container may have, MiB.
    pub limit_mib: Option<u64>,
    /// Priority; absent counts as 0.
    pub priority: Option<i32>,
    /// Whether the node itself starts it, from a manifest file: such a pod is critical.
    pub is_static: bool,
}

impl PodSpec {
    /// A pod without a limit or a priority, made through the API server.
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
            volume: None,
            volume_limit_mib: None,
            limit_mib: None,
            priority: None,
            is_static: false,
        }
    }
}

/// A pod, its cgroups made.
#[derive(Debug)]
pub struct Pod {
    spec: PodSpec,
    uid: String,
    hash: Option<String>,
    /// Its group.
    pub group: Group,
    /// Its containers, in the order of the manifest.
    pub containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Debug)]
pub struct Container {
    /// Its name in the manifest.
    pub name: &'static str,
    /// The runtime's id.
    pub id: String,
    /// Its group.
    pub group: Group,
}

impl Pod {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.spec.namespace, self.spec.name)
    }

    /// The namespace.
    pub fn namespace(&self) -> &'static str {
        self.spec.namespace
    }

    /// The uid that the API shows.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// What the manifest says.
    pub fn spec(&self) -> &PodSpec {
        &self.spec
    }

    /// Its uid in paths: for a static pod that of its manifest.
    pub fn uid_in_path(&self) -> &str {
        self.hash.as_deref().unwrap_or(&self.uid)
    }

    /// The group of its first container.
    ///
    /// # Errors
    /// If it has none.
    pub fn first(&self) -> Result<&Group> {
        let container =
            self.containers.first().with_context(|| format!("{} has no container", self.full_name()))?;
        Ok(&container.group)
    }

    /// Working set: usage of the pod less its inactive file pages, each container's figure read
    /// from its own group, since that of an ancestor may be two seconds old.
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

    /// OOM kills that the kernel has counted in any of its groups.
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
        let PodSpec {
            namespace,
            name,
            containers: _,
            request_mib,
            storage_request_mib,
            volume,
            volume_limit_mib,
            limit_mib,
            priority,
            is_static: _,
        } = spec;
        let mut annotations = Map::new();
        if let Some(hash) = hash {
            // As the kubelet writes the mirror of a static pod.
            annotations.insert("kubernetes.io/config.source".to_owned(), json!("file"));
            annotations.insert("kubernetes.io/config.hash".to_owned(), json!(hash));
            annotations.insert("kubernetes.io/config.mirror".to_owned(), json!(hash));
        }
        let mut resources = json!({"requests": {"memory": format!("{request_mib}Mi")}});
        if let Some(limit) = limit_mib {
            resources["limits"] = json!({"memory": format!("{limit}Mi")});
        }
        if *storage_request_mib > 0 {
            resources["requests"]["ephemeral-storage"] = json!(format!("{storage_request_mib}Mi"));
        }
        let of_spec: Vec<Value> = containers
            .iter()
            .map(|container| json!({"name": container.name, "resources": resources}))
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
        if let Some(volume) = volume {
            pod_spec["volumes"] = json!([{"name": volume, "emptyDir": empty_dir(*volume_limit_mib)}]);
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

/// `emptyDir` of a volume with this limit.
pub(crate) fn empty_dir(limit_mib: Option<u64>) -> Value {
    limit_mib.map_or_else(|| json!({}), |limit| json!({"sizeLimit": format!("{limit}Mi")}))
}

/// The node.
#[derive(Debug)]
pub struct Node {
    // Dropped first: what runs in the groups has files in the folder.
    tree: Subtree,
    folder: Folder,
    /// Its pods.
    pub pods: Vec<Pod>,
    /// How many pods it has had: no two containers have one id, whoever is gone.
    had: u64,
    memory: u64,
    pids: u64,
}

impl Node {
    /// Makes a node that has so much memory and so many process ids, and can have no more: both
    /// are limits of the subtree, so that nothing in it endangers the machine.
    ///
    /// # Errors
    /// If cgroups cannot be made or bounded here.
    pub fn new(label: &str, memory: u64, pids: u64) -> Result<Self> {
        let tree = Subtree::new(label)?;
        tree.root().limit_memory(memory)?;
        tree.root().limit_pids(pids)?;
        let folder = Folder::in_memory(&format!("eviction-{label}"))?;
        Ok(Self { tree, folder, pods: Vec::new(), had: 0, memory, pids })
    }

    /// Adds a pod with its groups, and hands back its index.
    ///
    /// # Errors
    /// If a group cannot be made or bounded.
    pub fn add(&mut self, spec: PodSpec) -> Result<usize> {
        self.add_as(spec, pod_uid(self.had))
    }

    /// What stands for a uid in the path of a static pod that is added as that one.
    pub fn config_hash(index: usize) -> String {
        format!("{:032x}", 0x00c0_ffee_usize + index)
    }

    /// The same for a pod that has its uid from an API server.
    ///
    /// # Errors
    /// If a group cannot be made or bounded.
    pub fn add_as(&mut self, spec: PodSpec, uid: String) -> Result<usize> {
        let serial = self.had;
        self.had += 1;
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
            // The kubelet bounds a pod by the sum, once each container has a limit.
            group.limit_memory(limit * MIB * u64::try_from(containers.len()).context("containers")?)?;
        }
        self.pods.push(Pod { spec, uid, hash, group, containers });
        Ok(self.pods.len() - 1)
    }

    /// Memory of the node, bytes.
    pub fn memory_capacity(&self) -> u64 {
        self.memory
    }

    /// Process ids of the node.
    pub fn pid_capacity(&self) -> u64 {
        self.pids
    }

    /// The group that stands for the node.
    pub fn root(&self) -> &Group {
        self.tree.root()
    }

    /// What the agent calls the cgroup root.
    pub fn cgroup_root(&self) -> String {
        self.tree.path().display().to_string()
    }

    /// A file in the folder of this node.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Working set of the node as it is now, and not as its own memory.stat was up to two
    /// seconds ago: all its charges are in the containers, whose own figures are fresh.
    ///
    /// # Errors
    /// If a file of the kernel cannot be read.
    pub fn working_set(&self) -> Result<u64> {
        let usage = self.root().memory()?;
        let inactive: u64 = self.pods.iter().map(Pod::inactive_file).sum::<Result<u64>>()?;
        Ok(usage.saturating_sub(inactive))
    }

    /// OOM kills that the kernel has counted anywhere in the node.
    ///
    /// # Errors
    /// If a file of the kernel cannot be read.
    pub fn oom_kills(&self) -> Result<u64> {
        let pods: u64 = self.pods.iter().map(Pod::oom_kills).sum::<Result<u64>>()?;
        Ok(pods + self.root().oom_kills()?)
    }

    /// Writes the pods file, whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_pods(&self) -> Result<PathBuf> {
        let items: Vec<Value> = self.pods.iter().map(Pod::manifest).collect();
        self.write("pods.json", &json!({"apiVersion": "v1", "kind": "PodList", "items": items}))
    }

    /// Writes the kubelet's configuration with these fields.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_config(&self, fields: &Value) -> Result<PathBuf> {
        let mut config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            // A node in small has no pods' root of its own to hold against a limit.
            "enforceNodeAllocatable": [],
        });
        for (key, value) in fields.as_object().context("fields of a configuration")? {
            config[key] = value.clone();
        }
        self.write("kubelet.yaml", &config)
    }

    fn write(&self, name: &str, value: &Value) -> Result<PathBuf> {
        let (path, half) = (self.file(name), self.file(&format!("{name}.half")));
        let text = serde_json::to_string_pretty(value).context("write JSON")?;
        fs::write(&half, text).with_context(|| format!("write {}", half.display()))?;
        fs::rename(&half, &path).with_context(|| format!("rename to {}", path.display()))?;
        Ok(path)
    }
}
