//! Tests the proxy between the agent's client and a fake runtime.

use tokio::net::UnixListener;
use tonic::Code;

use crate::api::*;
use crate::client::{Client, CriError, Endpoint};
use crate::fake_runtime::{FakeRuntime, State};
use crate::proxy::serve;

/// Containers `runs` and `dead`, and images: one of each container, one of the sandbox, a pinned and an unused
/// one.
fn state() -> State {
    let image = |id: &str| Image { id: id.to_owned(), pinned: id == "pinned", ..Image::default() };
    let container = |id: &str, state: ContainerState| Container {
        id: id.to_owned(),
        image_ref: format!("of-{id}"),
        state: state.into(),
        ..Container::default()
    };
    State {
        images: ["of-runs", "of-dead", "pause", "pinned", "unused"].map(image).into(),
        containers: vec![
            container("runs", ContainerState::ContainerRunning),
            container("dead", ContainerState::ContainerExited),
        ],
        sandboxes: vec![PodSandbox { id: "pod".to_owned(), ..PodSandbox::default() }],
        sandbox_info: r#"{"image": "pause"}"#.to_owned(),
        ..State::default()
    }
}

struct Proxied {
    runtime: FakeRuntime,
    client: Client,
    // Contains the proxy's socket.
    _folder: tempfile::TempDir,
}

async fn start() -> Proxied {
    let runtime = FakeRuntime::start(state());
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let endpoint = runtime.endpoint();
    tokio::spawn(async move { serve(&listener, &endpoint).await });
    let client = Client::connect(&Endpoint::parse(socket.to_str().unwrap()).unwrap()).await.unwrap();
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
    let version = proxied.client.version(VersionRequest::default()).await.unwrap();
    assert_eq!((version.runtime_name.as_str(), version.runtime_version.as_str()), ("fake", "2.1.9"));
    let images = proxied.client.list_images(ListImagesRequest::default()).await.unwrap().images;
    assert_eq!(images, proxied.runtime.state().images);
    let request = ContainerStatusRequest { container_id: "gone".to_owned(), verbose: false };
    assert!(proxied.client.container_status(request).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn images_and_containers_in_use_are_not_removed() {
    let proxied = start().await;
    for name in ["of-runs", "of-dead", "pause", "pinned"] {
        let (code, message) = refusal(proxied.remove_image(name).await);
        assert!(code == Code::PermissionDenied && message.contains(name), "{code} {message}");
    }
    let (code, message) = refusal(proxied.remove_container("runs").await);
    assert!(code == Code::PermissionDenied && message.contains("runs"), "{code} {message}");
    assert_eq!(proxied.runtime.removals(), [""; 0]);
    proxied.remove_image("unused").await.unwrap();
    proxied.remove_container("dead").await.unwrap();
    proxied.remove_image("of-dead").await.unwrap();
    let expected = ["RemoveImage unused", "RemoveContainer dead", "RemoveImage of-dead"];
    assert_eq!(proxied.runtime.removals(), expected);
}

#[tokio::test]
async fn other_methods_and_verbose_status_are_denied() {
    let proxied = start().await;
    for path in ["/runtime.v1.RuntimeService/RunPodSandbox", "/runtime.v1.RuntimeService/ExecSync", "/"] {
        let request = VersionRequest::default();
        let result = proxied.client.call::<_, VersionResponse>("any", path, request).await;
        assert_eq!(refusal(result).0, Code::PermissionDenied, "{path}");
    }
    let request = ContainerStatusRequest { container_id: "runs".to_owned(), verbose: true };
    assert_eq!(refusal(proxied.client.container_status(request).await).0, Code::PermissionDenied);
    assert_eq!(proxied.runtime.state().calls, [""; 0]);
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

#[tokio::test]
async fn without_the_runtime_each_call_fails() {
    let proxied = start().await;
    std::fs::remove_file(proxied.runtime.socket()).unwrap();
    let (code, message) = refusal(proxied.client.version(VersionRequest::default()).await);
    assert!(code == Code::Unavailable && message.contains("connect to the CRI socket"), "{code} {message}");
}
