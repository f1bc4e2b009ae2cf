//! One HTTP/2 connection to the runtime's socket, the calls that the agent makes, and what it reads of a runtime.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::uri::{PathAndQuery, Uri};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::value::RawValue;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;
use tower::service_fn;

use crate::api::*;
use crate::removable::ImageNames;

/// The maximum size of a response in bytes, as in the kubelet's own client.
const MAX_MESSAGE: usize = 16 << 20;

/// Why a call of the runtime failed.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The agent cannot connect to the endpoint.
    #[error("{0}")]
    Endpoint(String),
    /// A call failed.
    #[error("CRI {method}: {} ({code:?})", if message.is_empty() { "no message" } else { message })]
    Call {
        /// The name of the method, such as `ListImages`.
        method: &'static str,
        /// The gRPC status.
        code: tonic::Code,
        /// The runtime's message.
        message: String,
    },
}

impl CriError {
    /// Returns whether the object does not exist; a removal treats that as success.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Call { code: tonic::Code::NotFound, .. })
    }
}

/// The socket on which the runtime listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

impl Endpoint {
    /// Parses `unix:///run/containerd/containerd.sock`, the form of the kubelet's `containerRuntimeEndpoint`,
    /// or an absolute path.
    ///
    /// # Errors
    /// For any other text.
    pub fn parse(text: &str) -> Result<Self, CriError> {
        let path = Path::new(text.strip_prefix("unix://").unwrap_or(text));
        match path.is_absolute() && path.file_name().is_some() {
            true => Ok(Self(path.to_owned())),
            false => Err(CriError::Endpoint(format!(
                "the CRI endpoint {text:?} must be `unix:///PATH` or an absolute path"
            ))),
        }
    }

    /// Returns the error for a connection to this socket that failed.
    pub(crate) fn failed(&self, cause: impl fmt::Display) -> CriError {
        CriError::Endpoint(format!("connect to the CRI socket {}: {cause}", self.0.display()))
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// A connection to the runtime. Clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    sender: SendRequest<Body>,
}

macro_rules! methods {
    ($($(#[doc = $doc:literal])+ $name:ident = $service:literal / $method:literal ($request:ty) -> $response:ty;)+) => {
        impl Client {$(
            $(#[doc = $doc])+
            ///
            /// # Errors
            /// What the runtime answers, or that it does not.
            pub async fn $name(&self, request: $request) -> Result<$response, CriError> {
                self.call($method, concat!("/runtime.v1.", $service, "/", $method), request).await
            }
        )+
            /// The method of this path, if it is one of these.
            pub(crate) fn method_of(path: &str) -> Option<&'static str> {
                match path {
                    $(concat!("/runtime.v1.", $service, "/", $method) => Some($method),)+
                    _ => None,
                }
            }
        }

        #[cfg(test)]
        impl Client {
            pub(crate) const METHODS: &[(&str, &str, &str, &str)] =
                &[$(($service, $method, stringify!($request), stringify!($response))),+];
        }
    };
}

methods! {
    /// Asks which runtime this is.
    version = "RuntimeService"/"Version"(()) -> VersionResponse;
    /// Reads the runtime's state and, if verbose, its configuration.
    status = "RuntimeService"/"Status"(StatusRequest) -> StatusResponse;
    /// Lists the sandboxes of pods.
    list_pod_sandbox = "RuntimeService"/"ListPodSandbox"(()) -> ListPodSandboxResponse;
    /// Reads one sandbox and, if verbose, which image it was made from.
    pod_sandbox_status =
        "RuntimeService"/"PodSandboxStatus"(PodSandboxStatusRequest) -> PodSandboxStatusResponse;
    /// Lists containers in any state.
    list_containers = "RuntimeService"/"ListContainers"(()) -> ListContainersResponse;
    /// Reads one container.
    container_status = "RuntimeService"/"ContainerStatus"(ContainerStatusRequest) -> ContainerStatusResponse;
    /// Removes a container, also one that runs.
    remove_container = "RuntimeService"/"RemoveContainer"(RemoveContainerRequest) -> ();
    /// Lists images.
    list_images = "ImageService"/"ListImages"(()) -> ListImagesResponse;
    /// Finds the image that has a name.
    image_status = "ImageService"/"ImageStatus"(ImageStatusRequest) -> ImageStatusResponse;
    /// Removes an image with all its names, also one that is in use.
    remove_image = "ImageService"/"RemoveImage"(RemoveImageRequest) -> ();
    /// Reads where images and writable layers are.
    image_fs_info = "ImageService"/"ImageFsInfo"(()) -> ImageFsInfoResponse;
}

impl Client {
    /// Connects to the runtime. Needs a tokio runtime; the connection ends with the last clone.
    ///
    /// # Errors
    /// If connecting fails.
    pub async fn connect(endpoint: &Endpoint) -> Result<Self, CriError> {
        let stream = UnixStream::connect(&endpoint.0).await.map_err(|error| endpoint.failed(error))?;
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|error| endpoint.failed(error))?;
        // The current call reports its error.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender })
    }

    /// Forwards a request unchanged.
    ///
    /// # Errors
    /// If there is no response.
    pub(crate) async fn forward(&self, request: Request<Body>) -> Result<Response<Incoming>, hyper::Error> {
        self.sender.clone().send_request(request).await
    }

    pub(crate) async fn call<Q, A>(
        &self,
        method: &'static str,
        path: &'static str,
        request: Q,
    ) -> Result<A, CriError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let failed = |code, message| CriError::Call { method, code, message };
        let mut sender = self.sender.clone();
        sender.ready().await.map_err(|error| failed(tonic::Code::Unavailable, error.to_string()))?;
        // Runtimes accept any authority over a socket.
        let origin = Uri::from_static("http://localhost");
        let connection = service_fn(move |request: Request<Body>| sender.send_request(request));
        let mut grpc = Grpc::with_origin(connection, origin).max_decoding_message_size(MAX_MESSAGE);
        let codec = ProstCodec::<Q, A>::default();
        let response = grpc.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await;
        match response {
            Ok(response) => Ok(response.into_inner()),
            // tonic calls a broken connection `Unknown`, as runtimes call many of their own errors.
            Err(status) if status.source().is_some() => {
                Err(failed(tonic::Code::Unavailable, status.message().to_owned()))
            }
            Err(status) => Err(failed(status.code(), status.message().to_owned())),
        }
    }
}

/// Information about a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// Its name, for instance `containerd`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Where it keeps images, as paths of the host.
    pub image_file_systems: Vec<PathBuf>,
    /// Where it keeps writable layers, if that is elsewhere.
    pub container_file_systems: Vec<PathBuf>,
}

/// Reads the version of a runtime and its file systems.
///
/// # Errors
/// If it does not respond in that time, or with an error.
pub async fn read_runtime(endpoint: &Endpoint, within: Duration) -> Result<RuntimeInfo, CriError> {
    let read = async {
        let client = Client::connect(endpoint).await?;
        let version = client.version(()).await?;
        let info = client.image_fs_info(()).await?;
        let paths = |usages: Vec<FilesystemUsage>| {
            usages.into_iter().filter_map(|usage| Some(usage.fs_id?.mountpoint.into())).collect()
        };
        Ok(RuntimeInfo {
            name: version.runtime_name,
            version: version.runtime_version,
            image_file_systems: paths(info.image_filesystems),
            container_file_systems: paths(info.container_filesystems),
        })
    };
    answer_within(endpoint, within, read).await
}

/// Awaits the answers of a runtime, for at most this time.
pub(crate) async fn answer_within<T>(
    endpoint: &Endpoint,
    within: Duration,
    answer: impl Future<Output = Result<T, CriError>>,
) -> Result<T, CriError> {
    let late = |_| Err(endpoint.failed(format_args!("no answer within {within:?}")));
    timeout(within, answer).await.unwrap_or_else(late)
}

/// Returns the names of the pause image, and of the images that the sandboxes were made from. containerd 1.x
/// shows the name of the pause image in its configuration. Version 2 does not; there the image is pinned.
pub(crate) async fn read_images_of_sandboxes(client: &Client) -> Result<ImageNames, CriError> {
    let status = client.status(StatusRequest { verbose: true }).await?;
    let mut names: ImageNames = sandbox_image(&status).into_iter().collect();
    for sandbox in client.list_pod_sandbox(()).await?.items {
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.id, verbose: true };
        match client.pod_sandbox_status(request).await {
            Ok(status) => names.extend(text_of(&status.info, "info", "image")),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    names.remove("");
    Ok(names)
}

/// Returns the name of the pause image in a verbose status.
pub(crate) fn sandbox_image(status: &StatusResponse) -> Option<String> {
    text_of(&status.info, "config", "sandboxImage")
}

/// Returns a text in the JSON object of a verbose status. Other runtimes have other content there. The other
/// fields are skipped, so that no value in them is an error.
fn text_of(info: &BTreeMap<String, String>, key: &str, field: &str) -> Option<String> {
    let object: BTreeMap<String, &RawValue> = serde_json::from_str(info.get(key)?).ok()?;
    serde_json::from_str(object.get(field)?.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_must_be_a_local_socket() {
        for text in ["unix:///run/containerd/containerd.sock", "/run/containerd/containerd.sock"] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(endpoint.path(), Path::new("/run/containerd/containerd.sock"));
        }
        for text in ["", "unix://", "/", "run/x.sock", "tcp://127.0.0.1:1234", "npipe:////./pipe/x"] {
            let error = Endpoint::parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
