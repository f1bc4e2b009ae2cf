//! Asking the kubelet what it runs with.

use std::path::PathBuf;
use std::time::Duration;

use super::error::Failure;
use eviction_config::{Configz, Effective};
use eviction_kube::{Access, Client, KubeletAddress, Request, Response};

const PATH: &str = "/configz";

/// The kubelet may have to ask the API server who asks: it gives that up after 10 s
/// (`authentication.webhook`).
const WITHIN: Duration = Duration::from_secs(12);

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
    // The kubelet's own certificate is for the host's name, one that the cluster has signed also for its
    // addresses.
    let mut names = vec![server_name.clone().or_else(|| node_name.clone())];
    if server_name.is_none() && node_name.is_some() {
        names.push(None);
    }
    let mut first = None;
    for server_name in names {
        let address = KubeletAddress {
            host: host.to_owned(),
            port: *port,
            certificate_authority: certificate_authority.clone(),
            server_name,
            insecure: *insecure_skip_tls_verify,
        };
        let client = access.to_kubelet(address).and_then(Client::new);
        let client = client.map_err(|error| Failure::because(&operation, &error))?;
        match client.request(Request::get(PATH).within(WITHIN)).await {
            Ok(answer) => return judge(&answer, &operation, &format!("https://{place}{PATH}")),
            Err(error) if error.is_misconfiguration() => {
                first.get_or_insert(error);
            }
            Err(error) => return Err(Failure::because(operation, &error)),
        }
    }
    Err(match first {
        Some(error) => Failure::because(operation, &error).help(
            "name who vouches for its serving certificate in thresholds.configz.certificateAuthority; \
             one that it has signed itself is on the node, as /var/lib/kubelet/pki/kubelet.crt",
        ),
        None => Failure::failed(operation),
    })
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
        404 => Err(Failure::failed(format!("{operation}: it serves no {PATH}"))
            .help("enableDebuggingHandlers of the kubelet must be on")),
        status => Err(Failure::failed(format!("{operation}: it answers {status}: {}", said()))),
    }
}
