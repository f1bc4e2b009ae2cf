//! Nodes and pods that are only objects, and what a kubelet or a controller would write into them.

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{Answer, Cluster, Patch, manifest};
use crate::cgroup::container_id;

/// Returns the path of a pod in the API.
fn pod_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

fn text<'a>(object: &'a Value, pointer: &str) -> Result<&'a str> {
    object.pointer(pointer).and_then(Value::as_str).with_context(|| format!("no {pointer} in {object}"))
}

impl Cluster {
    /// Creates a node that is Ready, has capacity for pods and no taint.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn add_node(&self, name: &str) -> Result<Value> {
        let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}}});
        self.admin().post("/api/v1/nodes", &node)?.ok()?;
        let resources = json!({"cpu": "8", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "500"});
        let status = json!({"status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
        }});
        let path = format!("/api/v1/nodes/{name}");
        self.admin().patch(Patch::Strategic, &format!("{path}/status"), &status)?.ok()?;
        // Admission has tainted the node as not ready.
        self.admin().patch(Patch::Merge, &path, &json!({"spec": {"taints": null}}))?.ok()
    }

    /// Creates a pod and sets it running: phase, conditions and container statuses as a kubelet writes them.
    /// Returns the resulting pod.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn run_pod(&self, manifest: &Value) -> Result<Value> {
        let created = self.make_pod(manifest)?;
        let (namespace, name) = (text(&created, "/metadata/namespace")?, text(&created, "/metadata/name")?);
        self.set_running(namespace, name, |container| container_id(container as u64 + 1))
    }

    /// Creates a pod that has not been started.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn make_pod(&self, manifest: &Value) -> Result<Value> {
        let namespace = text(manifest, "/metadata/namespace")?;
        self.admin().post(&format!("/api/v1/namespaces/{namespace}/pods"), manifest)?.ok()
    }

    /// Sets a pod running and ready, with these container IDs.
    ///
    /// # Errors
    /// If there is no such pod.
    pub fn set_running(&self, namespace: &str, name: &str, id: impl Fn(usize) -> String) -> Result<Value> {
        let pod = self.pod(namespace, name)?.context("no such pod")?;
        let Some(containers) = pod["spec"]["containers"].as_array() else { bail!("no containers in {pod}") };
        let created = &pod["metadata"]["creationTimestamp"];
        let statuses = containers.iter().enumerate().map(|(index, container)| {
            json!({
                "name": container["name"], "image": container["image"], "imageID": "", "ready": true,
                "started": true, "restartCount": 0, "containerID": format!("containerd://{}", id(index)),
                "state": {"running": {"startedAt": created}},
            })
        });
        let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"]
            .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": created}));
        let status = json!({"status": {
            "phase": "Running",
            "startTime": created,
            "conditions": conditions,
            "containerStatuses": statuses.collect::<Vec<_>>(),
        }});
        self.set_pod_status(namespace, name, &status)
    }

    /// Applies a strategic merge patch to a pod's status.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn set_pod_status(&self, namespace: &str, name: &str, patch: &Value) -> Result<Value> {
        self.admin().patch(Patch::Strategic, &format!("{}/status", pod_path(namespace, name)), patch)?.ok()
    }

    /// Returns a pod; `None` if there is none of that name.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn pod(&self, namespace: &str, name: &str) -> Result<Option<Value>> {
        let answer = self.admin().get(&pod_path(namespace, name))?;
        if answer.status == 404 { Ok(None) } else { answer.ok().map(Some) }
    }

    /// Removes the object of a pod that is being deleted, as a kubelet does in the end.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn finish_pod(&self, namespace: &str, name: &str) -> Result<()> {
        self.admin().delete(&pod_path(namespace, name), &json!({"gracePeriodSeconds": 0}))?.ok()?;
        Ok(())
    }

    /// Requests an eviction as the administrator, with these `DeleteOptions`.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn evict(&self, namespace: &str, name: &str, options: &Value) -> Result<Answer> {
        let path = format!("{}/eviction", pod_path(namespace, name));
        self.admin().post(&path, &manifest::eviction(name, options))
    }

    /// Creates a PodDisruptionBudget in the namespace `default`, with the status that a controller would write:
    /// `allowed` pods may be disrupted. A running controller overwrites the status.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn add_budget(&self, name: &str, app: &str, min_available: u32, allowed: u32) -> Result<()> {
        let path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
        let created = self.admin().post(path, &manifest::budget(name, app, min_available))?.ok()?;
        let status = json!({"status": {
            "observedGeneration": created["metadata"]["generation"],
            "disruptionsAllowed": allowed,
            "desiredHealthy": min_available,
            "currentHealthy": min_available + allowed,
            "expectedPods": min_available + allowed,
        }});
        self.admin().patch(Patch::Merge, &format!("{path}/{name}/status"), &status)?.ok()?;
        Ok(())
    }

    /// Creates a PriorityClass; pods get their priority through its name only.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn add_priority(&self, name: &str, value: i32) -> Result<()> {
        let class = json!({"metadata": {"name": name}, "value": value});
        self.admin().post("/apis/scheduling.k8s.io/v1/priorityclasses", &class)?.ok()?;
        Ok(())
    }
}
