//! Where the API server is, and who asks.

use std::fmt;
use std::path::Path;

use super::error::AccessError;
use super::material::Material;
use super::{in_cluster, kubeconfig};

/// Where the API server is, and who asks: from a kubeconfig, or from the service account of the
/// pod that the agent runs in.
#[derive(Clone, Debug)]
pub struct Access {
    pub(super) server: Server,
    /// PEM certificates of those who vouch for the server.
    pub(super) ca: Material,
    /// PEM certificate chain and key by which the agent says who it is.
    pub(super) identity: Option<(Material, Material)>,
    /// A bearer token by which it does.
    pub(super) token: Option<Material>,
    pub(super) origin: Origin,
    /// Any certificate of the server will do.
    pub(super) insecure: bool,
}

/// An address as `https://HOST:PORT/BASE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// A name, or an address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// What stands before each path: empty, or begins with a slash and does not end in one.
    pub(super) base: String,
    /// What the server's certificate must be for, if not for the host.
    pub(super) certified_as: Option<String>,
}

/// Where this was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Kubeconfig {
        path: std::path::PathBuf,
        context: String,
    },
    ServiceAccount,
    /// As whom a kubelet is asked.
    Kubelet(Box<Origin>),
}

impl Access {
    /// Reads a kubeconfig; without a path takes the service account of the pod, as
    /// `rest.InClusterConfig` of client-go does.
    ///
    /// # Errors
    /// If the file or something that it names is not there, or asks for what is not supported.
    pub fn find(kubeconfig: Option<&Path>) -> Result<Self, AccessError> {
        match kubeconfig {
            Some(path) => kubeconfig::load(path),
            None => in_cluster::find(|name| std::env::var(name).ok(), Path::new(in_cluster::ACCOUNT)),
        }
    }

    /// The address of the server.
    pub fn server(&self) -> impl fmt::Display {
        &self.server
    }

    /// Where this was found.
    pub fn origin(&self) -> impl fmt::Display {
        &self.origin
    }
}

impl Server {
    /// `host:port`, as the Host header has it.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}{}", self.authority(), self.base)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig { path, context } => {
                write!(f, "kubeconfig {}, context {context}", path.display())
            }
            Self::ServiceAccount => f.write_str("the pod's service account"),
            Self::Kubelet(origin) => origin.fmt(f),
        }
    }
}
