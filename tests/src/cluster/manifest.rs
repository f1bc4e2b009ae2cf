//! Objects to create; callers can change them before.

use serde_json::{Value, json};

/// Returns a pod of the namespace `default`, bound to that node, with one container `main` without requests.
pub fn pod(name: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "main", "image": "none.invalid/none:1"}],
        },
    })
}

/// Returns a PodDisruptionBudget for the pods with the label `app` of that value.
pub fn budget(name: &str, app: &str, min_available: u32) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}},
    })
}

/// Returns an `Eviction`, with these `DeleteOptions`.
pub fn eviction(name: &str, options: &Value) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name},
        "deleteOptions": options,
    })
}
