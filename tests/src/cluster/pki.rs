//! The certificates and keys of a cluster, generated for each.

use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// The names and addresses at which the servers are reached.
const SERVER_NAMES: [&str; 3] = ["127.0.0.1", "localhost", "kubernetes.default.svc"];

/// A certificate authority.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The certificate, PEM.
    pub(super) pem: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// A certificate and its key, PEM.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl Authority {
    /// Creates an authority.
    pub(super) fn new(name: &str) -> Result<Self> {
        let mut params = params(&[], name)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = new_key()?;
        let pem = params.self_signed(&key).context("sign an authority's certificate")?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Creates the certificate of a server on loopback.
    pub(super) fn server(&self) -> Result<Identity> {
        let params = params(&SERVER_NAMES, "kube-apiserver")?;
        self.identity(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Creates the client certificate of a user of that group.
    pub(super) fn client(&self, user: &str, group: &str) -> Result<Identity> {
        let mut params = params(&[], user)?;
        params.distinguished_name.push(DnType::OrganizationName, group);
        self.identity(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn identity(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<Identity> {
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = new_key()?;
        let certificate = params.signed_by(&key, &self.issuer).context("sign a certificate")?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

fn params(names: &[&str], common_name: &str) -> Result<CertificateParams> {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).context("names of a certificate")?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}

fn new_key() -> Result<KeyPair> {
    KeyPair::generate().context("make a key")
}

/// Creates the key that signs the tokens of service accounts: its private and its public part, PEM.
pub(super) fn token_key() -> Result<(String, String)> {
    let key = new_key()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

/// Writes a file that only its owner may read, in one step, since servers reload changed files.
pub(super) fn write_private(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    use std::io::Write as _;
    let (path, new) = (folder.join(name), folder.join(format!("{name}.new")));
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&new, &path))
        .with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}
