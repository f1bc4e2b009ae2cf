//! Which node of the cluster this machine is.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::{Failure, chain};
use eviction_core::node::Node;
use eviction_kube::parse_node;
use eviction_kube::{Client, Request, Response};

/// What the kernel calls this boot of the machine.
pub(crate) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A node that was just booted is under its old boot id until its kubelet has said so.
const BOOTED: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// `validation.DNS1123SubdomainMaxLength` of apimachinery.
const LONGEST: usize = 253;

/// The name of a Node: a DNS subdomain, so that it can stand in a path as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeName(Box<str>);

impl NodeName {
    /// The name as given.
    pub(super) fn of(name: Option<&str>) -> Result<Self, Failure> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(Failure::usage(
                "find this node's object: neither --node-name nor NODE_NAME is given",
            )
            .help("in a pod, set NODE_NAME from the field spec.nodeName"));
        };
        if is_dns_subdomain(name) {
            Ok(Self(name.into()))
        } else {
            Err(Failure::failed(format!("find this node's object: `{name:.300}` is no name of a node")))
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_dns_subdomain(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= LONGEST && name.split('.').all(is_label)
}

/// What came of asking for the node's object.
#[derive(Debug)]
pub(super) enum Found {
    /// It is there, and nothing says that it is another machine's.
    Node(Node),
    /// The server cannot be asked at present.
    Unreachable(String),
}

/// Asks for the node's object; if it is that of another boot, again, until its kubelet must have
/// spoken.
pub(super) async fn find_patiently(client: &Client, name: &NodeName) -> Result<Found, Failure> {
    let until = Instant::now() + BOOTED;
    let own_boot = read_boot_id(Path::new(BOOT_ID));
    loop {
        let found = find(client, name).await?;
        let Found::Node(node) = &found else { return Ok(found) };
        match (&own_boot, &*node.boot_id) {
            (Some(own), other) if !other.is_empty() && own != other => {
                if Instant::now() >= until {
                    return Err(Failure::failed(format!(
                        "find this node's object: {name} is another machine, booted as {other}, this one as {own}"
                    ))
                    .help("give the name under which the kubelet of this machine is registered"));
                }
                sleep(LOOK_AGAIN).await;
            }
            _ => return Ok(found),
        }
    }
}

/// The id of a boot; nothing if it cannot be read.
pub(crate) fn read_boot_id(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned()).filter(|id| !id.is_empty())
}

async fn find(client: &Client, name: &NodeName) -> Result<Found, Failure> {
    let server = client.access().server();
    match client.request(Request::get(format!("/api/v1/nodes/{name}"))).await {
        Ok(answer) => judge(&answer, name, client),
        Err(error) if error.is_misconfiguration() => {
            Err(Failure::because(format!("ask the API server {server}"), &error))
        }
        Err(error) => Ok(Found::Unreachable(format!("{server}: {}", chain(&error)))),
    }
}

fn judge(answer: &Response, name: &NodeName, client: &Client) -> Result<Found, Failure> {
    let said = || message(&answer.body);
    match answer.status {
        200 => parse_node(&answer.body)
            .map(Found::Node)
            .map_err(|why| Failure::failed(format!("read node {name}: {why}"))),
        401 => Err(Failure::failed(format!(
            "ask the API server {}: it does not accept who asks, by {}",
            client.access().server(),
            client.access().origin()
        ))),
        403 => Err(Failure::failed(format!("read node {name}: a permission is missing: {}", said()))
            .help("the agent has to get, list and watch its own node and the pods of its node")),
        404 => Err(Failure::failed(format!("read node {name}: there is no such node"))
            .help("in a pod, set NODE_NAME from the field spec.nodeName")),
        status => Ok(Found::Unreachable(format!("the API server answers {status}: {}", said()))),
    }
}

/// `message` of the `Status` in the body.
pub(super) fn message(body: &[u8]) -> String {
    let status: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = status.as_ref().and_then(|status| status.get("message")?.as_str());
    message.unwrap_or("no reason given").chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::NodeName;

    #[test]
    fn a_name_of_a_node_is_a_dns_name() {
        let long = "a".repeat(254);
        for name in ["n1", "ip-10-0-0-1.eu.compute.internal", "0"] {
            assert_eq!(NodeName::of(Some(name)).unwrap().to_string(), name);
        }
        for name in ["N1", "a_b", "-a", "a-", "a..b", ".", "a/b", "a b", "ü", "a?b", &long] {
            let (text, _) = NodeName::of(Some(name)).unwrap_err().report();
            assert!(text.starts_with("error: find this node's object: `"), "{text}");
        }
        for name in [None, Some("")] {
            let (text, _) = NodeName::of(name).unwrap_err().report();
            assert!(text.contains("neither --node-name nor NODE_NAME is given"), "{text}");
        }
    }
}
