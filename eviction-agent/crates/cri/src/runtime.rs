//! Reads information about a runtime.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::timeout;

use crate::api::{PodSandboxStatusRequest, StatusRequest, StatusResponse};
use crate::client::{Client, CriError, Endpoint};
use crate::images::ImageNames;

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
        let paths = |usages: Vec<crate::api::FilesystemUsage>| {
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
