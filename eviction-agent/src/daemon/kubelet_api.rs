//! Requests to the kubelet of the node, with the credentials for the API server.

use std::path::PathBuf;

use bytes::Bytes;
use eviction_config::Configz;
use eviction_kube::{Access, KubeletAddress, KubeletEndpoint, RequestError, Response, read_kubelet};

use crate::error::Failure;

/// The address of the kubelet for an agent on the host's network.
const LOOPBACK: &str = "127.0.0.1";

/// The credentials and the node of the requests to the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Kubeconfig; absent: the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The name of the node's object.
    pub node_name: Option<String>,
    /// An address of the node.
    pub node_ip: Option<String>,
}

/// A client for the kubelet of the node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KubeletClient {
    pub(crate) caller: Caller,
    pub(crate) configz: Configz,
}

impl KubeletClient {
    /// Sends a request. `parse` gets the body of the response and the URL, and returns what is wrong with the body.
    ///
    /// # Errors
    /// Why there is no response, with advice, or what is wrong with it.
    pub(crate) async fn get<T>(
        &self,
        endpoint: KubeletEndpoint,
        parse: impl FnOnce(&[u8], &str) -> Result<T, String>,
    ) -> Result<T, Failure> {
        let Caller { kubeconfig, node_name, node_ip } = &self.caller;
        let Configz { address, port, certificate_authority, server_name, insecure_skip_tls_verify } =
            &self.configz;
        let host = address.as_deref().or(node_ip.as_deref()).unwrap_or(LOOPBACK).trim_matches(['[', ']']);
        let place = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let subject = match endpoint {
            KubeletEndpoint::Configz => "configuration",
            KubeletEndpoint::StatsSummary => "statistics",
        };
        let operation = format!("ask the kubelet at {place} for its {subject}");
        let access =
            Access::find(kubeconfig.as_deref()).map_err(|error| Failure::because(&operation, &error))?;
        let kubelet = KubeletAddress {
            host: host.to_owned(),
            port: *port,
            certificate_authority: certificate_authority.clone(),
            server_name: server_name.clone(),
            insecure: *insecure_skip_tls_verify,
        };
        match read_kubelet(&access, &kubelet, node_name.as_deref(), endpoint).await {
            Ok(answer) => {
                let body = body(answer, &operation, endpoint)?;
                parse(&body, &format!("https://{place}{}", endpoint.path()))
                    .map_err(|why| Failure::failed(format!("{operation}: {why}")))
            }
            Err(error @ RequestError::Certificate { .. }) => Err(Failure::because(operation, &error).help(
                "name who vouches for its serving certificate in thresholds.configz.certificateAuthority; \
             one that it has signed itself is on the node, as /var/lib/kubelet/pki/kubelet.crt",
            )),
            Err(error) => Err(Failure::because(operation, &error)),
        }
    }
}

fn body(answer: Response, operation: &str, endpoint: KubeletEndpoint) -> Result<Bytes, Failure> {
    let message = || String::from_utf8_lossy(&answer.body).trim().chars().take(300).collect::<String>();
    match answer.status {
        200 => Ok(answer.body),
        401 => Err(Failure::failed(format!("{operation}: it rejects the credentials: {}", message()))
            .help("the kubelet has to ask the API server about tokens: authentication.webhook.enabled")),
        403 => Err(Failure::failed(format!("{operation}: a permission is missing: {}", message())).help(
            match endpoint {
                KubeletEndpoint::Configz => {
                    "the agent needs get for nodes/configz, or for nodes/proxy with kubelets before 1.33"
                }
                KubeletEndpoint::StatsSummary => "the agent needs get for nodes/stats",
            },
        )),
        404 => Err(Failure::failed(format!("{operation}: it serves no {}", endpoint.path()))
            .help("enableDebuggingHandlers of the kubelet must be on")),
        status => Err(Failure::failed(format!("{operation}: it answers {status}: {}", message()))),
    }
}
