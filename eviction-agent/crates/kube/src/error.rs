//! What can go wrong between the agent and the API server.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use eviction_core::error::chain;
use hyper_util::client::legacy;
use rustls::AlertDescription as Alert;
use thiserror::Error;

/// An error of any library.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Why the API server or the agent's credentials are not known. Nothing was sent.
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
    /// A kubeconfig, or what it leads to, cannot be used.
    #[error("kubeconfig {}: {why}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Certificates, a key or a token is not what it should be.
    #[error("{what} of {from}: {why}")]
    Credentials {
        /// Which of them.
        what: &'static str,
        /// Where it comes from.
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

/// Why an operation failed, for people.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct OperationError {
    message: String,
    help: Option<&'static str>,
    is_usage: bool,
}

impl OperationError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None, is_usage: false }
    }

    /// The agent was called in the wrong way.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { is_usage: true, ..Self::new(message) }
    }

    pub(crate) fn because(operation: impl AsRef<str>, error: &dyn Error) -> Self {
        Self::new(format!("{}: {}", operation.as_ref(), chain(error)))
    }

    pub(crate) fn help(self, help: &'static str) -> Self {
        Self { help: Some(help), ..self }
    }

    /// What can be done about it.
    pub fn advice(&self) -> Option<&'static str> {
        self.help
    }

    /// Whether the agent was called in the wrong way.
    pub fn is_usage(&self) -> bool {
        self.is_usage
    }
}

/// Why a request has no response.
#[derive(Debug, Error)]
pub enum RequestError {
    /// The credentials cannot be had, and so nothing was sent.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// There was no connection, and so no request.
    #[error("connect to {address}")]
    Connect {
        /// The server.
        address: String,
        /// The cause.
        #[source]
        source: BoxError,
    },
    /// The server's certificate is not signed by the CA, or the server does not accept the agent's.
    #[error("trust the server at {address}")]
    Certificate {
        /// The server.
        address: String,
        /// The cause.
        #[source]
        source: rustls::Error,
    },
    /// The request cannot be written down.
    #[error("write the request")]
    Malformed(#[source] BoxError),
    /// The time was over before the response was there: the request may have been carried out.
    #[error("no answer within {after:?}")]
    Deadline {
        /// The time that the request had.
        after: Duration,
    },
    /// The connection broke before the response was there: the request may have been carried out.
    #[error("the connection broke before the answer")]
    Broken(#[source] BoxError),
    /// The response is longer than any should be: the request may have been carried out.
    #[error("an answer of more than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
}

impl RequestError {
    /// Whether the server may have carried out the request.
    pub fn may_have_been_carried_out(&self) -> bool {
        match self {
            Self::Deadline { .. } | Self::Broken(_) | Self::TooLarge { .. } => true,
            Self::Access(_) | Self::Connect { .. } | Self::Certificate { .. } | Self::Malformed(_) => false,
        }
    }

    /// Whether trying again cannot help until a person has changed something.
    pub fn is_misconfiguration(&self) -> bool {
        matches!(self, Self::Access(_) | Self::Certificate { .. })
    }

    /// What kube reports instead of a response.
    pub(crate) fn of(error: kube::Error, address: &str) -> Self {
        match error {
            kube::Error::Service(cause) => Self::of_service(cause, address),
            kube::Error::HttpError(cause) => Self::Malformed(cause.into()),
            other => Self::Broken(other.into()),
        }
    }

    /// What a service reports instead of a response: finds out whether the request can have left this
    /// process.
    pub(crate) fn of_service(cause: BoxError, address: &str) -> Self {
        let cause = match cause.downcast::<AccessError>() {
            Ok(access) => return Self::Access(*access),
            Err(cause) => cause,
        };
        if let Some(auth) = find::<kube::client::AuthError>(&*cause) {
            let (what, from) = ("credentials", address.to_owned());
            return Self::Access(AccessError::Credentials { what, from, why: chain(auth) });
        }
        let address = address.to_owned();
        if let Some(source) = find::<rustls::Error>(&*cause).filter(|error| is_mistrust(error)) {
            return Self::Certificate { address, source: source.clone() };
        }
        match cause.downcast::<legacy::Error>() {
            // Its own text says no more than that.
            Ok(error) if error.is_connect() => {
                let why = error.source().map_or_else(|| error.to_string(), chain);
                Self::Connect { address, source: why.into() }
            }
            Ok(error) => Self::Broken(error),
            Err(cause) => Self::Broken(cause),
        }
    }
}

/// Whether one side does not trust the other: no accident of the network.
fn is_mistrust(error: &rustls::Error) -> bool {
    match error {
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => true,
        rustls::Error::AlertReceived(alert) => matches!(
            alert,
            Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::CertificateRequired
        ),
        _ => false,
    }
}

/// The first error of that type among an error and its causes.
fn find<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        // An io::Error does not name the error that it wraps as its source.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = wrapped.map(|error| error as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}
