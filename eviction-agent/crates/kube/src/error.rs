//! Errors between the agent and the API server.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use eviction_core::error::chain;
use hyper_util::client::legacy;
use rustls::AlertDescription as Alert;
use thiserror::Error;

/// An error of another library.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Why an operation failed, as a message for users.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct OperationError {
    message: String,
    help: Option<&'static str>,
    is_usage: bool,
    is_unavailable: bool,
}

impl OperationError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None, is_usage: false, is_unavailable: false }
    }

    /// Creates an error for invalid usage of the agent.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { is_usage: true, ..Self::new(message) }
    }

    /// Creates an error for a server that does not respond now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { is_unavailable: true, ..Self::new(message) }
    }

    pub(crate) fn because(operation: impl AsRef<str>, error: &dyn Error) -> Self {
        Self::new(format!("{}: {}", operation.as_ref(), chain(error)))
    }

    pub(crate) fn help(self, help: &'static str) -> Self {
        Self { help: Some(help), ..self }
    }

    /// Returns advice on how to fix the error.
    pub fn advice(&self) -> Option<&'static str> {
        self.help
    }

    /// Whether the agent was called with invalid arguments.
    pub fn is_usage(&self) -> bool {
        self.is_usage
    }

    /// Whether the API server does not respond now, so that a retry may succeed without a change of the
    /// configuration or permissions.
    pub fn is_unavailable(&self) -> bool {
        self.is_unavailable
    }
}

/// Why a request has no response.
#[derive(Debug, Error)]
pub enum RequestError {
    /// The address of the server or the credentials are not available, so no request was sent.
    #[error("{0}")]
    Access(String),
    /// The connection failed, so no request was sent.
    #[error("connect to {address}")]
    Connect {
        /// The address of the server.
        address: String,
        /// The cause.
        #[source]
        source: BoxError,
    },
    /// The server's certificate is not signed by the CA, or the server rejected the agent's certificate.
    #[error("trust the server at {address}")]
    Certificate {
        /// The address of the server.
        address: String,
        /// The cause.
        #[source]
        source: rustls::Error,
    },
    /// The request cannot be built.
    #[error("write the request")]
    Malformed(#[source] BoxError),
    /// The timeout passed before the response arrived. The request may have been carried out.
    #[error("no response within {after:?}")]
    Deadline {
        /// The timeout of the request.
        after: Duration,
    },
    /// The connection broke before the response arrived. The request may have been carried out.
    #[error("the connection was closed before the response")]
    Broken(#[source] BoxError),
    /// The response exceeds the size limit. The request may have been carried out.
    #[error("the response is longer than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
}

impl RequestError {
    /// Creates an error in a certificate, a key or a token from this file or other source.
    pub(crate) fn credentials(what: &str, from: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::Access(format!("{what} of {from}: {why}"))
    }

    /// Creates an error for a credentials file that cannot be read.
    pub(crate) fn read_file(what: &str, path: &Path, cause: &io::Error) -> Self {
        Self::Access(format!("read {what} {}: {cause}", path.display()))
    }

    /// Returns whether the server may have carried out the request.
    pub fn may_have_been_carried_out(&self) -> bool {
        match self {
            Self::Deadline { .. } | Self::Broken(_) | Self::TooLarge { .. } => true,
            Self::Access(_) | Self::Connect { .. } | Self::Certificate { .. } | Self::Malformed(_) => false,
        }
    }

    /// Returns whether retries are useless until the configuration is changed.
    pub fn is_misconfiguration(&self) -> bool {
        matches!(self, Self::Access(_) | Self::Certificate { .. })
    }

    /// Converts an error that a service returns instead of a response. Determines whether the request may
    /// have left this process.
    pub(crate) fn of_service(cause: BoxError, address: &str) -> Self {
        let cause = match cause.downcast::<Self>() {
            Ok(error) => return *error,
            Err(cause) => cause,
        };
        if let Some(auth) = find::<kube::client::AuthError>(&*cause) {
            return Self::credentials("credentials", address, chain(auth));
        }
        let address = address.to_owned();
        if let Some(source) = find::<rustls::Error>(&*cause).filter(|error| is_certificate_error(error)) {
            return Self::Certificate { address, source: source.clone() };
        }
        match cause.downcast::<legacy::Error>() {
            // The error's own text has no further information.
            Ok(error) if error.is_connect() => {
                let why = error.source().map_or_else(|| error.to_string(), chain);
                Self::Connect { address, source: why.into() }
            }
            Ok(error) => Self::Broken(error),
            Err(cause) => Self::Broken(cause),
        }
    }
}

/// Whether one side rejected the other's certificate, which is not a network error.
fn is_certificate_error(error: &rustls::Error) -> bool {
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

/// Returns the first error of this type among an error and its causes.
fn find<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        // An io::Error does not return the error that it wraps as its source.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = wrapped.map(|error| error as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}
