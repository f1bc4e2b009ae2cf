use std::sync::atomic::{AtomicU32, Ordering};

use kube::config::ExecConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::access::TokenFile;
use crate::fake_server::{AfterResponse, access, json, serve};
use crate::metrics::MetricEvent;
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
    assert_eq!(*codes.lock().unwrap(), [MetricEvent::Request { operation: "other", code: Err("unsent") }]);
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
    server.token = Some(Arc::new(TokenFile::new(file.clone())));
    let client = Client::new(server).unwrap();
    assert_eq!(client.request(Request::get("/a")).await.unwrap().status(), 401);
    std::fs::write(&file, "new\n").unwrap();
    assert_eq!(client.request(Request::get("/b")).await.unwrap().status(), 200);
    assert!(seen.lock().unwrap()[0].contains("authorization: Bearer old\r\n"), "{seen:?}");
    std::fs::remove_file(&file).unwrap();
    client.record_status("other", Ok(401));
    let error = client.request(Request::get("/c")).await.unwrap_err();
    assert!(!error.may_have_been_carried_out() && error.is_misconfiguration(), "{error}");
    assert!(chain(&error).starts_with("read token "), "{}", chain(&error));
}

/// Returns a plugin that runs this script. The shell reads it, since a file that a process forked meanwhile has
/// open for writing cannot be executed.
fn plugin(folder: &std::path::Path, script: &str) -> ExecConfig {
    let path = folder.join("plugin");
    std::fs::write(&path, script).unwrap();
    ExecConfig {
        api_version: Some("client.authentication.k8s.io/v1".into()),
        command: Some("/bin/sh".into()),
        args: Some(vec![path.display().to_string()]),
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
        ("echo 'no session' >&2; exit 3", "/bin/sh fails with exit status: 3: no session"),
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
    assert_eq!(client.request(Request::get("/a")).await.unwrap().status(), 401);
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
    assert_eq!(
        client.request(Request::get("/c").within(Duration::from_secs(60))).await.unwrap().status(),
        200
    );
    assert_eq!(std::fs::read_to_string(file("runs")).unwrap(), runs_once);
}

#[tokio::test]
async fn expired_token_is_renewed_by_one_exec_plugin_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (mut server, seen) = serve(|_| json(200, "{}")).await;
    // kube runs the plugin again for each request, since the token has expired.
    let script = format!(
        r#"cd {}; echo run >> runs; until [ -e go ] || [ ! -e runs ]; do sleep 0.05; done; [ ! -e fail ] || exit 1
        echo '{{"status": {{"token": "t", "expirationTimestamp": "2000-01-01T00:00:00Z"}}}}'"#,
        folder.path().display()
    );
    server.origin = folder.path().display().to_string();
    server.config.auth_info.exec = Some(plugin(folder.path(), &script));
    std::fs::write(file("go"), "").unwrap();
    let client = Client::new(server).unwrap();
    std::fs::remove_file(file("go")).unwrap();
    std::fs::write(file("runs"), "").unwrap();
    for _ in 0..3 {
        let error = client.request(Request::get("/a").within(SHORT_TIMEOUT)).await.unwrap_err();
        assert!(matches!(error, RequestError::Deadline { .. }), "{error}");
    }
    std::fs::write(file("go"), "").unwrap();
    assert_eq!(
        client.request(Request::get("/b").within(Duration::from_secs(60))).await.unwrap().status(),
        200
    );
    let runs = || std::fs::read_to_string(file("runs")).unwrap().lines().count();
    assert_eq!(runs(), 2);
    // A plugin that fails does not affect later requests.
    let request = async || client.request(Request::get("/c").within(Duration::from_secs(60))).await;
    std::fs::write(file("fail"), "").unwrap();
    assert!(!request().await.unwrap_err().may_have_been_carried_out());
    std::fs::remove_file(file("fail")).unwrap();
    assert_eq!(request().await.unwrap().status(), 200);
    assert_eq!(runs(), 4);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|head| head.contains("authorization: Bearer t\r\n")), "{seen:?}");
}

#[tokio::test]
async fn proxy_is_used_with_its_user_and_unsupported_schemes_are_rejected() {
    let (proxy, seen) = serve(|_| (b"HTTP/1.1 502 X\r\n\r\n".to_vec(), AfterResponse::Close)).await;
    let mut server = access("https://api.example.com:6443");
    let address = proxy.authority();
    for (url, header) in [
        (format!("http://{address}"), ""),
        (format!("http://alice:a%40b@{address}"), "proxy-authorization: Basic YWxpY2U6YUBi\r\n"),
    ] {
        server.config.proxy_url = Some(url.parse().unwrap());
        let error = Client::new(server.clone()).unwrap().request(Request::get("/")).await.unwrap_err();
        assert!(!error.may_have_been_carried_out(), "{error}");
        let head = seen.lock().unwrap().pop().unwrap().to_lowercase();
        assert!(head.starts_with("connect api.example.com:6443 "), "{head}");
        assert!(
            head.contains(&header.to_lowercase()) && head.contains("proxy-auth") != header.is_empty(),
            "{head}"
        );
    }
    for url in ["ftp://h", "https://h"] {
        server.config.proxy_url = Some(url.parse().unwrap());
        let error = chain(&Client::new(server.clone()).unwrap_err());
        assert!(error.contains("unsupported protocol"), "{error}");
    }
}

/// A proxy with a password, which connects every request to one server.
#[tokio::test]
async fn requests_pass_a_socks_proxy() {
    let (server, seen) = serve(|_| json(200, "{}")).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut through = access("http://api.example.com:6443");
    let url = format!("socks5://alice:secret@{}", listener.local_addr().unwrap());
    through.config.proxy_url = Some(url.parse().unwrap());
    let proxy = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut received = Vec::new();
        for (length, response) in [(3, &[5, 2][..]), (14, &[1, 0]), (22, &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])] {
            let mut message = vec![0; length];
            client.read_exact(&mut message).await.unwrap();
            client.write_all(response).await.unwrap();
            received.extend(message);
        }
        let mut upstream = TcpStream::connect(server.authority()).await.unwrap();
        let _ended = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
        received
    });
    assert_eq!(Client::new(through).unwrap().request(Request::get("/a")).await.unwrap().status(), 200);
    assert!(seen.lock().unwrap()[0].contains("host: api.example.com:6443\r\n"), "{seen:?}");
    let expected =
        [&[5, 1, 2, 1, 5][..], b"alice\x06secret", &[5, 1, 0, 3, 15], b"api.example.com", &[25, 43]];
    assert_eq!(proxy.await.unwrap(), expected.concat());
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
    let mut reachability = client.reachability();
    let prober = client.clone();
    tokio::spawn(async move { prober.probe("/readyz".to_owned()).await });
    client.check_reachability();
    let within = Duration::from_secs(60);
    for expected in [ApiReachability::Unreachable, ApiReachability::Reachable] {
        timeout(within, reachability.wait_for(|it| *it == expected)).await.unwrap().unwrap();
    }
}
