//! What outlives the agent: where it is, what the former one has left there, and who writes it from now on.

use std::path::Path;
use std::sync::Arc;

use super::cluster::{BOOT_ID, read_boot_id};
use super::failure::Failure;
use super::reaction::Keep;
use super::run::Options;
use super::state::{Identity, Keeper, Recalled, Written, keeper, recall};
use crate::config::Act;
use crate::metrics::Metrics;

/// Where the state is kept in a pod, unless it is told otherwise: what is of this boot is best in
/// memory.
const STATE: &str = "/run/eviction-agent/state.json";

/// What writes the state, and for those that wait until it is written; nothing where it is not kept.
pub(crate) type Kept = Option<(Keeper, Written)>;

/// What the former agent knew, and what keeps what this one knows for the next.
///
/// # Errors
/// If the kernel does not say which boot this is, or there can be no lane.
pub(crate) fn open(
    options: &Options,
    act: Act,
    metrics: &Arc<Metrics>,
) -> Result<(Keep, Kept, Recalled), Failure> {
    // In a pod, the folder that the kill hand has there as well.
    let in_pod = options.kubeconfig.is_none() && (options.cluster.is_some() || act.asks_server());
    let by_default = in_pod && !act.is_dry();
    let path = options.state.clone().or_else(|| by_default.then(|| STATE.into()));
    let Some(path) = path else { return Ok((Keep::default(), None, Recalled::default())) };
    let boot_id = read_boot_id(Path::new(BOOT_ID))
        .ok_or_else(|| Failure::failed(format!("find out this boot's id: {BOOT_ID} says nothing")))?;
    let identity = Identity {
        boot_id: boot_id.into(),
        node: options.cluster.as_ref().and_then(|cluster| cluster.node_name.as_deref()).map(Into::into),
        cgroup_root: options.cgroup_root.display().to_string().into(),
        act: act.name().into(),
    };
    let recalled = recall(&path, &identity);
    let (lane, keeper, written) = keeper(&path, identity, recalled.names, metrics)?;
    Ok((Keep::by(lane), Some((keeper, written)), recalled))
}
