//! TLS as the files say it at the moment of each connection.

use std::sync::{Arc, Mutex, PoisonError};

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::access::Access;
use super::error::AccessError;
use super::trust::Anybody;

const CA: &str = "certificate authority";
const CERTIFICATE: &str = "client certificate";
const KEY: &str = "client key";

/// There is one server.
const SESSIONS: usize = 2;

/// What the files said when a connection was made last, and what was made of it: a CA or a
/// certificate that is rotated is in use from the next connection on.
#[derive(Debug, Default)]
pub(super) struct Tls {
    last: Mutex<Option<(Files, Arc<ClientConfig>)>>,
}

#[derive(PartialEq, Eq)]
struct Files {
    ca: Vec<u8>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Files")
    }
}

impl Tls {
    /// What the next connection is made with.
    pub(super) fn connector(&self, access: &Access) -> Result<TlsConnector, AccessError> {
        let identity = match &access.identity {
            Some((certificate, key)) => Some((certificate.read(CERTIFICATE)?, key.read(KEY)?)),
            None => None,
        };
        let ca = if access.insecure { Vec::new() } else { access.ca.read(CA)? };
        let files = Files { ca, identity };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, config)) = &*last
            && *before == files
        {
            return Ok(Arc::clone(config).into());
        }
        let config = Arc::new(configure(access, &files)?);
        *last = Some((files, Arc::clone(&config)));
        Ok(config.into())
    }
}

/// Whom the server's certificate must be for.
pub(super) fn server_name(access: &Access) -> Result<ServerName<'static>, AccessError> {
    let name = access.server.certified_as.as_ref().unwrap_or(&access.server.host);
    ServerName::try_from(name.clone()).map_err(|error| AccessError::Material {
        what: "server name",
        from: access.origin.to_string(),
        why: format!("`{name}`: {error}"),
    })
}

fn configure(access: &Access, files: &Files) -> Result<ClientConfig, AccessError> {
    let wrong_ca = |why: &dyn std::fmt::Display| access.ca.wrong(CA, why);
    let mut roots = RootCertStore::empty();
    // Whom nobody has to vouch for, nobody is asked about.
    let vouching = if access.insecure { &[][..] } else { &files.ca[..] };
    for certificate in CertificateDer::pem_slice_iter(vouching) {
        let certificate = certificate.map_err(|error| wrong_ca(&error))?;
        roots.add(certificate).map_err(|error| wrong_ca(&error))?;
    }
    if roots.is_empty() && !access.insecure {
        return Err(wrong_ca(&"no PEM certificate is in it"));
    }
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong_ca(&error))?;
    let builder = match access.insecure {
        true => builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider))),
        false => builder.with_root_certificates(roots),
    };
    let mut config = match (&access.identity, &files.identity) {
        (Some((certificate_from, key_from)), Some((certificate, key))) => {
            let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate)
                .collect::<Result<_, _>>()
                .map_err(|error| certificate_from.wrong(CERTIFICATE, error))?;
            if chain.is_empty() {
                return Err(certificate_from.wrong(CERTIFICATE, "no PEM certificate is in it"));
            }
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| key_from.wrong(KEY, error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| key_from.wrong(KEY, error))?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(config)
}
