use std::path::Path;

use super::super::Access;

const GOOD: &str = "
apiVersion: v1
kind: Config
current-context: node
contexts:
- name: node
  context: {cluster: here, user: me, namespace: ignored}
- name: other
  context: {cluster: there}
clusters:
- name: here
  cluster:
    server: https://api.example:6443/base/
    certificate-authority: ca.crt
    tls-server-name: kubernetes
- name: there
  cluster: {server: 5, odd: true}
users:
- name: me
  user: {tokenFile: secrets/token, token: older}
";

fn load(text: &str) -> Result<Access, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    std::fs::write(&path, text).unwrap();
    Access::find(Some(&path))
        .map_err(|error| error.to_string().replace(&folder.path().display().to_string(), "DIR"))
}

#[test]
fn the_current_context_is_followed() {
    let access = load(GOOD).unwrap();
    assert_eq!(access.server().to_string(), "https://api.example:6443/base");
    assert_eq!(access.server.certified_as.as_deref(), Some("kubernetes"));
    assert!(access.identity.is_none());
    assert!(access.ca.to_string().ends_with("/ca.crt"), "{}", access.ca);
    assert!(access.token.unwrap().to_string().ends_with("/secrets/token"));
    assert!(access.origin.to_string().ends_with("config, context node"), "{}", access.origin);
}

#[test]
fn what_is_given_in_place_comes_before_files() {
    let text = GOOD
        .replace(
            "certificate-authority: ca.crt",
            "certificate-authority: ca.crt\n    certificate-authority-data: 'Q0EK'",
        )
        .replace(
            "{tokenFile: secrets/token, token: older}",
            "{client-certificate-data: Qwo=, client-key-data: Swo=}",
        );
    let access = load(&text).unwrap();
    assert_eq!(access.ca.read("CA").unwrap(), b"CA\n");
    let (certificate, key) = access.identity.unwrap();
    assert_eq!(certificate.read("certificate").unwrap(), b"C\n");
    assert_eq!(key.read("key").unwrap(), b"K\n");
    assert!(access.token.is_none());
}

#[test]
fn secrets_are_never_shown() {
    let text = GOOD.replace("{tokenFile: secrets/token, token: older}", "{token: s3cret}");
    let access = load(&text).unwrap();
    assert!(!format!("{access:?}").contains("s3cret"));
    assert_eq!(access.token.unwrap().read("token").unwrap(), b"s3cret");
}

#[test]
fn errors_name_the_field() {
    let user = "{tokenFile: secrets/token, token: older}";
    for (from, to, error) in [
        ("current-context: node", "", "current-context: is missing"),
        ("current-context: node", "current-context: nowhere", "contexts[nowhere]: is not in the file"),
        ("cluster: here", "cluster: gone", "clusters[gone]: is not in the file"),
        ("user: me", "user: you", "users[you]: is not in the file"),
        ("cluster: here, ", "", "contexts[node]: missing field `cluster`"),
        (
            "https://api",
            "http://api",
            "clusters[here].cluster.server: `http://api.example:6443/base/` does not begin with https://",
        ),
        (
            "https://api.example:6443/base/",
            "nonsense",
            "clusters[here].cluster.server: `nonsense` does not begin with https://",
        ),
        (
            "https://api",
            "https://u:p@api",
            "clusters[here].cluster.server: has more than a host, a port and a path",
        ),
        (
            "certificate-authority: ca.crt",
            "proxy-url: http://p",
            "clusters[here].cluster.proxy-url: not supported",
        ),
        ("certificate-authority: ca.crt", "", "clusters[here].cluster.certificate-authority: is missing"),
        (
            "certificate-authority: ca.crt",
            "certificate-authority-data: '*'",
            "clusters[here].cluster.certificate-authority-data: not base64: Invalid symbol 42, offset 0.",
        ),
        (user, "{client-certificate: c}", "users[me].user.client-key: is missing"),
        (user, "{client-key: k}", "users[me].user.client-certificate: is missing"),
        (
            user,
            "{exec: {command: aws}}",
            "users[me].user.exec: not supported: give a token, a tokenFile or a client-certificate",
        ),
        (user, "{token: 5}", "users[me].token: invalid type: integer `5`, expected a string"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        assert_eq!(load(&text).unwrap_err(), format!("kubeconfig DIR/config: {error}"), "{to}");
    }
    let insecure = GOOD.replacen("certificate-authority: ca.crt", "insecure-skip-tls-verify: true", 1);
    assert!(load(&insecure).unwrap_err().contains("insecure-skip-tls-verify: not supported"));
    assert!(load("[").unwrap_err().contains("file: not YAML"));
}

#[test]
fn a_file_that_is_not_there_is_said() {
    let error = Access::find(Some(Path::new("/nowhere/kubeconfig"))).unwrap_err();
    assert_eq!(error.to_string(), "read kubeconfig /nowhere/kubeconfig");
}
