//! A fake kubelet that serves `/configz` and `/stats/summary` over TLS, to clients that the API server allows.
//!
//! It authenticates clients by a TokenReview, and authorizes them by SubjectAccessReviews, in the order of
//! `pkg/kubelet/server/auth.go: GetRequestAttributes`. A real kubelet is used in `tests/tests/kubelet`.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::background::Background;
use super::{Client, Cluster, tls};

/// A fake kubelet. It ends when it is dropped.
#[derive(Debug)]
pub struct FakeKubelet {
    shared: Arc<Shared>,
    port: u16,
    _background: Background,
}

#[derive(Debug)]
struct Shared {
    api: Client,
    node: String,
    configuration: Value,
    summary: Mutex<Summary>,
    statuses: Mutex<Vec<u16>>,
}

#[derive(Debug, Default)]
struct Summary {
    value: Value,
    /// When it was sent.
    sent: Vec<Instant>,
}

impl FakeKubelet {
    /// Starts a kubelet of that node, which runs with this configuration.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(cluster: &Cluster, node: &str, configuration: &Value) -> Result<Self> {
        let acceptor = tls::acceptor(&cluster.authority.server()?)?;
        let shared = Arc::new(Shared {
            api: cluster.admin().clone(),
            node: node.to_owned(),
            configuration: configuration.clone(),
            summary: Mutex::default(),
            statuses: Mutex::default(),
        });
        let background = Background::start()?;
        let listener = background
            .run(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .context("find a port for a kubelet")?;
        let port = listener.local_addr().context("read a kubelet's port")?.port();
        let state = Arc::clone(&shared);
        background.handle().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, state) = (acceptor.clone(), Arc::clone(&state));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(|request| respond(Arc::clone(&state), request));
                    // The client handles errors of the connection.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Self { shared, port, _background: background })
    }

    /// Returns its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets the response for `/stats/summary`.
    pub fn set_summary(&self, summary: Value) {
        self.shared.summary().value = summary;
    }

    /// Returns when it sent `/stats/summary`.
    pub fn summaries_sent(&self) -> Vec<Instant> {
        self.shared.summary().sent.clone()
    }

    /// Returns the statuses of its responses.
    pub fn statuses(&self) -> Vec<u16> {
        self.shared.statuses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn respond(state: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
    let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = header.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default().to_owned();
    let path = request.uri().path();
    let subresources: &[&str] = match path {
        "/configz" => &["configz", "proxy"],
        "/stats/summary" => &["stats"],
        _ => &[],
    };
    let reviewer = Arc::clone(&state);
    let status = match subresources {
        [] => 404,
        _ => tokio::task::spawn_blocking(move || reviewer.review_token(&token, subresources)).await??,
    };
    state.statuses.lock().unwrap_or_else(PoisonError::into_inner).push(status);
    let body = match (status, path) {
        (200, "/stats/summary") => {
            let mut summary = state.summary();
            summary.sent.push(Instant::now());
            summary.value.to_string()
        }
        (200, _) => json!({"kubeletconfig": state.configuration}).to_string(),
        _ => String::new(),
    };
    Response::builder().status(status).body(Full::new(body.into())).context("answer")
}

impl Shared {
    fn summary(&self) -> MutexGuard<'_, Summary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the status for a client with that token, which needs one of these subresources of its node.
    fn review_token(&self, token: &str, subresources: &[&str]) -> Result<u16> {
        let review = json!({"spec": {"token": token}});
        let answer = self.api.post("/apis/authentication.k8s.io/v1/tokenreviews", &review)?.ok()?;
        if answer["status"]["authenticated"] != true {
            return Ok(401);
        }
        let user = &answer["status"]["user"];
        for subresource in subresources {
            let review = json!({"spec": {
                "user": user["username"], "uid": user["uid"], "groups": user["groups"],
                "resourceAttributes": {
                    "verb": "get", "version": "v1", "resource": "nodes", "subresource": subresource,
                    "name": self.node,
                },
            }});
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            if self.api.post(path, &review)?.ok()?["status"]["allowed"] == true {
                return Ok(200);
            }
        }
        Ok(403)
    }
}
