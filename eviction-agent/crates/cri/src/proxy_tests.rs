//! Tests the proxy between the agent's client and a fake runtime.

use bytes::Bytes;
use http_body_util::Full;
use prost::Message as _;
use tokio::net::UnixListener;
use tonic::Code;
use tonic::body::Body;

use crate::api::*;
use crate::client::{Client, CriError, Endpoint};
use crate::fake_runtime::{FakeRuntime, State};
use crate::proxy::serve;

/// A container of each state, and images: those of two containers and of the sandbox, the pause image of the
/// configuration, a pinned and an unused one.
fn state() -> State {
    let image = |id: &str| Image {
        id: id.to_owned(),
        repo_tags: vec![format!("docker.io/library/{id}:latest")],
        pinned: id == "pinned",
        ..Image::default()
    };
    let container = |id: &str, state: ContainerState| Container {
        id: id.to_owned(),
        image_ref: format!("of-{id}"),
        state: state.into(),
        ..Container::default()
    };
    State {
        images: ["of-runs", "of-dead", "pause", "configured", "pinned", "unused"].map(image).into(),
        containers: vec![
            container("runs", ContainerState::ContainerRunning),
            container("dead", ContainerState::ContainerExited),
            container("created", ContainerState::ContainerCreated),
            container("unknown", ContainerState::ContainerUnknown),
        ],
        sandboxes: vec![PodSandbox { id: "pod".to_owned(), ..PodSandbox::default() }],
        sandbox_info: r#"{"image": "pause"}"#.to_owned(),
        config: r#"{"sandboxImage": "docker.io/library/configured:latest"}"#.to_owned(),
        ..State::default()
    }
}

struct Proxied {
    runtime: FakeRuntime,
    client: Client,
    // Contains the proxy's socket.
    _folder: tempfile::TempDir,
}

/// Starts a proxy of a runtime. Returns the folder of its socket, and the socket.
pub(crate) fn start_proxy(runtime: Endpoint) -> (tempfile::TempDir, Endpoint) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move { serve(&listener, &runtime).await });
    (folder, Endpoint::parse(socket.to_str().unwrap()).unwrap())
}

async fn start() -> Proxied {
    let runtime = FakeRuntime::start(state());
    let (folder, endpoint) = start_proxy(runtime.endpoint());
    let client = Client::connect(&endpoint).await.unwrap();
    Proxied { runtime, client, _folder: folder }
}

/// Returns the code and the message of a refusal.
fn refusal<T: std::fmt::Debug>(result: Result<T, CriError>) -> (Code, String) {
    match result {
        Err(CriError::Call { code, message, .. }) => (code, message),
        other => panic!("{other:?}"),
    }
}

impl Proxied {
    async fn remove_image(&self, name: &str) -> Result<(), CriError> {
        let image = Some(ImageSpec { image: name.to_owned(), ..ImageSpec::default() });
        self.client.remove_image(RemoveImageRequest { image }).await.map(drop)
    }

    async fn remove_container(&self, id: &str) -> Result<(), CriError> {
        let request = RemoveContainerRequest { container_id: id.to_owned() };
        self.client.remove_container(request).await.map(drop)
    }
}

#[tokio::test]
async fn read_requests_are_answered_by_the_runtime() {
    let proxied = start().await;
    let version = proxied.client.version(()).await.unwrap();
    assert_eq!((version.runtime_name.as_str(), version.runtime_version.as_str()), ("fake", "2.1.9"));
    let images = proxied.client.list_images(()).await.unwrap().images;
    assert_eq!(images, proxied.runtime.state().images);
    let request = ContainerStatusRequest { container_id: "gone".to_owned(), verbose: false };
    assert!(proxied.client.container_status(request).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn images_and_containers_in_use_are_not_removed() {
    let proxied = start().await;
    for id in ["of-runs", "of-dead", "pause", "configured", "pinned"] {
        for name in [id.to_owned(), format!("docker.io/library/{id}:latest")] {
            let (code, message) = refusal(proxied.remove_image(&name).await);
            assert!(code == Code::PermissionDenied && message.contains(&name), "{name}: {code} {message}");
        }
    }
    for id in ["runs", "created", "unknown", "gone"] {
        let (code, message) = refusal(proxied.remove_container(id).await);
        assert!(code == Code::PermissionDenied && message.contains(id), "{code} {message}");
    }
    assert_eq!(proxied.runtime.removals(), [""; 0]);
    proxied.remove_image("unused").await.unwrap();
    proxied.remove_container("dead").await.unwrap();
    proxied.remove_image("of-dead").await.unwrap();
    let expected = ["RemoveImage unused", "RemoveContainer dead", "RemoveImage of-dead"];
    assert_eq!(proxied.runtime.removals(), expected);
}

/// Returns the paths of all methods of the CRI.
fn paths_of_proto() -> Vec<String> {
    let mut service = "";
    let mut paths = Vec::new();
    for line in include_str!("../proto/api.proto").lines() {
        let mut words = line.split([' ', '(']).filter(|word| !word.is_empty());
        match (words.next(), words.next()) {
            (Some("service"), Some(name)) => service = name,
            (Some("rpc"), Some(method)) => paths.push(format!("/runtime.v1.{service}/{method}")),
            _ => {}
        }
    }
    paths
}

#[tokio::test]
async fn other_methods_and_verbose_status_are_denied() {
    let proxied = start().await;
    let is_offered = |path: &String| {
        let methods = Client::METHODS.iter();
        methods.clone().any(|(service, method, ..)| *path == format!("/runtime.v1.{service}/{method}"))
    };
    let (offered, mut denied): (Vec<_>, Vec<_>) = paths_of_proto().into_iter().partition(is_offered);
    assert!(offered.len() == 11 && denied.len() > 20, "{offered:?} {denied:?}");
    // Paths that a runtime could take for a method that is offered, and the other services of containerd's socket.
    let others = [
        "/",
        "/runtime.v1alpha2.RuntimeService/Version",
        "/runtime.v1.RuntimeService/Version/",
        "//runtime.v1.RuntimeService/Version",
        "/runtime.v1.RuntimeService/version",
        "/runtime.v1.RuntimeService/RemoveImage",
        "/containerd.services.images.v1.Images/Delete",
        "/containerd.services.tasks.v1.Tasks/Exec",
    ];
    denied.extend(others.map(str::to_owned));
    for path in denied {
        let result = proxied.client.call::<_, ()>("any", path.clone().leak(), ()).await;
        let (code, message) = refusal(result);
        assert!(code == Code::PermissionDenied && message.ends_with(&path), "{path}: {code} {message}");
    }
    let request = ContainerStatusRequest { container_id: "runs".to_owned(), verbose: true };
    assert_eq!(refusal(proxied.client.container_status(request).await).0, Code::PermissionDenied);
    assert_eq!(proxied.runtime.state().calls, [""; 0]);
}

/// A request that the proxy reads otherwise than the runtime could remove something in use.
#[tokio::test]
async fn requests_that_are_not_one_plain_message_are_denied() {
    let proxied = start().await;
    let frame = |flag: u8, message: &[u8]| {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[flag], length.as_slice(), message].concat()
    };
    let remove = |id: &str| RemoveContainerRequest { container_id: id.to_owned() }.encode_to_vec();
    let (dead, runs) = (remove("dead"), remove("runs"));
    let bodies = [
        Vec::new(),
        vec![0],
        frame(1, &dead),
        [frame(0, &dead), frame(0, &runs)].concat(),
        [frame(0, &dead), vec![0]].concat(),
        frame(0, &dead[..dead.len() - 1]),
        // The last field counts, as for the runtime.
        frame(0, &[dead.as_slice(), &runs].concat()),
        frame(0, &remove(&"x".repeat(1 << 20))),
    ];
    for body in bodies {
        let path = "http://localhost/runtime.v1.RuntimeService/RemoveContainer";
        let request = http::Request::post(path).body(Body::new(Full::new(Bytes::from(body)))).unwrap();
        let response = proxied.client.forward(request).await.unwrap();
        let status = response.headers()["grpc-status"].to_str().unwrap().to_owned();
        let denied = [Code::InvalidArgument, Code::PermissionDenied].map(|code| (code as i32).to_string());
        assert!(denied.contains(&status), "{status}");
    }
    assert_eq!(proxied.runtime.removals(), [""; 0]);
}

#[tokio::test]
async fn status_contains_only_the_pause_image_of_the_configuration() {
    let proxied = start().await;
    let secret = r#"{"sandboxImage": "pause", "registry": {"configs": {"r": {"auth": {"password": "x"}}}}}"#;
    for (config, expected) in [(secret, Some(r#"{"sandboxImage":"pause"}"#)), ("{}", None)] {
        proxied.runtime.state().config = config.to_owned();
        let status = proxied.client.status(StatusRequest { verbose: true }).await.unwrap();
        let info: Vec<_> = status.info.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
        assert_eq!(info, expected.map(|text| ("config", text)).into_iter().collect::<Vec<_>>());
    }
}

/// `crictl info` refuses a status without them.
#[tokio::test]
async fn status_contains_the_conditions_of_the_runtime() {
    let proxied = start().await;
    let conditions =
        [("RuntimeReady", true), ("NetworkReady", false)].map(|(name, status)| RuntimeCondition {
            r#type: name.to_owned(),
            status,
            reason: "Reason".to_owned(),
            message: "a message".to_owned(),
        });
    proxied.runtime.state().conditions = conditions.to_vec();
    for verbose in [false, true] {
        let status = proxied.client.status(StatusRequest { verbose }).await.unwrap().status;
        assert_eq!(status.unwrap().conditions, conditions);
    }
}

#[tokio::test]
async fn without_the_runtime_each_call_fails() {
    let proxied = start().await;
    std::fs::remove_file(proxied.runtime.socket()).unwrap();
    let (code, message) = refusal(proxied.client.version(()).await);
    assert!(code == Code::Unavailable && message.contains("connect to the CRI socket"), "{code} {message}");
}
