//! The address of the API server and the credentials for requests.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use kube::config::{Cluster, Kubeconfig, KubeconfigError, LoadDataError};
use secrecy::ExposeSecret;

use crate::error::RequestError;
use eviction_core::error::chain;

/// The directory in which the kubelet mounts a pod's service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// The maximum size of a credentials file, in bytes.
const LARGEST: u64 = 4 << 20;

const CA: &str = "certificate authority";

/// The interval at which the token is read again, as in client-go (`NewCachedFileTokenSource`).
const REREAD_AFTER: Duration = Duration::from_secs(60);

const AGENT: &str = concat!("eviction-agent/", env!("CARGO_PKG_VERSION"));

/// The address of the API server and the credentials for requests, from a kubeconfig or from the service
/// account of the agent's pod.
#[derive(Clone, Debug)]
pub struct Access {
    pub(crate) config: kube::Config,
    /// The bearer token, if it is in a file. Clones of the access share it as last read.
    pub(crate) token: Option<Arc<TokenFile>>,
    /// The source, for messages.
    pub(crate) origin: String,
}

impl Access {
    /// Reads a kubeconfig. Without a path, uses the service account of the pod, as `rest.InClusterConfig` of
    /// client-go does.
    ///
    /// # Errors
    /// If a file is missing or invalid.
    pub fn find(kubeconfig: Option<&Path>) -> Result<Self, RequestError> {
        match kubeconfig {
            Some(path) => from_kubeconfig(path, variable),
            None => in_cluster(variable, Path::new(ACCOUNT)),
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

    fn new(mut config: kube::Config, origin: String) -> Self {
        config.headers.push((http::header::USER_AGENT, HeaderValue::from_static(AGENT)));
        let file = config.auth_info.token_file.take().filter(|file| !file.is_empty());
        if file.is_some() {
            // As with client-go, the token file takes precedence.
            config.auth_info.token = None;
        }
        let token = file.map(|file| Arc::new(TokenFile::new(file.into())));
        Self { config, token, origin }
    }

    /// Returns an access with the same credentials to the kubelet of this node. `host` is a name or an IP address.
    ///
    /// # Errors
    /// If the address is not valid.
    pub fn to_kubelet(&self, host: &str, port: u16) -> Result<Self, RequestError> {
        let mut access = self.clone();
        access.config.cluster_url = url(host, port)?;
        access.config.tls_server_name = None;
        // The kubelet is on this node.
        access.config.proxy_url = None;
        Ok(access)
    }

    /// Verifies the server against the CA in this file, in PEM format.
    ///
    /// # Errors
    /// If the file cannot be read or has no certificate.
    pub fn with_certificate_authority(mut self, file: PathBuf) -> Result<Self, RequestError> {
        use_ca_file(&mut self.config, file)?;
        Ok(self)
    }

    /// Expects this name in the server's certificate instead of its host.
    #[must_use]
    pub fn with_server_name(mut self, name: &str) -> Self {
        self.config.tls_server_name = Some(name.to_owned());
        self
    }

    /// Accepts any certificate of the server.
    #[must_use]
    pub fn with_insecure_tls(mut self) -> Self {
        self.config.accept_invalid_certs = true;
        self
    }
}

/// Reads a kubeconfig, a certificate or a token file.
pub(crate) fn read_file(what: &'static str, path: &Path) -> Result<Vec<u8>, RequestError> {
    let fail = |cause| RequestError::read_file(what, path, &cause);
    let mut bytes = Vec::new();
    File::open(path).map_err(fail)?.take(LARGEST + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > LARGEST {
        return Err(RequestError::credentials(
            what,
            path.display(),
            format_args!("more than {LARGEST} bytes"),
        ));
    }
    Ok(bytes)
}

/// A file with a token, and the token as last read. The kubelet replaces the token long before it expires.
/// kube would send the token with its final newline, and would not read it again after a 401 response.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    read: Mutex<Option<(Instant, HeaderValue)>>,
}

impl TokenFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, read: Mutex::new(None) }
    }

    /// Returns the `Authorization` header. If the file can no longer be read, returns the last token; the
    /// server rejects it if it has expired.
    pub(crate) fn header(&self, now: Instant) -> Result<HeaderValue, RequestError> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, header)) = &*read
            && now.saturating_duration_since(*at) < REREAD_AFTER
        {
            return Ok(header.clone());
        }
        match (self.read(), &*read) {
            (Ok(header), _) => {
                *read = Some((now, header.clone()));
                Ok(header)
            }
            (Err(_), Some((_, header))) => Ok(header.clone()),
            (Err(error), None) => Err(error),
        }
    }

    /// Has the next request read the token again, because the server rejected it.
    pub(crate) fn invalidate(&self) {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn read(&self) -> Result<HeaderValue, RequestError> {
        let wrong = |why| RequestError::credentials("token", self.path.display(), why);
        let bytes = read_file("token", &self.path)?;
        let token = bytes.trim_ascii();
        if token.is_empty() {
            return Err(wrong("is empty"));
        }
        let mut header = HeaderValue::from_bytes(&[b"Bearer ", token].concat())
            .map_err(|_unprintable| wrong("has characters that no token has"))?;
        header.set_sensitive(true);
        Ok(header)
    }
}

/// Verifies servers against the CA in this file, which kube reads again every minute.
fn use_ca_file(config: &mut kube::Config, path: PathBuf) -> Result<(), RequestError> {
    let bytes = read_file(CA, &path)?;
    if !String::from_utf8_lossy(&bytes).contains("-----BEGIN CERTIFICATE-----") {
        return Err(RequestError::credentials(CA, path.display(), "no PEM certificate is in it"));
    }
    // Without this, kube would load the system's CAs as well.
    config.root_cert = Some(Vec::new());
    config.root_cert_file = Some(path);
    Ok(())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn from_kubeconfig(path: &Path, variable: impl Fn(&str) -> Option<String>) -> Result<Access, RequestError> {
    // Read it first, so that I/O errors have the same form as for other files.
    read_file("kubeconfig", path)?;
    let wrong = |why: &str| in_kubeconfig(path, why);
    let file = Kubeconfig::read_from(path).map_err(|error| explain(path, error))?;
    let context = file.current_context.clone().unwrap_or_default();
    let cluster = cluster(&file, &context).cloned().unwrap_or_default();
    let mut config = kube::Config::try_from(file).map_err(|error| explain(path, error))?;
    if config.accept_invalid_certs {
        return Err(wrong("insecure-skip-tls-verify is not supported: name the certificate-authority"));
    }
    if config.cluster_url.scheme_str() != Some("https") {
        return Err(wrong(&format!("server: `{}` does not begin with https://", config.cluster_url)));
    }
    if let Some(provider) = &config.auth_info.auth_provider
        && provider.name != "oidc"
    {
        let why = "is not supported, nor by kubectl: use an exec plugin";
        return Err(wrong(&format!("auth-provider: `{}` {why}", provider.name)));
    }
    // kube panics on such a token.
    let token = config.auth_info.token.as_ref().map(ExposeSecret::expose_secret);
    if token.is_some_and(|token| HeaderValue::from_str(token).is_err()) {
        return Err(wrong("token: has characters that no token has"));
    }
    config.proxy_url = proxy(&cluster, &config.cluster_url, variable)
        .map(|url| url.parse().map_err(|error| wrong(&format!("proxy-url: `{url}`: {error}"))))
        .transpose()?;
    match ca_file(cluster) {
        Some(ca) => use_ca_file(&mut config, ca)?,
        None if config.root_cert.as_ref().is_some_and(Vec::is_empty) => {
            return Err(wrong("certificate-authority-data: no PEM certificate is in it"));
        }
        None => {}
    }
    Ok(Access::new(config, format!("kubeconfig {}, context {context}", path.display())))
}

/// Returns the cluster of a context.
fn cluster<'f>(file: &'f Kubeconfig, context: &str) -> Option<&'f Cluster> {
    let context = file.contexts.iter().find(|it| it.name == context)?.context.as_ref()?;
    file.clusters.iter().find(|it| it.name == context.cluster)?.cluster.as_ref()
}

/// Returns the CA file of a cluster, if the CA is in a file.
fn ca_file(cluster: Cluster) -> Option<PathBuf> {
    let given = cluster.certificate_authority_data.is_some_and(|data| !data.is_empty());
    cluster.certificate_authority.filter(|_| !given).map(PathBuf::from)
}

/// Returns the URL of the proxy for requests to the server, as client-go does: that of the kubeconfig, or of
/// `HTTPS_PROXY` unless `NO_PROXY` names the server. kube looks for the proxy's own host in `NO_PROXY`.
fn proxy(cluster: &Cluster, server: &Uri, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let is_given = |value: &String| !value.is_empty();
    if let Some(url) = cluster.proxy_url.clone().filter(is_given) {
        return Some(url);
    }
    let either = |names: [&str; 2]| names.into_iter().find_map(|name| variable(name).filter(is_given));
    let url = either(["HTTPS_PROXY", "https_proxy"])?;
    let exceptions = either(["NO_PROXY", "no_proxy"]).unwrap_or_default();
    // The matcher ignores proxies that it does not support, which must be an error instead.
    Matcher::builder().all("http://proxy").no(exceptions).build().intercept(server)?;
    Some(if url.contains("://") { url } else { format!("http://{url}") })
}

/// Creates an error in a kubeconfig, or in a file that it refers to.
fn in_kubeconfig(path: &Path, why: &str) -> RequestError {
    RequestError::Access(format!("kubeconfig {}: {why}", path.display()))
}

fn explain(path: &Path, error: KubeconfigError) -> RequestError {
    let read = |what, error| match error {
        LoadDataError::ReadFile(cause, path) => RequestError::read_file(what, &path, &cause),
        other => in_kubeconfig(path, &format!("{what}: {}", chain(&other))),
    };
    match error {
        KubeconfigError::LoadCertificateAuthority(error) => read(CA, error),
        KubeconfigError::LoadClientCertificate(error) => read("client certificate", error),
        KubeconfigError::LoadClientKey(error) => read("client key", error),
        KubeconfigError::CurrentContextNotSet => in_kubeconfig(path, "current-context: is missing"),
        other => in_kubeconfig(path, &chain(&other)),
    }
}

/// `rest.InClusterConfig` of client-go, with the environment and the directory as arguments.
fn in_cluster(variable: impl Fn(&str) -> Option<String>, account: &Path) -> Result<Access, RequestError> {
    let missing = |name: &str, why: &str| {
        RequestError::Access(format!(
            "no kubeconfig is given, and {name} is not set as it is in a pod: {why}"
        ))
    };
    let get = |name: &str| {
        let value = variable(name).filter(|value| !value.is_empty());
        value.ok_or_else(|| missing(name, "it is empty or absent"))
    };
    let host = get(HOST)?;
    let port = get(PORT)?.parse::<u16>().ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| missing(PORT, "it is no port"))?;
    let mut config = kube::Config::new(url(&host, port)?);
    use_ca_file(&mut config, account.join("ca.crt"))?;
    config.auth_info.token_file = Some(account.join("token").display().to_string());
    Ok(Access::new(config, "the pod's service account".to_owned()))
}

/// Returns `https://HOST:PORT` for a name, or for an address with or without brackets.
fn url(host: &str, port: u16) -> Result<http::Uri, RequestError> {
    let host = host.trim_matches(['[', ']']);
    let url = if host.contains(':') {
        format!("https://[{host}]:{port}")
    } else {
        format!("https://{host}:{port}")
    };
    url.parse().map_err(|error| RequestError::credentials("address", &url, error))
}

#[cfg(test)]
mod tests;
