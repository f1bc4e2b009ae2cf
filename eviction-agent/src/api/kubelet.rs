//! How a kubelet is reached: as the API server is, but at another address and with other trust.

use std::path::PathBuf;

use super::access::{Access, Origin, Server};
use super::material::Material;

/// Where a kubelet is, and how it is known.
#[derive(Clone, Debug)]
pub struct KubeletAddress {
    /// A name, or an address without brackets.
    pub host: String,
    /// The port, 10250 as a rule.
    pub port: u16,
    /// PEM certificates of those who vouch for it; absent: who vouches for the API server.
    pub certificate_authority: Option<PathBuf>,
    /// What its certificate must be for, if not for the host.
    pub server_name: Option<String>,
    /// Any certificate will do.
    pub insecure: bool,
}

impl Access {
    /// The same who asks, but of a kubelet.
    #[must_use]
    pub fn to_kubelet(&self, address: KubeletAddress) -> Self {
        let KubeletAddress { host, port, certificate_authority, server_name, insecure } = address;
        let server = Server { host, port, base: String::new(), certified_as: server_name };
        Self {
            server,
            ca: certificate_authority.map_or_else(|| self.ca.clone(), Material::File),
            identity: self.identity.clone(),
            token: self.token.clone(),
            origin: Origin::Kubelet(Box::new(self.origin.clone())),
            insecure,
        }
    }
}
