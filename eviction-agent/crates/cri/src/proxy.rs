//! A restricted socket for a process that must not use the runtime's own: it offers the calls of node reclaim
//! and no others, no removal of what is in use, and no secrets from verbose statuses.
//!
//! A process that can use the runtime's own socket can start privileged containers. A process that can use this
//! one can remove containers that have exited and images that no container uses.

use std::io;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::{UnixListener, UnixStream};
use tonic::Status;
use tonic::body::Body;

use crate::api::{
    ContainerStatusRequest, ImageSpec, RemoveContainerRequest, RemoveImageRequest, StatusRequest,
    StatusResponse,
};
use crate::client::{Client, CriError, Endpoint, read_images_of_sandboxes, sandbox_image};
use crate::reclaim::{find_image, is_dead, read_containers, resolve_images};
use crate::removable::{has_name_of, names_of_containers};

/// The maximum size of a request in bytes. Requests are names and ids.
const MAX_REQUEST: usize = 64 << 10;

/// The size of a compression flag and the length of the message, in bytes.
const FRAME_HEADER: usize = 5;

/// Serves connections until no more can be accepted. Needs a tokio runtime.
///
/// # Errors
/// Why no more connections can be accepted.
pub async fn serve(listener: &UnixListener, endpoint: &Endpoint) -> io::Error {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve_connection(stream, endpoint.clone()))),
            Err(error) => return error,
        }
    }
}

async fn serve_connection(stream: UnixStream, endpoint: Endpoint) {
    let service = service_fn(|request| {
        let endpoint = endpoint.clone();
        async move {
            Ok::<_, io::Error>(handle_request(request, &endpoint).await.unwrap_or_else(Status::into_http))
        }
    });
    let connection =
        http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the CRI proxy ended");
    }
}

async fn handle_request(request: Request<Incoming>, endpoint: &Endpoint) -> Result<Response<Body>, Status> {
    let path = request.uri().path();
    let Some(method) = Client::method_of(path) else {
        return Err(Status::permission_denied(format!("the CRI proxy does not offer {path}")));
    };
    let client = Client::connect(endpoint).await.map_err(|error| Status::unavailable(error.to_string()))?;
    let (head, body) = request.into_parts();
    let body = Limited::new(body, MAX_REQUEST).collect().await;
    let body = body.map_err(|error| Status::invalid_argument(format!("{method}: {error}")))?.to_bytes();
    if method == "Status" {
        return read_status(&client, decode(method, &body)?).await;
    }
    let allowed = match method {
        "ContainerStatus" => check_not_verbose(&decode(method, &body)?),
        "RemoveContainer" => may_remove_container(&client, decode(method, &body)?).await,
        "RemoveImage" => may_remove_image(&client, decode(method, &body)?).await,
        _ => Ok(()),
    };
    if let Err(denied) = &allowed {
        tracing::warn!(method, reason = denied.message(), "denied");
    }
    allowed?;
    let request = Request::from_parts(head, Body::new(Full::new(body)));
    let response = client.forward(request).await.map_err(|error| Status::unavailable(error.to_string()))?;
    Ok(response.map(Body::new))
}

/// Decodes the only message of a request.
fn decode<M: Message + Default>(method: &str, body: &Bytes) -> Result<M, Status> {
    let invalid = |why: &str| Status::invalid_argument(format!("{method}: {why}"));
    let (header, message) =
        body.split_at_checked(FRAME_HEADER).ok_or_else(|| invalid("there is no message"))?;
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    if header[0] != 0 || header[1..] != length.to_be_bytes() {
        return Err(invalid("it must be one message without compression"));
    }
    M::decode(message).map_err(|error| invalid(&error.to_string()))
}

/// Returns the status of the runtime, and of its configuration only the name of the pause image: containerd 1.x
/// has the passwords of registries there.
async fn read_status(client: &Client, request: StatusRequest) -> Result<Response<Body>, Status> {
    let status = client.status(request).await.map_err(failed)?;
    let config =
        |image: String| ("config".to_owned(), serde_json::json!({"sandboxImage": image}).to_string());
    let info = sandbox_image(&status).map(config).into_iter().collect();
    Ok(response_of(&StatusResponse { info, ..status }))
}

/// Returns a response with this message.
fn response_of(message: &impl Message) -> Response<Body> {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut frame = vec![0];
    frame.extend(length.to_be_bytes());
    frame.extend(message);
    let status = (HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
    let trailers = HeaderMap::from_iter([status]);
    let body = Full::new(Bytes::from(frame)).with_trailers(async { Some(Ok(trailers)) });
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// Refuses the verbose status: it contains the environment of the container, and so the secrets in it.
fn check_not_verbose(request: &ContainerStatusRequest) -> Result<(), Status> {
    match request.verbose {
        true => Err(Status::permission_denied("ContainerStatus: the CRI proxy does not offer it verbose")),
        false => Ok(()),
    }
}

async fn may_remove_container(client: &Client, request: RemoveContainerRequest) -> Result<(), Status> {
    let RemoveContainerRequest { container_id } = request;
    match is_dead(client, &container_id).await.map_err(failed)? {
        true => Ok(()),
        false => Err(Status::permission_denied(format!(
            "RemoveContainer: {container_id} has not exited or is gone"
        ))),
    }
}

/// Checks that an image is not in use. Runtimes do not check it: containerd removes an image in use without an
/// error.
async fn may_remove_image(client: &Client, request: RemoveImageRequest) -> Result<(), Status> {
    let Some(ImageSpec { image: name, .. }) = request.image else {
        return Err(Status::invalid_argument("RemoveImage: there is no image"));
    };
    let Some(image) = find_image(client, &name).await.map_err(failed)? else { return Ok(()) };
    let mut in_use = read_images_of_sandboxes(client).await.map_err(failed)?;
    in_use = resolve_images(client, &in_use).await.map_err(failed)?;
    in_use.extend(names_of_containers(&read_containers(client).await.map_err(failed)?));
    match image.pinned || has_name_of(&image, &in_use) {
        true => Err(Status::permission_denied(format!("RemoveImage: {name} is pinned or in use"))),
        false => Ok(()),
    }
}

fn failed(error: CriError) -> Status {
    Status::unavailable(error.to_string())
}
