//! The configuration that a kubelet runs with, as it reports it.

use std::time::Duration;

use crate::access::{Access, KubeletAddress};
use crate::client::Client;
use crate::error::RequestError;
use crate::request::{Request, Response};

/// Where it is served.
pub const CONFIGZ_PATH: &str = "/configz";

/// The kubelet may have to ask the API server who asks: it gives that up after 10 s
/// (`authentication.webhook`).
const WITHIN: Duration = Duration::from_secs(12);

/// Reads it from a kubelet with the credentials for the API server. Without a `server_name` its certificate may
/// be for `node_name`, as one that it has signed itself is, or for its address.
///
/// # Errors
/// Why there is no response; of certificates, why the first name does not fit.
pub async fn fetch_configz(
    access: &Access,
    kubelet: &KubeletAddress,
    node_name: Option<&str>,
) -> Result<Response, RequestError> {
    let Some(node_name) = node_name.filter(|_| kubelet.server_name.is_none()) else {
        return ask(access, kubelet.clone()).await;
    };
    let by_name = KubeletAddress { server_name: Some(node_name.to_owned()), ..kubelet.clone() };
    match ask(access, by_name).await {
        Err(error @ RequestError::Certificate { .. }) => match ask(access, kubelet.clone()).await {
            Err(RequestError::Certificate { .. }) => Err(error),
            result => result,
        },
        result => result,
    }
}

async fn ask(access: &Access, kubelet: KubeletAddress) -> Result<Response, RequestError> {
    let client = Client::new(access.to_kubelet(kubelet)?)?;
    client.request(Request::get(CONFIGZ_PATH).within(WITHIN)).await
}
