//! Reads information about a runtime.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::timeout;

use crate::api::{
    ImageFsInfoRequest, ListPodSandboxRequest, PodSandboxStatusRequest, StatusRequest, VersionRequest,
};
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
        let version = client.version(VersionRequest::default()).await?;
        let info = client.image_fs_info(ImageFsInfoRequest {}).await?;
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
    let path = endpoint.path().to_owned();
    timeout(within, read)
        .await
        .unwrap_or_else(|_| Err(CriError::Connect { path, cause: format!("no answer within {within:?}") }))
}

/// Returns the names of the pause image, and of the images that the sandboxes were made from.
pub(crate) async fn read_images_of_sandboxes(client: &Client) -> Result<ImageNames, CriError> {
    let mut names: ImageNames = read_sandbox_image(client).await?.into_iter().collect();
    let sandboxes = client.list_pod_sandbox(ListPodSandboxRequest::default()).await?.items;
    read_sandbox_images(client, &sandboxes, &mut names).await?;
    Ok(names)
}

/// Reads the name of the pause image in the configuration of containerd 1.x. Version 2 does not show it; there
/// the image is pinned.
async fn read_sandbox_image(client: &Client) -> Result<Option<String>, CriError> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Config {
        sandbox_image: String,
    }
    let status = client.status(StatusRequest { verbose: true }).await?;
    // Other runtimes have other content there.
    let config = status.info.get("config").and_then(|json| serde_json::from_str::<Config>(json).ok());
    Ok(config.map(|config| config.sandbox_image).filter(|image| !image.is_empty()))
}

/// Adds the images that these sandboxes were made from.
async fn read_sandbox_images(
    client: &Client,
    sandboxes: &[crate::api::PodSandbox],
    into: &mut ImageNames,
) -> Result<(), CriError> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Info {
        image: String,
    }
    for sandbox in sandboxes {
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.id.clone(), verbose: true };
        let status = match client.pod_sandbox_status(request).await {
            Err(error) if error.is_not_found() => continue,
            status => status?,
        };
        let info = status.info.get("info").and_then(|json| serde_json::from_str::<Info>(json).ok());
        into.extend(info.map(|info| info.image).filter(|image| !image.is_empty()));
    }
    Ok(())
}
