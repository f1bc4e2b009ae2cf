//! The address of the API server and the credentials for requests.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use kube::config::{Kubeconfig, KubeconfigError, LoadDataError};

use crate::error::AccessError;
use eviction_core::error::chain;

/// The directory in which the kubelet mounts a pod's service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// The maximum size of a credentials file, in bytes.
const LARGEST: u64 = 4 << 20;

const CA: &str = "certificate authority";

/// The address of the API server and the credentials for requests, from a kubeconfig or from the service
/// account of the agent's pod.
#[derive(Clone, Debug)]
pub struct Access {
    pub(crate) config: kube::Config,
    /// The file of the bearer token, if there is one.
    pub(crate) token_file: Option<PathBuf>,
    /// The source, for messages.
    pub(crate) origin: String,
}

/// The address of a kubelet, and how its certificate is verified.
#[derive(Clone, Debug)]
pub struct KubeletAddress {
    /// A host name, or an IP address without brackets.
    pub host: String,
    /// The port, usually 10250.
    pub port: u16,
    /// The file with the PEM certificates of its CA; `None`: the CA of the API server.
    pub certificate_authority: Option<PathBuf>,
    /// The name in its certificate, if it differs from the host.
    pub server_name: Option<String>,
    /// Whether any certificate is accepted.
    pub insecure: bool,
}

impl Access {
    /// Reads a kubeconfig. Without a path, uses the service account of the pod, as `rest.InClusterConfig` of
    /// client-go does.
    ///
    /// # Errors
    /// If a file is missing or invalid.
    pub fn find(kubeconfig: Option<&Path>) -> Result<Self, AccessError> {
        match kubeconfig {
            Some(path) => from_kubeconfig(path),
            None => in_cluster(|name| std::env::var(name).ok(), Path::new(ACCOUNT)),
        }
    }

    /// Returns the URL of the server.
    pub fn server(&self) -> impl fmt::Display {
        self.config.cluster_url.to_string().trim_end_matches('/').to_owned()
    }

    /// Returns the source of this access.
    pub fn origin(&self) -> impl fmt::Display {
        &self.origin
    }

    /// Returns `host:port` of the server.
    pub(crate) fn authority(&self) -> String {
        let url = &self.config.cluster_url;
        let host = url.host().unwrap_or_default();
        format!("{host}:{}", url.port_u16().unwrap_or(443))
    }

    /// Whether credentials are part of the stack, so that it must be rebuilt to renew them.
    pub(crate) fn is_renewed_by_stack(&self) -> bool {
        let auth = &self.config.auth_info;
        auth.client_certificate.is_some() || auth.exec.is_some() || auth.auth_provider.is_some()
    }

    /// Returns an access to a kubelet with the same credentials.
    ///
    /// # Errors
    /// If its CA cannot be read.
    pub fn to_kubelet(&self, address: KubeletAddress) -> Result<Self, AccessError> {
        let KubeletAddress { host, port, certificate_authority, server_name, insecure } = address;
        let mut access = self.clone();
        access.config.cluster_url = url(&host, port)?;
        access.config.tls_server_name = server_name;
        // The kubelet is on this node.
        access.config.proxy_url = None;
        access.config.accept_invalid_certs = insecure;
        if let Some(path) = certificate_authority {
            use_ca_file(&mut access.config, path)?;
        }
        Ok(access)
    }
}

/// Reads a kubeconfig, a certificate or a token file.
pub(crate) fn read_file(what: &'static str, path: &Path) -> Result<Vec<u8>, AccessError> {
    let fail = |source| AccessError::Read { what, path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(fail)?.take(LARGEST + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > LARGEST {
        let (from, why) = (path.display().to_string(), format!("more than {LARGEST} bytes"));
        return Err(AccessError::Credentials { what, from, why });
    }
    Ok(bytes)
}

/// Verifies servers against the CA in this file, which kube reads again every minute.
fn use_ca_file(config: &mut kube::Config, path: PathBuf) -> Result<(), AccessError> {
    let bytes = read_file(CA, &path)?;
    if !String::from_utf8_lossy(&bytes).contains("-----BEGIN CERTIFICATE-----") {
        let (from, why) = (path.display().to_string(), "no PEM certificate is in it".to_owned());
        return Err(AccessError::Credentials { what: CA, from, why });
    }
    // Without this, kube would load the system's CAs as well.
    config.root_cert = Some(Vec::new());
    config.root_cert_file = Some(path);
    Ok(())
}

fn from_kubeconfig(path: &Path) -> Result<Access, AccessError> {
    // Read it first, so that I/O errors have the same form as for other files.
    read_file("kubeconfig", path)?;
    let wrong = |why: String| AccessError::Kubeconfig { path: path.to_owned(), why };
    let file = Kubeconfig::read_from(path).map_err(|error| explain(path, error))?;
    let context = file.current_context.clone().unwrap_or_default();
    let ca_file = ca_file(&file, &context);
    let mut config = kube::Config::try_from(file).map_err(|error| explain(path, error))?;
    if config.accept_invalid_certs {
        return Err(wrong(
            "insecure-skip-tls-verify is not supported: name the certificate-authority".into(),
        ));
    }
    if config.cluster_url.scheme_str() != Some("https") {
        return Err(wrong(format!("server: `{}` does not begin with https://", config.cluster_url)));
    }
    match ca_file {
        Some(ca) => use_ca_file(&mut config, ca)?,
        None if config.root_cert.as_ref().is_some_and(Vec::is_empty) => {
            return Err(wrong("certificate-authority-data: no PEM certificate is in it".into()));
        }
        None => {}
    }
    Ok(Access::new(config, format!("kubeconfig {}, context {context}", path.display())))
}

/// Returns the CA file of the current context, if the CA is in a file.
fn ca_file(file: &Kubeconfig, context: &str) -> Option<PathBuf> {
    let context = file.contexts.iter().find(|it| it.name == context)?.context.as_ref()?;
    let cluster = file.clusters.iter().find(|it| it.name == context.cluster)?.cluster.as_ref()?;
    let given = cluster.certificate_authority_data.as_ref().is_some_and(|data| !data.is_empty());
    cluster.certificate_authority.clone().filter(|_| !given).map(PathBuf::from)
}

fn explain(path: &Path, error: KubeconfigError) -> AccessError {
    let read = |what, error| match error {
        LoadDataError::ReadFile(source, path) => AccessError::Read { what, path, source },
        other => AccessError::Kubeconfig { path: path.to_owned(), why: format!("{what}: {}", chain(&other)) },
    };
    let why = match error {
        KubeconfigError::LoadCertificateAuthority(error) => return read(CA, error),
        KubeconfigError::LoadClientCertificate(error) => return read("client certificate", error),
        KubeconfigError::LoadClientKey(error) => return read("client key", error),
        KubeconfigError::CurrentContextNotSet => "current-context: is missing".to_owned(),
        other => chain(&other),
    };
    AccessError::Kubeconfig { path: path.to_owned(), why }
}

/// `rest.InClusterConfig` of client-go, with the environment and the directory as arguments.
fn in_cluster(variable: impl Fn(&str) -> Option<String>, account: &Path) -> Result<Access, AccessError> {
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
    let mut config = kube::Config::new(url(&host, port)?);
    use_ca_file(&mut config, account.join("ca.crt"))?;
    config.auth_info.token_file = Some(account.join("token").display().to_string());
    Ok(Access::new(config, "the pod's service account".to_owned()))
}

/// Returns `https://HOST:PORT` for a name, or for an address with or without brackets.
fn url(host: &str, port: u16) -> Result<http::Uri, AccessError> {
    let host = host.trim_matches(['[', ']']);
    let url = if host.contains(':') {
        format!("https://[{host}]:{port}")
    } else {
        format!("https://{host}:{port}")
    };
    url.parse().map_err(|error| AccessError::Credentials {
        what: "address",
        from: url.clone(),
        why: format!("{error}"),
    })
}

impl Access {
    fn new(mut config: kube::Config, origin: String) -> Self {
        config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(AGENT)));
        let file = config.auth_info.token_file.take().filter(|file| !file.is_empty());
        if file.is_some() {
            // As with client-go, the token file takes precedence.
            config.auth_info.token = None;
        }
        Self { config, token_file: file.map(PathBuf::from), origin }
    }
}

const AGENT: &str = concat!("eviction-agent/", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests;
