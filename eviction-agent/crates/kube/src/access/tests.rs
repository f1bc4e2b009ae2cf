use std::path::Path;

use super::*;

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";

fn kubeconfig(folder: &Path, cluster: &str, user: &str) -> Result<Access, AccessError> {
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
    assert_eq!(access.token_file, Some(folder.path().join("token")));
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
    let address = KubeletAddress {
        host: "fd00::1".into(),
        port: 10250,
        certificate_authority: None,
        server_name: Some("n1".into()),
        insecure: false,
    };
    let kubelet = access.to_kubelet(address.clone()).unwrap();
    assert_eq!(kubelet.server().to_string(), "https://[fd00::1]:10250");
    assert_eq!(kubelet.config.root_cert_file, access.config.root_cert_file);
    assert_eq!(kubelet.token_file, access.token_file);
    let other = Some(folder.path().join("absent"));
    let error = access.to_kubelet(KubeletAddress { certificate_authority: other, ..address }).unwrap_err();
    assert!(error.to_string().starts_with("read certificate authority "), "{error}");
}
