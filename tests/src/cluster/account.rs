//! Service accounts with RBAC rules.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::Cluster;

/// A service account of the namespace `default`.
#[derive(Clone, Debug)]
pub struct Account {
    /// The name of the account and of its ClusterRole.
    pub name: String,
    /// A token of the account, valid for an hour.
    pub token: String,
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

impl Cluster {
    /// Creates a service account with these `PolicyRule`s, in all namespaces.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn account(&self, name: &str, rules: &Value) -> Result<Account> {
        let admin = self.admin();
        admin
            .post("/api/v1/namespaces/default/serviceaccounts", &json!({"metadata": {"name": name}}))?
            .ok()?;
        admin
            .post(&format!("{RBAC}/clusterroles"), &json!({"metadata": {"name": name}, "rules": rules}))?
            .ok()?;
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        });
        admin.post(&format!("{RBAC}/clusterrolebindings"), &binding)?.ok()?;
        Ok(Account { name: name.to_owned(), token: self.token(name)? })
    }

    /// Requests a new token of a service account of the namespace `default`.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn token(&self, account: &str) -> Result<String> {
        self.token_in("default", account)
    }

    /// Requests a new token of a service account of that namespace.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn token_in(&self, namespace: &str, account: &str) -> Result<String> {
        self.request_token(namespace, account, &Value::Null)
    }

    fn request_token(&self, namespace: &str, account: &str, bound_to: &Value) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({"spec": {"expirationSeconds": 3600, "boundObjectRef": bound_to}});
        let answer = self.admin().post(&path, &request)?.ok()?;
        answer["status"]["token"].as_str().map(str::to_owned).context("a token request without a token")
    }

    /// Requests a token of the pod's service account, bound to the pod and so to its node, as a kubelet does.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn token_of_pod(&self, pod: &Value) -> Result<String> {
        let text = |pointer: &str| {
            pod.pointer(pointer).and_then(Value::as_str).with_context(|| format!("a pod without {pointer}"))
        };
        let (namespace, account) = (text("/metadata/namespace")?, text("/spec/serviceAccountName")?);
        let (name, uid) = (text("/metadata/name")?, text("/metadata/uid")?);
        let object = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
        self.request_token(namespace, account, &object)
    }

    /// Replaces the rules of an account. The server's authorizer applies them a moment later.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn set_rules(&self, account: &str, rules: &Value) -> Result<()> {
        let role = json!({"metadata": {"name": account}, "rules": rules});
        self.admin().put(&format!("{RBAC}/clusterroles/{account}"), &role)?.ok()?;
        Ok(())
    }

    /// Invalidates all tokens of an account: the account is deleted, and another one of the same name is
    /// created.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn revoke_tokens(&self, account: &str) -> Result<()> {
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        self.admin().delete(&format!("{accounts}/{account}"), &Value::Null)?.ok()?;
        self.admin().post(accounts, &json!({"metadata": {"name": account}}))?.ok()?;
        Ok(())
    }
}
