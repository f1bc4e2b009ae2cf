//! A kubelet as far as an agent asks it what it runs with: `/configz` behind TLS, for whom the API
//! server lets have it.
//!
//! Who asks is found out by a TokenReview, and whether he may by SubjectAccessReviews, in the order of
//! `pkg/kubelet/server/auth.go: GetRequestAttributes`. A real one is asked in `tests/tests/kubelet`.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

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

/// It ends when it goes out of scope.
#[derive(Debug)]
pub struct AskedKubelet {
    shared: Arc<Shared>,
    port: u16,
    _background: Background,
}

#[derive(Debug)]
struct Shared {
    api: Client,
    node: String,
    configuration: Value,
    statuses: Mutex<Vec<u16>>,
}

impl AskedKubelet {
    /// Starts one of that node, that runs with this configuration.
    ///
    /// # Errors
    /// If no port can be had.
    pub fn start(cluster: &Cluster, node: &str, configuration: &Value) -> Result<Self> {
        let acceptor = tls::acceptor(&cluster.authority.server()?)?;
        let shared = Arc::new(Shared {
            api: cluster.admin().clone(),
            node: node.to_owned(),
            configuration: configuration.clone(),
            statuses: Mutex::default(),
        });
        let background = Background::start()?;
        let listener = background
            .run(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .context("find a port for a kubelet")?;
        let port = listener.local_addr().context("read a kubelet's port")?.port();
        let asked = Arc::clone(&shared);
        background.handle().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, asked) = (acceptor.clone(), Arc::clone(&asked));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let answer = hyper::service::service_fn(|request| answer(Arc::clone(&asked), request));
                    // What becomes of a connection is the client's to say.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), answer)
                        .await;
                });
            }
        });
        Ok(Self { shared, port, _background: background })
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The statuses that it has answered with.
    pub fn statuses(&self) -> Vec<u16> {
        self.shared.statuses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn answer(asked: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
    let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = header.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default().to_owned();
    let is_configz = request.uri().path() == "/configz";
    let reviewed = Arc::clone(&asked);
    let status = match is_configz {
        true => tokio::task::spawn_blocking(move || reviewed.review(&token)).await??,
        false => 404,
    };
    asked.statuses.lock().unwrap_or_else(PoisonError::into_inner).push(status);
    let body = match status {
        200 => json!({"kubeletconfig": asked.configuration}).to_string(),
        _ => String::new(),
    };
    Response::builder().status(status).body(Full::new(body.into())).context("answer")
}

impl Shared {
    /// The status for whoever has that token.
    fn review(&self, token: &str) -> Result<u16> {
        let review = json!({"spec": {"token": token}});
        let answer = self.api.post("/apis/authentication.k8s.io/v1/tokenreviews", &review)?.ok()?;
        if answer["status"]["authenticated"] != true {
            return Ok(401);
        }
        let user = &answer["status"]["user"];
        for subresource in ["configz", "proxy"] {
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
