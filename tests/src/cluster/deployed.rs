//! The manifests that users apply: deploy/manifests.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::Deserialize as _;
use serde_json::Value;

use super::Cluster;
use crate::folder::repository;

/// The namespace of all namespaced objects, and the name of all objects.
pub const NAME: &str = "eviction-agent";

/// All objects, in the order in which they are applied.
#[derive(Clone, Debug)]
pub struct Manifests(Vec<Value>);

impl Manifests {
    /// Reads the files, in the order of their names.
    ///
    /// # Errors
    /// If the folder or a file cannot be read, or a file is not YAML.
    pub fn read() -> Result<Self> {
        let folder = repository("deploy/manifests");
        let entries = fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        // That file is for `kubectl apply -k`; it is no object of the API.
        files.retain(|file| file.file_name().is_none_or(|name| name != "kustomization.yaml"));
        files.sort();
        let mut objects = Vec::new();
        for file in files {
            let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
            for document in serde_yaml_ng::Deserializer::from_str(&text) {
                let object = Value::deserialize(document).with_context(|| file.display().to_string())?;
                objects.push(object);
            }
        }
        Ok(Self(objects))
    }

    /// Returns the only object of that kind.
    ///
    /// # Errors
    /// If there is none.
    pub fn of(&mut self, kind: &str) -> Result<&mut Value> {
        let found = self.0.iter_mut().find(|object| object["kind"] == kind);
        found.with_context(|| format!("deploy/manifests has no {kind}"))
    }

    /// Creates every object, as `kubectl create --validate=strict` does.
    ///
    /// # Errors
    /// If the server refuses one, also because of an unknown field.
    pub fn create(&self, cluster: &Cluster) -> Result<()> {
        for object in &self.0 {
            let path = format!("{}?fieldValidation=Strict", collection(object)?);
            cluster.admin().post(&path, object)?.ok()?;
        }
        Ok(())
    }
}

/// Returns the path at which objects of that kind are created.
fn collection(object: &Value) -> Result<String> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let version = text("/apiVersion").context("an object without an apiVersion")?;
    let kind = text("/kind").context("an object without a kind")?;
    let group = if version.contains('/') { "apis" } else { "api" };
    let namespace = text("/metadata/namespace").map(|name| format!("/namespaces/{name}")).unwrap_or_default();
    let kind = kind.to_lowercase();
    let resource = kind.strip_suffix('y').map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"));
    Ok(format!("/{group}/{version}{namespace}/{resource}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_created_at_the_path_of_their_kind() {
        let of = |version: &str, kind: &str, namespace: &str| {
            let metadata = if namespace.is_empty() { json!({}) } else { json!({"namespace": namespace}) };
            collection(&json!({"apiVersion": version, "kind": kind, "metadata": metadata})).unwrap()
        };
        assert_eq!(of("v1", "Namespace", ""), "/api/v1/namespaces");
        assert_eq!(of("apps/v1", "DaemonSet", "a"), "/apis/apps/v1/namespaces/a/daemonsets");
        let rbac = "rbac.authorization.k8s.io/v1";
        assert_eq!(of(rbac, "ClusterRole", ""), format!("/apis/{rbac}/clusterroles"));
        assert_eq!(of("a/v1", "ValidatingAdmissionPolicy", ""), "/apis/a/v1/validatingadmissionpolicies");
    }

    #[test]
    fn manifests_use_only_the_namespace_of_the_agent() {
        let manifests = Manifests::read().unwrap();
        for object in &manifests.0 {
            assert_eq!(object["metadata"]["name"], NAME, "{object}");
            let namespace = &object["metadata"]["namespace"];
            assert!(namespace.is_null() || namespace == NAME, "{object}");
        }
        let kinds: Vec<&str> = manifests.0.iter().filter_map(|object| object["kind"].as_str()).collect();
        let expected = [
            "Namespace",
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ConfigMap",
            "DaemonSet",
        ];
        assert_eq!(kinds, expected);
    }
}
