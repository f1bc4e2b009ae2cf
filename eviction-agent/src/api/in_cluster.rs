//! The service account of the pod that the agent runs in.

use std::path::Path;

use super::access::{Access, Origin, Server};
use super::error::AccessError;
use super::material::Material;

/// Where the kubelet puts what a pod needs to ask the API server.
pub(super) const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// `rest.InClusterConfig` of client-go, with the environment and the folder as arguments.
pub(super) fn find(variable: impl Fn(&str) -> Option<String>, account: &Path) -> Result<Access, AccessError> {
    let set = |name: &'static str| {
        variable(name)
            .filter(|value| !value.is_empty())
            .ok_or(AccessError::NotInCluster { variable: name, why: "it is empty or absent" })
    };
    let host = set(HOST)?;
    let port = set(PORT)?
        .parse()
        .ok()
        .filter(|port| *port != 0)
        .ok_or(AccessError::NotInCluster { variable: PORT, why: "it is no port" })?;
    let host = host.trim_matches(['[', ']']).to_owned();
    Ok(Access {
        server: Server { host, port, base: String::new(), certified_as: None },
        ca: Material::File(account.join("ca.crt")),
        identity: None,
        token: Some(Material::File(account.join("token"))),
        origin: Origin::ServiceAccount,
        insecure: false,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::find;

    fn with(host: Option<&str>, port: Option<&str>) -> Result<String, String> {
        let variable = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => host.map(str::to_owned),
            _ => port.map(str::to_owned),
        };
        find(variable, Path::new("/account"))
            .map(|access| access.server().to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_environment_of_a_pod_leads_to_the_server() {
        assert_eq!(with(Some("10.96.0.1"), Some("443")), Ok("https://10.96.0.1:443".into()));
        assert_eq!(with(Some("fd00::1"), Some("6443")), Ok("https://[fd00::1]:6443".into()));
    }

    #[test]
    fn without_it_that_is_said() {
        let absent = "no kubeconfig is given, and KUBERNETES_SERVICE_HOST is not set as it is in a pod: it is empty or absent";
        assert_eq!(with(None, None), Err(absent.into()));
        assert_eq!(with(Some(""), Some("443")), Err(absent.into()));
        for port in ["x", "0", "70000", "-1"] {
            let error = with(Some("h"), Some(port)).unwrap_err();
            assert!(error.ends_with("it is no port"), "{error}");
        }
    }
}
