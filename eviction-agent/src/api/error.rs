//! What can go wrong between the agent and the API server.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tokio_rustls::rustls;

/// Why it is not known how to reach the API server. Nothing was sent.
#[derive(Debug, Error)]
pub enum AccessError {
    /// A file that the connection needs cannot be read.
    #[error("read {what} {}", path.display())]
    Read {
        /// What is in the file.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A kubeconfig, or what it leads to, is wrong at a field.
    #[error("kubeconfig {}: {at}: {why}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The field.
        at: String,
        /// What is wrong with it.
        why: String,
    },
    /// Certificates, a key or a token is not what it should be.
    #[error("{what} of {from}: {why}")]
    Material {
        /// Which of them.
        what: &'static str,
        /// The file, or the field.
        from: String,
        /// What is wrong with it.
        why: String,
    },
    /// Neither a kubeconfig is given nor does this process run in a pod.
    #[error("no kubeconfig is given, and {variable} is not set as it is in a pod: {why}")]
    NotInCluster {
        /// The variable of the environment.
        variable: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// What a connection is made with cannot be had any more.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The name of the server leads nowhere.
    #[error("resolve {host}")]
    Resolve {
        /// The name.
        host: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Nobody answers there.
    #[error("connect to {address}")]
    Tcp {
        /// The address that was tried last.
        address: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The server is not the one that the CA vouches for, or does not accept who asks.
    #[error("trust the server at {address}")]
    Certificate {
        /// The server.
        address: String,
        /// The cause.
        #[source]
        source: rustls::Error,
    },
    /// TLS or HTTP broke off.
    #[error("greet the server at {address}")]
    Greeting {
        /// The server.
        address: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl ConnectError {
    /// Whether trying again cannot help until a person has changed something.
    pub fn is_misconfiguration(&self) -> bool {
        matches!(self, Self::Access(_) | Self::Certificate { .. })
    }
}

/// Why a request has no answer.
#[derive(Debug, Error)]
pub enum RequestError {
    /// There was no connection, and so no request.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The token cannot be read, and so nothing was sent.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The time was over before anything was sent.
    #[error("no connection within {after:?}")]
    NoConnection {
        /// The time that the request had.
        after: Duration,
    },
    /// The request cannot be written down.
    #[error("write the request")]
    Malformed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The time was over before the answer was there: it may have been carried out.
    #[error("no answer within {after:?}")]
    Deadline {
        /// The time that the request had.
        after: Duration,
    },
    /// The connection broke before the answer was there: it may have been carried out.
    #[error("the connection broke before the answer")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer is longer than any should be: it may have been carried out.
    #[error("an answer of more than {limit} bytes")]
    TooLarge {
        /// The bound.
        limit: usize,
    },
}

impl RequestError {
    /// Whether the server may have done what was asked.
    pub fn may_have_been_carried_out(&self) -> bool {
        match self {
            Self::Deadline { .. } | Self::Broken(_) | Self::TooLarge { .. } => true,
            Self::Connect(_) | Self::Access(_) | Self::NoConnection { .. } | Self::Malformed(_) => false,
        }
    }

    /// Whether trying again cannot help until a person has changed something.
    pub fn is_misconfiguration(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_misconfiguration(),
            Self::Access(_) => true,
            _ => false,
        }
    }
}
