//! A CRI server for tests, over a unix socket, that hangs, closes connections and returns errors on demand.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixListener;
use tonic::Code;

use crate::api::*;
use crate::client::Endpoint;
use crate::reclaim::{ReclaimConfig, Reclaimer, Space};
use crate::removable::ImageHistory;

/// What a method does instead of responding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Hang,
    CloseConnection,
    Code(Code),
}

/// The objects of the runtime, and the space that their removal frees.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) images: Vec<Image>,
    pub(crate) containers: Vec<Container>,
    pub(crate) sandboxes: Vec<PodSandbox>,
    /// JSON of `info` of each sandbox.
    pub(crate) sandbox_info: String,
    pub(crate) conditions: Vec<RuntimeCondition>,
    /// JSON of the verbose status.
    pub(crate) config: String,
    /// Bytes that the removal of an image frees, by its id.
    pub(crate) frees: BTreeMap<String, u64>,
    pub(crate) space: Space,
    pub(crate) faults: BTreeMap<&'static str, Fault>,
    /// Containers that appear with the n-th list of containers.
    pub(crate) late: Vec<(usize, Container)>,
    /// The calls, with the id for removals.
    pub(crate) calls: Vec<String>,
}

/// Returns a reclaimer that has not seen any image yet.
pub(crate) fn new_reclaimer(config: ReclaimConfig) -> Reclaimer {
    Reclaimer::new(config, ImageHistory::default(), Duration::ZERO)
}

/// A running server.
#[derive(Debug)]
pub(crate) struct FakeRuntime {
    state: Arc<Mutex<State>>,
    folder: tempfile::TempDir,
}

type FakeResponse = Response<BoxBody<Bytes, std::convert::Infallible>>;

impl FakeRuntime {
    pub(crate) fn start(state: State) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("cri.sock")).unwrap();
        let runtime = Self { state: Arc::new(Mutex::new(state)), folder };
        let state = Arc::clone(&runtime.state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&state);
                let service = service_fn(move |request| respond(Arc::clone(&state), request));
                let connection =
                    http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move { drop(connection.await) });
            }
        });
        runtime
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("cri.sock")
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::parse(self.socket().to_str().unwrap()).unwrap()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Returns the removals that were requested, in order.
    pub(crate) fn removals(&self) -> Vec<String> {
        self.state().calls.iter().filter(|call| call.starts_with("Remove")).cloned().collect()
    }
}

async fn respond(
    state: Arc<Mutex<State>>,
    request: Request<Incoming>,
) -> Result<FakeResponse, std::io::Error> {
    let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
    let body = request.into_body().collect().await.map_err(std::io::Error::other)?.to_bytes();
    let fault = state.lock().unwrap().faults.get(method.as_str()).copied();
    match fault {
        Some(Fault::Hang) => tokio::time::sleep(Duration::from_secs(3600)).await,
        Some(Fault::CloseConnection) => return Err(std::io::Error::other("dies")),
        Some(Fault::Code(code)) => return Ok(grpc(Err(code))),
        None => {}
    }
    Ok(grpc(state.lock().unwrap().call(&method, &body[5..])))
}

/// Encodes a message in its frame of five bytes, with the status in the trailers.
fn grpc(result: Result<Vec<u8>, Code>) -> FakeResponse {
    let (message, code) = match result {
        Ok(message) => (Some(message), Code::Ok),
        Err(code) => (None, code),
    };
    let mut frame = BytesMut::new();
    if let Some(message) = message {
        frame.put_u8(0);
        frame.put_u32(message.len() as u32);
        frame.put_slice(&message);
    }
    let trailers = HeaderMap::from_iter([(
        http::header::HeaderName::from_static("grpc-status"),
        HeaderValue::from(code as i32),
    )]);
    let body = Full::new(frame.freeze()).with_trailers(async { Some(Ok(trailers)) });
    Response::builder().header("content-type", "application/grpc").body(body.boxed()).unwrap()
}

impl State {
    fn call(&mut self, method: &str, request: &[u8]) -> Result<Vec<u8>, Code> {
        self.calls.push(method.to_owned());
        Ok(match method {
            "Version" => {
                let names = ["fake", "2.1.9"].map(str::to_owned);
                let [runtime_name, runtime_version] = names;
                VersionResponse { runtime_name, runtime_version }.encode_to_vec()
            }
            "Status" => {
                let info = [("config".to_owned(), self.config.clone())].into();
                let status = Some(RuntimeStatus { conditions: self.conditions.clone() });
                StatusResponse { status, info }.encode_to_vec()
            }
            "ListPodSandbox" => ListPodSandboxResponse { items: self.sandboxes.clone() }.encode_to_vec(),
            "PodSandboxStatus" => {
                let info = [("info".to_owned(), self.sandbox_info.clone())].into();
                PodSandboxStatusResponse { info }.encode_to_vec()
            }
            "ListContainers" => self.list_containers().encode_to_vec(),
            "ContainerStatus" => {
                let id = ContainerStatusRequest::decode(request).unwrap().container_id;
                let found = self.containers.iter().find(|it| it.id == id).ok_or(Code::NotFound)?;
                let status = ContainerStatus { state: found.state };
                ContainerStatusResponse { status: Some(status) }.encode_to_vec()
            }
            "RemoveContainer" => {
                let id = RemoveContainerRequest::decode(request).unwrap().container_id;
                self.calls.push(format!("RemoveContainer {id}"));
                self.calls.retain(|call| call != "RemoveContainer");
                self.containers.retain(|it| it.id != id);
                self.space.bytes += self.frees.remove(&id).unwrap_or_default();
                Vec::new()
            }
            "ListImages" => ListImagesResponse { images: self.images.clone() }.encode_to_vec(),
            "ImageStatus" => {
                let name = ImageStatusRequest::decode(request).unwrap().image.unwrap().image;
                let full = format!("docker.io/library/{name}:latest");
                let has = |it: &&Image| {
                    it.id == name || it.repo_tags.iter().any(|tag| *tag == name || *tag == full)
                };
                let image = self.images.iter().find(has).cloned();
                ImageStatusResponse { image }.encode_to_vec()
            }
            "RemoveImage" => {
                let id = RemoveImageRequest::decode(request).unwrap().image.unwrap().image;
                self.calls.push(format!("RemoveImage {id}"));
                self.calls.retain(|call| call != "RemoveImage");
                self.images.retain(|it| it.id != id);
                self.space.bytes += self.frees.remove(&id).unwrap_or_default();
                Vec::new()
            }
            "ImageFsInfo" => {
                let usage = |mountpoint: &str| FilesystemUsage {
                    fs_id: Some(FilesystemIdentifier { mountpoint: mountpoint.to_owned() }),
                };
                ImageFsInfoResponse {
                    image_filesystems: vec![usage("/var/lib/images")],
                    container_filesystems: vec![usage("/var/lib/layers")],
                }
                .encode_to_vec()
            }
            other => panic!("{other} is not called"),
        })
    }

    fn list_containers(&mut self) -> ListContainersResponse {
        let lists = self.calls.iter().filter(|call| *call == "ListContainers").count();
        let late = self.late.extract_if(.., |(n, _)| *n <= lists);
        self.containers.extend(late.map(|(_, container)| container));
        ListContainersResponse { containers: self.containers.clone() }
    }
}
