//! The TLS connections of the tests, on either side.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::pki::Identity;

/// Opens a TLS connection to the server.
pub(super) async fn open(tls: &TlsConnector, address: SocketAddr) -> Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await.context("connect")?;
    stream.set_nodelay(true).context("set TCP_NODELAY")?;
    let name = ServerName::IpAddress(address.ip().into());
    tls.connect(name, stream).await.context("TLS handshake")
}

/// Returns a connector that trusts only that authority.
pub(super) fn connector(ca_pem: &str) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots.add(certificate.context("read the authority")?).context("take the authority")?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("choose TLS versions")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Returns an acceptor with that certificate.
pub(super) fn acceptor(identity: &Identity) -> Result<TlsAcceptor> {
    let Identity { certificate, key } = identity;
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).context("read a certificate")?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).context("read a key")?;
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("choose TLS versions")?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .context("take a certificate")?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
