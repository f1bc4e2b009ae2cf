//! Requests to the kubelet of the node, with the credentials for the API server: its configuration, and its stats
//! summary. The summary has the pods' disk usage, for an agent that sees no directories of pods, and the node's file
//! systems, if the agent does not find them.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use eviction_config::{Configz, Effective};
use eviction_kube::{Access, RequestError, read_kubelet};
use eviction_node::clock::mono_ns;
use eviction_node::fs::{StorageReader, StorageRequest, StorageSample, SummaryFileSystems};
use hyper::Response;
use tokio::sync::mpsc::Sender;

use crate::error::{Failure, chain};
use crate::source::summary::Summary;
use crate::telemetry::event_log::{Backend, NO_BACKEND};

/// The address of the kubelet for an agent on the host's network.
const LOOPBACK: &str = "127.0.0.1";

/// The minimum interval between requests of the summary: for each, the kubelet asks the container runtime for all
/// containers and reads all logs.
pub(crate) const MIN_SUMMARY_INTERVAL: Duration = Duration::from_secs(60);

/// An endpoint of the kubelet.
struct KubeletEndpoint {
    path: &'static str,
    /// What it returns of the kubelet.
    subject: &'static str,
    /// Advice if the permission for it is missing.
    help: &'static str,
}

/// The running configuration of the kubelet.
const CONFIGZ: KubeletEndpoint = KubeletEndpoint {
    path: "/configz",
    subject: "configuration",
    help: "the agent needs get for nodes/configz, or for nodes/proxy with kubelets before 1.33",
};

/// The Summary of `stats/v1alpha1`.
const STATS_SUMMARY: KubeletEndpoint = KubeletEndpoint {
    path: "/stats/summary",
    subject: "statistics",
    help: "the agent needs get for nodes/stats",
};

/// A client for the kubelet of the node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KubeletClient {
    /// Kubeconfig; absent: the pod's service account.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The name of the node's object.
    pub(crate) node_name: Option<String>,
    /// An address of the node.
    pub(crate) node_ip: Option<String>,
    pub(crate) configz: Configz,
}

impl KubeletClient {
    /// Sends a request. `parse` gets the body of the response and the URL, and returns what is wrong with the body.
    ///
    /// # Errors
    /// Why there is no response, with advice, or what is wrong with it.
    async fn get<T>(
        &self,
        endpoint: &KubeletEndpoint,
        parse: impl FnOnce(&[u8], &str) -> Result<T, String>,
    ) -> Result<T, Failure> {
        let Self { node_name, node_ip, configz: Configz { address, port, .. }, .. } = self;
        let host = address.as_deref().or(node_ip.as_deref()).unwrap_or(LOOPBACK);
        let host = host.trim_matches(['[', ']']);
        let place = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let operation = format!("ask the kubelet at {place} for its {}", endpoint.subject);
        let read = async { read_kubelet(&self.access(host)?, node_name.as_deref(), endpoint.path).await };
        match read.await {
            Ok(response) => {
                let body = body(response, &operation, endpoint)?;
                parse(&body, &format!("https://{place}{}", endpoint.path))
                    .map_err(|why| Failure::failed(format!("{operation}: {why}")))
            }
            Err(error @ RequestError::Certificate { .. }) => Err(Failure::because(operation, &error).help(
                "name who vouches for its serving certificate in thresholds.configz.certificateAuthority; \
             one that it has signed itself is on the node, as /var/lib/kubelet/pki/kubelet.crt",
            )),
            Err(error) => Err(Failure::because(operation, &error)),
        }
    }

    /// Returns the address and the credentials for the kubelet at this host.
    fn access(&self, host: &str) -> Result<Access, RequestError> {
        let Configz { address: _, port, certificate_authority, server_name, insecure_skip_tls_verify } =
            &self.configz;
        let mut access = Access::find(self.kubeconfig.as_deref())?.to_kubelet(host, *port)?;
        if let Some(file) = certificate_authority {
            access = access.with_certificate_authority(file.clone())?;
        }
        if let Some(name) = server_name {
            access = access.with_server_name(name);
        }
        Ok(if *insecure_skip_tls_verify { access.with_insecure_tls() } else { access })
    }
}

fn body(response: Response<Bytes>, operation: &str, endpoint: &KubeletEndpoint) -> Result<Bytes, Failure> {
    let status = response.status().as_u16();
    let body = response.into_body();
    let message = || String::from_utf8_lossy(&body).trim().chars().take(300).collect::<String>();
    let (why, help) = match status {
        200 => return Ok(body),
        401 => (
            format!("it rejects the credentials: {}", message()),
            "the kubelet has to ask the API server about tokens: authentication.webhook.enabled",
        ),
        403 => (format!("a permission is missing: {}", message()), endpoint.help),
        404 => {
            (format!("it serves no {}", endpoint.path), "enableDebuggingHandlers of the kubelet must be on")
        }
        status => return Err(Failure::failed(format!("{operation}: it answers {status}: {}", message()))),
    };
    Err(Failure::failed(format!("{operation}: {why}")).help(help))
}

/// Requests the configuration of the kubelet. Blocks; not to be called on a runtime's thread.
///
/// # Errors
/// Why there is no response, with advice.
pub(crate) fn read_configz(kubelet: &KubeletClient) -> Result<Effective, Failure> {
    let runtime = crate::daemon::start_runtime()?;
    runtime.block_on(kubelet.get(&CONFIGZ, |body, url| Effective::parse(body, url)))
}

/// Starts the thread that requests the summary.
///
/// # Errors
/// If the thread cannot be created.
pub(crate) fn start_summary_reader(
    kubelet: KubeletClient,
    samples: Sender<StorageSample>,
) -> std::io::Result<StorageReader> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let read = move |pods: Vec<StorageRequest>, _priority| {
        let began_ns = mono_ns();
        let answer = runtime.block_on(read_summary(&kubelet));
        let ended_ns = mono_ns();
        let sample = match answer {
            Ok(summary) => StorageSample {
                file_systems: Some(summary.file_systems(ended_ns)),
                ..summary.pod_storage(&pods)
            },
            Err(failure) => {
                tracing::warn!(error = failure.into_line(), "the disk usage of pods is unknown");
                StorageSample::unknown()
            }
        };
        StorageSample { began_ns, took_ns: ended_ns.saturating_sub(began_ns), ..sample }
    };
    StorageReader::start(read, samples)
}

/// Returns whether the kubelet answers with a summary, as a source of `check`, and the node's file systems in it.
pub(crate) async fn probe_summary(kubelet: &KubeletClient) -> (Backend, Option<SummaryFileSystems>) {
    let (backend, reason, file_systems) = match read_summary(kubelet).await {
        Ok(summary) => {
            let reason = "of the kubelet, when a threshold is met".to_owned();
            ("stats summary", reason, Some(summary.file_systems(mono_ns())))
        }
        Err(failure) => (NO_BACKEND, failure.into_line(), None),
    };
    (Backend::new("pod storage", backend, reason), file_systems)
}

async fn read_summary(kubelet: &KubeletClient) -> Result<Summary, Failure> {
    let parse = |body: &[u8], _: &str| {
        Summary::parse(body).map_err(|error| format!("decode the stats summary: {}", chain(&error)))
    };
    kubelet.get(&STATS_SUMMARY, parse).await
}
