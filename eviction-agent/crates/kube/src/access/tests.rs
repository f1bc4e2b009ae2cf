use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, crypto};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::fake_server::{json, serve};
use crate::{Client, list_nodes};

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";

fn kubeconfig(folder: &Path, cluster: &str, user: &str) -> Result<Access, RequestError> {
    let path = folder.join("config");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    Access::find(Some(&path))
}

#[test]
fn kubeconfig_yields_server_and_credentials() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.crt"), CERTIFICATE).unwrap();
    let cluster =
        "server: 'https://[fd00::1]:6443/base/', certificate-authority: ca.crt, tls-server-name: api";
    let access = kubeconfig(folder.path(), cluster, "tokenFile: token, token: other").unwrap();
    assert_eq!(access.server().to_string(), "https://[fd00::1]:6443/base");
    assert_eq!(access.authority(), "[fd00::1]:6443");
    let origin = format!("kubeconfig {}, context c", folder.path().join("config").display());
    assert_eq!(access.origin().to_string(), origin);
    // Relative paths start at the kubeconfig's directory.
    assert_eq!(access.token.unwrap().path, folder.path().join("token"));
    assert!(access.config.auth_info.token.is_none(), "the file goes first");
    assert_eq!(access.config.root_cert_file, Some(folder.path().join("ca.crt")));
    assert_eq!(access.config.tls_server_name.as_deref(), Some("api"));
}

#[test]
fn kubeconfig_errors_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(folder.path().join("empty.crt"), "no certificate\n").unwrap();
    std::fs::write(folder.path().join("ca.crt"), CERTIFICATE).unwrap();
    let file = path("config");
    let fails = |cluster: &str, user: &str, expected: &[&str]| {
        let error = chain(&kubeconfig(folder.path(), cluster, user).unwrap_err());
        for expected in expected {
            assert!(error.contains(expected), "{error}");
        }
    };
    let server = "server: 'https://h'";
    let ca = format!("{server}, certificate-authority: ca.crt");
    fails("server: 'http://h'", "", &[&file, "does not begin with https://"]);
    fails("server: 'https://h h'", "", &[&file, "failed to parse cluster url"]);
    fails("certificate-authority: ca.crt", "", &[&file, "cluster url is missing"]);
    let absent = format!("{server}, certificate-authority: absent.crt");
    fails(&absent, "", &["read certificate authority ", &path("absent.crt"), "No such file"]);
    let empty = format!("{server}, certificate-authority: empty.crt");
    fails(&empty, "", &["certificate authority of ", &path("empty.crt"), "no PEM certificate is in it"]);
    fails(
        &format!("{server}, certificate-authority-data: bm8="),
        "",
        &[&file, "no PEM certificate is in it"],
    );
    fails(&format!("{server}, certificate-authority-data: '*'"), "", &[&file, "certificate authority: "]);
    fails(&format!("{server}, insecure-skip-tls-verify: true"), "", &[&file, "insecure-skip-tls-verify"]);
    let token = kubeconfig(folder.path(), &ca, "tokenFile: absent").unwrap();
    let error = chain(&crate::Client::new(token).unwrap_err());
    assert!(error.contains("read token ") && error.contains(&path("absent")), "{error}");
    let error = Access::find(Some(Path::new("/nowhere/kubeconfig"))).unwrap_err();
    assert!(chain(&error).starts_with("read kubeconfig /nowhere/kubeconfig: No such file"), "{error}");
    for (text, expected) in [
        ("{", "failed to parse"),
        ("current-context: x", "load current context: x"),
        ("a: 1", "current-context: is missing"),
    ] {
        std::fs::write(folder.path().join("odd"), text).unwrap();
        let error = chain(&Access::find(Some(&folder.path().join("odd"))).unwrap_err());
        assert!(error.contains(expected) && error.contains(&path("odd")), "{error}");
    }
}

#[test]
fn pod_environment_yields_the_server_address() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.crt"), CERTIFICATE).unwrap();
    let with = |host: Option<&str>, port: Option<&str>| {
        let variable = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => host.map(str::to_owned),
            _ => port.map(str::to_owned),
        };
        in_cluster(variable, folder.path())
            .map(|access| access.server().to_string())
            .map_err(|error| error.to_string())
    };
    assert_eq!(with(Some("10.96.0.1"), Some("443")), Ok("https://10.96.0.1:443".into()));
    assert_eq!(with(Some("fd00::1"), Some("6443")), Ok("https://[fd00::1]:6443".into()));
    let absent = "no kubeconfig is given, and KUBERNETES_SERVICE_HOST is not set as it is in a pod: it is empty or absent";
    assert_eq!(with(None, None), Err(absent.into()));
    assert_eq!(with(Some(""), Some("443")), Err(absent.into()));
    for port in ["x", "0", "70000", "-1"] {
        let error = with(Some("h"), Some(port)).unwrap_err();
        assert!(error.ends_with("it is no port"), "{error}");
    }
    assert!(with(Some("a b"), Some("443")).is_err());
}

#[test]
fn kubelet_access_uses_the_same_credentials() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.crt"), CERTIFICATE).unwrap();
    let access =
        kubeconfig(folder.path(), "server: 'https://h', certificate-authority: ca.crt", "tokenFile: t")
            .unwrap();
    let kubelet = access.to_kubelet("fd00::1", 10250).unwrap().with_server_name("n1");
    assert_eq!(kubelet.server().to_string(), "https://[fd00::1]:10250");
    assert_eq!(kubelet.config.root_cert_file, access.config.root_cert_file);
    assert_eq!(kubelet.token.as_ref().unwrap().path, access.token.unwrap().path);
    assert_eq!(kubelet.config.tls_server_name.as_deref(), Some("n1"));
    let error = kubelet.with_certificate_authority(folder.path().join("absent")).unwrap_err();
    assert!(error.to_string().starts_with("read certificate authority "), "{error}");
}

/// The rest of a kubeconfig, as `aws eks update-kubeconfig` writes it. Each test adds a user.
const CONTEXT: &str = "apiVersion: v1
clusters:
- cluster:
    server: https://api.example.com:6443
  name: arn:aws:eks:eu-west-1:1:cluster/c
contexts:
- context:
    cluster: arn:aws:eks:eu-west-1:1:cluster/c
    namespace: kube-system
    user: u
  name: c
current-context: c
kind: Config
preferences: {}
users:
- name: u
  user:
";

/// A plugin whose token shows its arguments, a variable of the kubeconfig and the server that it was given.
const PLUGIN: &str = r#"[ "$1" != fail ] || { echo 'no session' >&2; exit 3; }
server=$(printf %s "$KUBERNETES_EXEC_INFO" | grep -o '"server":"[^"]*"' | tr -dc 'a-z0-9:/.')
echo '{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1",
  "status": {"token": "'"$*|$AWS_PROFILE|$server"'", "expirationTimestamp": "2999-01-01T00:00:00Z"}}'
"#;

/// An OIDC token that has expired.
const EXPIRED: &str = "e30.eyJleHAiOjF9.x";

/// Lists the nodes as `eviction-agent cleanup --all --kubeconfig FILE` does, but with a server without TLS.
/// Returns the head of the request.
async fn list_with(folder: &Path, user: &str) -> Result<String, String> {
    let (server, seen) = serve(|_| json(200, r#"{"metadata": {}, "items": []}"#)).await;
    let (path, plugin) = (folder.join("config"), folder.join("plugin"));
    std::fs::write(&plugin, PLUGIN).unwrap();
    let user = user.replace("PLUGIN", &plugin.display().to_string());
    std::fs::write(&path, format!("{CONTEXT}{user}")).unwrap();
    let mut access = Access::find(Some(&path)).map_err(|error| chain(&error))?;
    access.config.cluster_url = server.config.cluster_url;
    access.config.proxy_url = None;
    let client = Client::new(access).map_err(|error| chain(&error))?;
    list_nodes(&client).await.map_err(|error| chain(&error))?;
    let seen = seen.lock().unwrap();
    Ok(seen.concat())
}

/// Users as cloud providers write them. `PLUGIN` is replaced.
const EKS: &str = "    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      args:
      - PLUGIN
      - --region
      - eu-west-1
      command: sh
      env:
      - name: AWS_PROFILE
        value: prod
      interactiveMode: IfAvailable
      provideClusterInfo: false
";

const GKE: &str = "    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      args: [PLUGIN]
      command: sh
      installHint: Install gke-gcloud-auth-plugin for use with kubectl by following
        https://cloud.google.com/kubernetes-engine/docs
      provideClusterInfo: true
";

const AKS: &str = "    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      args: [PLUGIN, get-token, --login, azurecli]
      command: sh
      env: null
      provideClusterInfo: false
";

/// The token expires in the year 3000.
const OIDC: &str = "    auth-provider:
      config:
        client-id: kubernetes
        client-secret: s
        id-token: e30.eyJleHAiOjMyNTAzNjgwMDAwfQ.x
        idp-issuer-url: https://idp.example.com
        refresh-token: r
      name: oidc
";

#[tokio::test]
async fn each_kind_of_user_is_authorized() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "of-a-file\n").unwrap();
    let impersonation = "    token: t\n    as: alice\n    as-uid: '7'\n    as-groups: [dev, ops]\n    as-user-extra:\n      reason: [on-call]\n";
    for (user, headers) in [
        (EKS, &["authorization: Bearer --region eu-west-1|prod|"][..]),
        (GKE, &["authorization: Bearer ||server:https://api.example.com:6443"]),
        (AKS, &["authorization: Bearer get-token --login azurecli||"]),
        (OIDC, &["authorization: Bearer e30.eyJleHAiOjMyNTAzNjgwMDAwfQ.x"]),
        ("    username: admin\n    password: secret\n", &["authorization: Basic YWRtaW46c2VjcmV0"]),
        ("    token: t\n", &["authorization: Bearer t"]),
        ("    tokenFile: token\n", &["authorization: Bearer of-a-file"]),
        (
            impersonation,
            &[
                "authorization: Bearer t",
                "impersonate-user: alice",
                "impersonate-uid: 7",
                "impersonate-group: dev",
                "impersonate-group: ops",
                "impersonate-extra-reason: on-call",
            ],
        ),
        ("    {}\n", &[]),
    ] {
        let head = list_with(folder.path(), user).await.unwrap();
        let found: Vec<_> = head
            .lines()
            .filter(|line| line.starts_with("authorization") || line.starts_with("impersonate"))
            .collect();
        let sorted = |mut lines: Vec<_>| {
            lines.sort_unstable();
            lines
        };
        assert_eq!(sorted(found), sorted(headers.to_vec()), "{user}");
        assert!(head.starts_with("GET /api/v1/nodes?limit=50 "), "{head}");
    }
}

#[tokio::test]
async fn unusable_user_is_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let provider = |name: &str, token: &str| {
        format!("    auth-provider: {{name: {name}, config: {{id-token: {token}, access-token: t}}}}\n")
    };
    let failing = "    exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, args: [PLUGIN, fail], interactiveMode: Never}\n";
    let absent = "    exec: {apiVersion: client.authentication.k8s.io/v1, command: /nowhere/plugin}\n";
    let in_file = format!("kubeconfig {}", folder.path().join("config").display());
    let removed = |name: &str| {
        format!("{in_file}: auth-provider: `{name}` is not supported, nor by kubectl: use an exec plugin")
    };
    let context = format!("credentials of {in_file}, context c: ");
    let expired =
        "failed OIDC: ID token expired and refreshing is not possible: missing field idp-issuer-url";
    for (user, expected) in [
        (&*provider("gcp", "t"), &*removed("gcp")),
        (&provider("azure", "t"), &removed("azure")),
        (&provider("oidc", EXPIRED), expired),
        (failing, &format!("{context}sh fails with exit status: 3: no session")),
        (absent, &format!("{context}run /nowhere/plugin: No such file")),
        ("    token: \"a\\nb\"\n", &format!("{in_file}: token: has characters that no token has")),
        ("    {client-certificate-data: '*', client-key-data: '*'}\n", "failed to load client certificate: "),
    ] {
        let error = list_with(folder.path(), user).await.unwrap_err();
        assert!(error.contains(expected), "{user}: {error}");
    }
}

#[tokio::test]
async fn client_certificate_is_presented_to_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let (mut params, key) = (CertificateParams::default(), KeyPair::generate().unwrap());
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let [(server, server_key), (client, client_key)] = ["127.0.0.1", "agent"].map(|name| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap(), key)
    });
    let files =
        [("ca.crt", ca.pem()), ("agent.crt", client.pem()), ("agent.key", client_key.serialize_pem())];
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let mut roots = RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let provider = Arc::new(crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(vec![server.der().clone()], server_key.into())
        .unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let presented = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(&json(200, r#"{"metadata": {}, "items": []}"#).0).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    });
    let cluster = format!("server: '{url}', certificate-authority: ca.crt");
    let user = "client-certificate: agent.crt, client-key: agent.key";
    let mut access = kubeconfig(folder.path(), &cluster, user).unwrap();
    access.config.proxy_url = None;
    list_nodes(&Client::new(access).unwrap()).await.unwrap();
    assert_eq!(presented.await.unwrap(), *client.der());
}

#[test]
fn proxy_is_that_of_the_kubeconfig_or_of_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    let proxy = |of_cluster: &str, https_proxy: &'static str, no_proxy: &'static str| {
        let text = CONTEXT.replace("  name: arn", &format!("{of_cluster}  name: arn"));
        std::fs::write(&path, format!("{text}    token: t\n")).unwrap();
        let variable = |name: &str| match name {
            "HTTPS_PROXY" => Some(https_proxy.to_owned()),
            "no_proxy" => Some(no_proxy.to_owned()),
            _ => None,
        };
        let access = from_kubeconfig(&path, variable).unwrap();
        access.config.proxy_url.map(|url| url.to_string().trim_end_matches('/').to_owned())
    };
    let of_cluster = "    proxy-url: socks5://p:1080\n";
    for (of_cluster, https_proxy, no_proxy, expected) in [
        ("", "", "", None),
        (of_cluster, "http://q:3128", "*", Some("socks5://p:1080")),
        ("", "http://q:3128", "", Some("http://q:3128")),
        ("", "q:3128", "localhost, 10.0.0.0/8", Some("http://q:3128")),
        // The proxy itself is no exception.
        ("", "http://q:3128", "q", Some("http://q:3128")),
        ("", "http://q:3128", "example.com", None),
        ("", "http://q:3128", ".example.com", None),
        ("", "http://q:3128", "other.com, api.example.com", None),
        ("", "http://q:3128", "*", None),
        // Not supported, which is an error when the client is created.
        ("", "https://q:3128", "", Some("https://q:3128")),
    ] {
        let found = proxy(of_cluster, https_proxy, no_proxy);
        assert_eq!(found.as_deref(), expected, "{of_cluster} {https_proxy} {no_proxy}");
    }
}

#[test]
fn token_is_read_again_after_a_minute_and_after_rejection() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "one\n").unwrap();
    let token = TokenFile::new(path.clone());
    let start = Instant::now();
    assert_eq!(token.header(start).unwrap(), "Bearer one");
    std::fs::write(&path, "two").unwrap();
    assert_eq!(token.header(start + Duration::from_secs(59)).unwrap(), "Bearer one");
    assert_eq!(token.header(start + Duration::from_secs(60)).unwrap(), "Bearer two");
    std::fs::write(&path, "three").unwrap();
    token.invalidate();
    let header = token.header(start + Duration::from_secs(61)).unwrap();
    assert_eq!(header, "Bearer three");
    assert!(!format!("{header:?}{token:?}").contains("three"));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(token.header(start + Duration::from_secs(200)).unwrap(), "Bearer three");
    token.invalidate();
    assert!(token.header(start).is_err());
}

#[test]
fn invalid_token_file_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    for bytes in [&b" \n"[..], b"a\nb", b"\x00"] {
        std::fs::write(&path, bytes).unwrap();
        let error = TokenFile::new(path.clone()).header(Instant::now()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("token of {}: ", path.display())), "{error}");
    }
}
