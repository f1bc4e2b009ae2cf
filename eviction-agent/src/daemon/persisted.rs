//! What outlives the agent: where it is, what the former one has left there, and who writes it from now on.

use std::path::Path;
use std::sync::Arc;

use eviction_config::ActionSettings;

use super::control_loop::StateSender;
use super::state::{DurableRevision, Identity, RestoredState, StateWriter, keeper, restore};
use crate::daemon::configuration::Options;
use crate::error::Failure;
use crate::telemetry::metrics::Metrics;

/// The file of a state directory that has what outlives the agent within a boot.
const STATE_FILE: &str = "state.json";

/// The id of this boot of the machine, by the kernel.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What writes the state, and for those that wait until it is written; nothing where it is not kept.
pub(crate) type PersistedState = Option<(StateWriter, DurableRevision)>;

/// What the former agent knew, and what keeps what this one knows for the next.
///
/// # Errors
/// If the kernel does not say which boot this is, or there can be no lane.
pub(crate) fn open(
    options: &Options,
    state_dir: Option<&Path>,
    action: ActionSettings,
    metrics: &Arc<Metrics>,
) -> Result<(StateSender, PersistedState, RestoredState), Failure> {
    let Some(path) = state_dir.map(|dir| dir.join(STATE_FILE)) else {
        return Ok((StateSender::default(), None, RestoredState::default()));
    };
    let boot_id = read_boot_id()
        .ok_or_else(|| Failure::failed(format!("find out this boot's id: {BOOT_ID} says nothing")))?;
    let identity = Identity {
        boot_id: boot_id.into(),
        node: options.cluster.as_ref().and_then(|cluster| cluster.node_name.as_deref()).map(Into::into),
        cgroup_root: options.cgroup_root.display().to_string().into(),
        act: action.to_string().into(),
    };
    let recalled = restore(&path, &identity);
    let (lane, keeper, written) = keeper(&path, identity, recalled.names, metrics)?;
    Ok((StateSender::by(lane), Some((keeper, written)), recalled))
}

/// The id of this boot; nothing if it cannot be read.
pub(crate) fn read_boot_id() -> Option<String> {
    Some(std::fs::read_to_string(BOOT_ID).ok()?.trim().to_owned()).filter(|id| !id.is_empty())
}
