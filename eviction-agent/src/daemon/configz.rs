//! Asking the kubelet what it runs with.

use std::path::PathBuf;

use crate::error::Failure;
use eviction_config::{Configz, Effective};
use eviction_kube::{Access, CONFIGZ_PATH, KubeletAddress, RequestError, Response, fetch_configz};

/// Where an agent on the host's network finds it.
const LOOPBACK: &str = "127.0.0.1";

/// Who asks, and on which node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Kubeconfig; absent: the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The name of the node's object.
    pub node_name: Option<String>,
    /// An address of the node.
    pub node_ip: Option<String>,
}

/// What the kubelet says of its own configuration. Blocks; not to be called on a runtime's thread.
///
/// # Errors
/// Why it does not, with what can be done about it.
pub(crate) fn read(caller: &Caller, configz: &Configz) -> Result<Effective, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::because("start a runtime", &error))?;
    runtime.block_on(ask(caller, configz))
}

async fn ask(caller: &Caller, configz: &Configz) -> Result<Effective, Failure> {
    let Caller { kubeconfig, node_name, node_ip } = caller;
    let Configz { address, port, certificate_authority, server_name, insecure_skip_tls_verify } = configz;
    let host = address.as_deref().or(node_ip.as_deref()).unwrap_or(LOOPBACK).trim_matches(['[', ']']);
    let place = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let operation = format!("ask the kubelet at {place} for its configuration");
    let access = Access::find(kubeconfig.as_deref()).map_err(|error| Failure::because(&operation, &error))?;
    let kubelet = KubeletAddress {
        host: host.to_owned(),
        port: *port,
        certificate_authority: certificate_authority.clone(),
        server_name: server_name.clone(),
        insecure: *insecure_skip_tls_verify,
    };
    match fetch_configz(&access, &kubelet, node_name.as_deref()).await {
        Ok(answer) => judge(&answer, &operation, &format!("https://{place}{CONFIGZ_PATH}")),
        Err(error @ RequestError::Certificate { .. }) => Err(Failure::because(operation, &error).help(
            "name who vouches for its serving certificate in thresholds.configz.certificateAuthority; \
             one that it has signed itself is on the node, as /var/lib/kubelet/pki/kubelet.crt",
        )),
        Err(error) => Err(Failure::because(operation, &error)),
    }
}

fn judge(answer: &Response, operation: &str, url: &str) -> Result<Effective, Failure> {
    let said = || String::from_utf8_lossy(&answer.body).trim().chars().take(300).collect::<String>();
    match answer.status {
        200 => {
            Effective::parse(&answer.body, url).map_err(|why| Failure::failed(format!("{operation}: {why}")))
        }
        401 => Err(Failure::failed(format!("{operation}: it does not accept who asks: {}", said()))
            .help("the kubelet has to ask the API server about tokens: authentication.webhook.enabled")),
        403 => Err(Failure::failed(format!("{operation}: a permission is missing: {}", said()))
            .help("the agent needs get for nodes/configz, or for nodes/proxy with kubelets before 1.33")),
        404 => Err(Failure::failed(format!("{operation}: it serves no {CONFIGZ_PATH}"))
            .help("enableDebuggingHandlers of the kubelet must be on")),
        status => Err(Failure::failed(format!("{operation}: it answers {status}: {}", said()))),
    }
}
