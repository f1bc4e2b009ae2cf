use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicU32, Ordering};

use kube::config::ExecConfig;

use super::*;
use crate::fake_server::{AfterResponse, access, json, serve};
use crate::metrics::{Code, MetricEvent};
use eviction_core::error::chain;

const SHORT_TIMEOUT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn unsent_request_is_distinguished_from_an_unanswered_one() {
    let (server, _) = serve(|head| match head {
        head if head.contains("/silent") => (Vec::new(), AfterResponse::Hang),
        head if head.contains("/half") => {
            (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec(), AfterResponse::Close)
        }
        head if head.contains("/slow-body") => {
            (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec(), AfterResponse::Hang)
        }
        _ => (Vec::new(), AfterResponse::Close),
    })
    .await;
    let client = Client::new(server).unwrap();
    for (path, expected) in [
        ("/silent", "no response within 300ms"),
        ("/slow-body", "no response within 300ms"),
        ("/half", "the connection was closed before the response"),
        ("/closed", "the connection was closed before the response"),
    ] {
        let error = client.request(Request::get(path).within(SHORT_TIMEOUT)).await.unwrap_err();
        assert!(chain(&error).starts_with(expected), "{path}: {}", chain(&error));
        assert!(error.may_have_been_carried_out(), "{path}");
    }
    // No process listens on this port.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let codes = Arc::new(Mutex::new(Vec::new()));
    let observer_codes = Arc::clone(&codes);
    let observer = Observer::new(move |event| observer_codes.lock().unwrap().push(event));
    let client = Client::observed(access(&url), observer).unwrap();
    let error = client.request(Request::get("/")).await.unwrap_err();
    assert!(chain(&error).contains("Connection refused"), "{}", chain(&error));
    assert!(!error.may_have_been_carried_out() && !error.is_misconfiguration());
    assert_eq!(*codes.lock().unwrap(), [MetricEvent::Request { operation: "other", code: Code::Unsent }]);
}

#[tokio::test]
async fn too_large_response_is_an_error() {
    let body = "x".repeat(64 << 20);
    let (server, _) = serve(move |_| json(200, &body)).await;
    let error = Client::new(server).unwrap().request(Request::get("/")).await.unwrap_err();
    assert!(matches!(error, RequestError::TooLarge { limit: 4_194_304 }), "{error}");
    assert!(error.may_have_been_carried_out());
}

#[tokio::test]
async fn token_is_sent_without_newline_and_read_again_after_401() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "old\n").unwrap();
    let (mut server, seen) =
        serve(|head| json(if head.contains("Bearer new\r\n") { 200 } else { 401 }, "{}")).await;
    server.token_file = Some(file.clone());
    let client = Client::new(server).unwrap();
    assert_eq!(client.request(Request::get("/a")).await.unwrap().status, 401);
    std::fs::write(&file, "new\n").unwrap();
    assert_eq!(client.request(Request::get("/b")).await.unwrap().status, 200);
    assert!(seen.lock().unwrap()[0].contains("authorization: Bearer old\r\n"), "{seen:?}");
    std::fs::remove_file(&file).unwrap();
    client.renew_credentials();
    let error = client.request(Request::get("/c")).await.unwrap_err();
    assert!(!error.may_have_been_carried_out() && error.is_misconfiguration(), "{error}");
    assert!(chain(&error).starts_with("read token "), "{}", chain(&error));
}

/// Returns a plugin that runs this script.
fn plugin(folder: &std::path::Path, script: &str) -> ExecConfig {
    let path = folder.join("plugin");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    ExecConfig {
        api_version: Some("client.authentication.k8s.io/v1".into()),
        command: Some(path.display().to_string()),
        interactive_mode: Some(kube::config::ExecInteractiveMode::Never),
        ..ExecConfig::default()
    }
}

#[tokio::test]
async fn exec_plugin_provides_the_token_or_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (server, seen) = serve(|_| json(200, "{}")).await;
    let with = |script: &str| {
        let mut access = server.clone();
        access.config.auth_info.exec = Some(plugin(folder.path(), script));
        Client::new(access)
    };
    let token = r#"echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t"}}'"#;
    with(token).unwrap().request(Request::get("/")).await.unwrap();
    assert!(seen.lock().unwrap()[0].contains("authorization: Bearer t\r\n"), "{seen:?}");
    for (script, expected) in [
        ("echo 'no session' >&2; exit 3", "plugin fails with exit status: 3: no session"),
        ("echo nonsense", "parse"),
        ("echo '{}'", "status"),
    ] {
        let error = chain(&with(script).unwrap_err());
        assert!(error.starts_with("credentials of ") && error.contains(expected), "{error}");
    }
    let mut access = server.clone();
    access.config.auth_info.exec =
        Some(ExecConfig { command: Some("/nowhere/plugin".into()), ..ExecConfig::default() });
    let error = chain(&Client::new(access).unwrap_err());
    assert!(error.contains("run /nowhere/plugin: No such file"), "{error}");
}

#[tokio::test]
async fn slow_exec_plugin_runs_once_and_does_not_extend_the_timeout_of_requests() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (mut server, _) =
        serve(|head| json(if head.contains("Bearer new\r\n") { 200 } else { 401 }, "{}")).await;
    let script = format!(
        r#"cd {}; echo run >> runs; until [ -e go ] || [ ! -e runs ]; do sleep 0.05; done
        echo '{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{"token":"'"$(cat token)"'"}}}}'"#,
        folder.path().display()
    );
    server.config.auth_info.exec = Some(plugin(folder.path(), &script));
    std::fs::write(file("go"), "").unwrap();
    std::fs::write(file("token"), "old").unwrap();
    let client = Client::new(server).unwrap();
    let runs_once = std::fs::read_to_string(file("runs")).unwrap();
    assert_eq!(client.request(Request::get("/a")).await.unwrap().status, 401);
    std::fs::remove_file(file("go")).unwrap();
    std::fs::write(file("token"), "new").unwrap();
    std::fs::remove_file(file("runs")).unwrap();
    let short = || client.request(Request::get("/b").within(SHORT_TIMEOUT));
    let (first, second) = tokio::join!(short(), short());
    for error in [first.unwrap_err(), second.unwrap_err()] {
        assert!(chain(&error).ends_with("the credentials were not read within 300ms"), "{}", chain(&error));
        assert!(!error.may_have_been_carried_out() && !error.is_misconfiguration());
    }
    std::fs::write(file("go"), "").unwrap();
    assert_eq!(client.request(Request::get("/c").within(Duration::from_secs(60))).await.unwrap().status, 200);
    assert_eq!(std::fs::read_to_string(file("runs")).unwrap(), runs_once);
}

#[tokio::test]
async fn http_proxy_is_used_and_unsupported_schemes_are_rejected() {
    let (proxy, seen) = serve(|_| (b"HTTP/1.1 502 X\r\n\r\n".to_vec(), AfterResponse::Close)).await;
    let mut server = access("https://api.example.com:6443");
    server.config.proxy_url = Some(proxy.config.cluster_url.clone());
    let error = Client::new(server.clone()).unwrap().request(Request::get("/")).await.unwrap_err();
    assert!(!error.may_have_been_carried_out(), "{error}");
    assert!(seen.lock().unwrap()[0].starts_with("CONNECT api.example.com:6443 "), "{seen:?}");
    server.config.proxy_url = Some("ftp://h".parse().unwrap());
    let error = chain(&Client::new(server).unwrap_err());
    assert!(error.contains("unsupported protocol"), "{error}");
}

#[tokio::test]
async fn the_server_is_unreachable_after_failures_and_reachable_after_a_response() {
    let failures = AtomicU32::new(0);
    let (server, _) = serve(move |_| match failures.fetch_add(1, Ordering::Relaxed) {
        0..5 => json(503, "{}"),
        _ => json(200, "{}"),
    })
    .await;
    let client = Client::new(server).unwrap();
    let mut reachable = client.reachable();
    let prober = client.clone();
    tokio::spawn(async move { prober.probe("/readyz".to_owned()).await });
    client.check_reachability();
    let within = Duration::from_secs(60);
    timeout(within, reachable.wait_for(|reachable| !reachable)).await.unwrap().unwrap();
    timeout(within, reachable.wait_for(|reachable| *reachable)).await.unwrap().unwrap();
}
