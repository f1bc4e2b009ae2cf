//! A kubeconfig, as far as an agent on a node can follow it.
//!
//! What would be needed and is not supported (exec plugins, proxies, skipping the check of the
//! server's certificate) is refused by name instead of leading to a request that fails.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde::Deserialize;
use serde_json::Value;

use super::access::{Access, Origin, Server};
use super::error::AccessError;
use super::material::Material;
use eviction_config::yaml;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    current_context: Option<String>,
    #[serde(default)]
    contexts: Option<Vec<Named>>,
    #[serde(default)]
    clusters: Option<Vec<Named>>,
    #[serde(default)]
    users: Option<Vec<Named>>,
}

/// The parts are read only when the context leads to them: another cluster's may be odd.
#[derive(Deserialize)]
struct Named {
    name: String,
    #[serde(alias = "context", alias = "cluster", alias = "user", default)]
    value: Value,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    #[serde(default)]
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    tls_server_name: Option<String>,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    proxy_url: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    exec: Option<Value>,
    auth_provider: Option<Value>,
    username: Option<String>,
    #[serde(rename = "as")]
    impersonate: Option<String>,
}

/// Reads the file and follows its current context.
pub(super) fn load(path: &Path) -> Result<Access, AccessError> {
    let bytes = Material::File(path.to_owned()).read("kubeconfig")?;
    let reader = Reader { path };
    let text = String::from_utf8(bytes).map_err(|error| reader.wrong("file", error))?;
    let file: File = yaml::from_str(&text).map_err(|error| reader.wrong("file", error))?;
    reader.follow(file)
}

struct Reader<'a> {
    path: &'a Path,
}

impl Reader<'_> {
    fn follow(&self, file: File) -> Result<Access, AccessError> {
        let File { current_context, contexts, clusters, users } = file;
        let current = current_context.filter(|name| !name.is_empty());
        let current = current.ok_or_else(|| self.wrong("current-context", "is missing"))?;
        let context: Context = self.part("contexts", &current, contexts)?;
        let Cluster {
            server,
            tls_server_name,
            certificate_authority,
            certificate_authority_data,
            insecure_skip_tls_verify,
            proxy_url,
        } = self.part("clusters", &context.cluster, clusters)?;
        let at = |field: &str| format!("clusters[{}].cluster.{field}", context.cluster);
        if insecure_skip_tls_verify {
            let why = "not supported: who evicts must know whom he asks; name the certificate-authority";
            return Err(self.wrong(at("insecure-skip-tls-verify"), why));
        }
        if proxy_url.is_some_and(|url| !url.is_empty()) {
            return Err(self.wrong(at("proxy-url"), "not supported"));
        }
        let mut server = parse_server(&server).map_err(|why| self.wrong(at("server"), why))?;
        server.certified_as = tls_server_name.filter(|name| !name.is_empty());
        let ca = self
            .material(&at("certificate-authority"), certificate_authority, certificate_authority_data)?
            .ok_or_else(|| self.wrong(at("certificate-authority"), "is missing"))?;
        let user = match context.user.as_str() {
            "" => User::default(),
            name => self.part("users", name, users)?,
        };
        let (identity, token) = self.user(&context.user, user)?;
        let origin = Origin::Kubeconfig { path: self.path.to_owned(), context: current };
        Ok(Access { server, ca, identity, token, origin, insecure: false })
    }

    #[expect(clippy::type_complexity, reason = "a certificate with its key, and a token")]
    fn user(
        &self,
        name: &str,
        user: User,
    ) -> Result<(Option<(Material, Material)>, Option<Material>), AccessError> {
        let User {
            client_certificate,
            client_certificate_data,
            client_key,
            client_key_data,
            token,
            token_file,
            exec,
            auth_provider,
            username,
            impersonate,
        } = user;
        let at = |field: &str| format!("users[{name}].user.{field}");
        for (field, given) in [
            ("exec", exec.is_some_and(|exec| !exec.is_null())),
            ("auth-provider", auth_provider.is_some_and(|provider| !provider.is_null())),
            ("username", username.is_some()),
            ("as", impersonate.is_some()),
        ] {
            if given {
                let why = "not supported: give a token, a tokenFile or a client-certificate";
                return Err(self.wrong(at(field), why));
            }
        }
        let certificate =
            self.material(&at("client-certificate"), client_certificate, client_certificate_data)?;
        let key = self.material(&at("client-key"), client_key, client_key_data)?;
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(self.wrong(at("client-key"), "is missing")),
            (None, Some(_)) => return Err(self.wrong(at("client-certificate"), "is missing")),
        };
        let token = match (token_file, token.filter(|token| !token.is_empty())) {
            (Some(file), _) => Some(Material::File(self.beside(file))),
            (None, Some(token)) => {
                Some(Material::Given { field: self.field(&at("token")), bytes: token.into_bytes() })
            }
            (None, None) => None,
        };
        Ok((identity, token))
    }

    /// The part of that name, which must be there.
    fn part<T: serde::de::DeserializeOwned>(
        &self,
        list: &str,
        name: &str,
        parts: Option<Vec<Named>>,
    ) -> Result<T, AccessError> {
        let at = format!("{list}[{name}]");
        let part = parts.into_iter().flatten().find(|part| part.name == name);
        let part = part.ok_or_else(|| self.wrong(&at, "is not in the file"))?;
        serde_path_to_error::deserialize(part.value).map_err(|error| {
            let field = error.path().to_string();
            self.wrong(if field == "." { at } else { format!("{at}.{field}") }, error.into_inner())
        })
    }

    /// Given in place, else in a file.
    fn material(
        &self,
        field: &str,
        file: Option<PathBuf>,
        data: Option<String>,
    ) -> Result<Option<Material>, AccessError> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let field = format!("{field}-data");
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(data.split_ascii_whitespace().collect::<String>())
                .map_err(|error| self.wrong(&field, format!("not base64: {error}")))?;
            return Ok(Some(Material::Given { field: self.field(&field), bytes }));
        }
        let file = file.filter(|file| !file.as_os_str().is_empty());
        Ok(file.map(|file| Material::File(self.beside(file))))
    }

    /// Relative paths start at the kubeconfig.
    fn beside(&self, file: PathBuf) -> PathBuf {
        self.path.parent().map_or_else(|| file.clone(), |folder| folder.join(&file))
    }

    fn field(&self, at: &str) -> String {
        format!("kubeconfig {}: {at}", self.path.display())
    }

    fn wrong(&self, at: impl Into<String>, why: impl ToString) -> AccessError {
        AccessError::Kubeconfig { path: self.path.to_owned(), at: at.into(), why: why.to_string() }
    }
}

/// Reads `https://HOST[:PORT][/BASE]`.
fn parse_server(text: &str) -> Result<Server, String> {
    let uri: hyper::Uri = text.parse().map_err(|error| format!("`{text}` is no URL: {error}"))?;
    if uri.scheme_str() != Some("https") {
        return Err(format!("`{text}` does not begin with https://"));
    }
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| format!("`{text}` has no host"))?;
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) || uri.query().is_some() {
        // Not shown: it may be a password.
        return Err("has more than a host, a port and a path".to_owned());
    }
    Ok(Server {
        host: host.trim_matches(['[', ']']).to_owned(),
        port: uri.port_u16().unwrap_or(443),
        base: uri.path().trim_end_matches('/').to_owned(),
        certified_as: None,
    })
}

#[cfg(test)]
mod tests;
