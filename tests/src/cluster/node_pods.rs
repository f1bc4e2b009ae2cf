//! Pods of the API server with cgroups on a small node. The server assigns the UID, and the test acts as the
//! kubelet.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::Cluster;
use crate::node::{Node, Pod, PodSpec, mirror_annotations};

impl Cluster {
    /// Does the same as [`Self::place_pod`] for the manifest of this spec. Creates the namespace and the
    /// priority class if they do not exist.
    ///
    /// # Errors
    /// If the server refuses the pod, or a cgroup cannot be created.
    pub fn run_pod_on(&self, node_name: &str, node: &mut Node, spec: PodSpec) -> Result<usize> {
        self.ensure_namespace(spec.namespace)?;
        let name = &spec.name;
        let container = |(nth, name): (usize, &&str)| {
            let resources = spec.resources(nth);
            json!({"name": name, "image": "none.invalid/none:1", "resources": resources})
        };
        let of_spec: Vec<Value> = spec.containers.iter().enumerate().map(container).collect();
        let mut manifest = json!({
            "metadata": {"name": name, "namespace": spec.namespace, "labels": {"app": name}},
            "spec": {"nodeName": node_name, "automountServiceAccountToken": false, "containers": of_spec},
        });
        if let Some(volumes) = spec.volumes() {
            manifest["spec"]["volumes"] = volumes;
        }
        if let Some(priority) = spec.priority {
            manifest["spec"]["priorityClassName"] = json!(self.ensure_priority(priority)?);
        }
        if spec.is_static {
            // The cgroup is named after the hash instead of the UID.
            manifest["metadata"]["annotations"] = mirror_annotations(&Node::config_hash(node.pods.len()));
        }
        self.place_pod(&manifest, node, spec)
    }

    /// Creates a pod with this manifest and, with the UID that the server assigns, its cgroups on the node;
    /// then sets it running. Returns its index in the node.
    ///
    /// # Errors
    /// If the server refuses the pod, or a cgroup cannot be created.
    pub fn place_pod(&self, manifest: &Value, node: &mut Node, spec: PodSpec) -> Result<usize> {
        let created = self.make_pod(manifest)?;
        let uid = created["metadata"]["uid"].as_str().context("a pod without a uid")?;
        let index = node.add_with_uid(spec, uid.to_owned())?;
        let pod = &node.pods[index];
        self.set_running(pod.namespace(), &pod.spec().name, |nth| pod.containers[nth].id.clone())?;
        Ok(index)
    }

    /// Ends a pod that is being deleted, as a kubelet does: kills its processes, removes its cgroups, and then
    /// the object.
    ///
    /// # Errors
    /// If a cgroup cannot be removed, or the server refuses.
    pub fn end_pod(&self, pod: &Pod) -> Result<()> {
        pod.group.destroy()?;
        self.finish_pod(pod.namespace(), &pod.spec().name)
    }

    /// Creates a namespace with the service account that pods need, unless it exists.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn ensure_namespace(&self, name: &str) -> Result<()> {
        if self.admin().get(&format!("/api/v1/namespaces/{name}"))?.status == 200 {
            return Ok(());
        }
        self.admin().post("/api/v1/namespaces", &json!({"metadata": {"name": name}}))?.ok()?;
        let accounts = format!("/api/v1/namespaces/{name}/serviceaccounts");
        let created = self.admin().post(&accounts, &json!({"metadata": {"name": "default"}}))?;
        // A controller may have created it first.
        if created.status == 409 { Ok(()) } else { created.ok().map(drop) }
    }

    fn ensure_priority(&self, value: i32) -> Result<String> {
        // The classes with these values are Kubernetes' own.
        let name = match value {
            2_000_001_000 => return Ok("system-node-critical".to_owned()),
            2_000_000_000 => return Ok("system-cluster-critical".to_owned()),
            value if value < 0 => format!("below-{}", value.unsigned_abs()),
            value => format!("above-{value}"),
        };
        let path = format!("/apis/scheduling.k8s.io/v1/priorityclasses/{name}");
        if self.admin().get(&path)?.status != 200 {
            self.add_priority(&name, value)?;
        }
        Ok(name)
    }
}
