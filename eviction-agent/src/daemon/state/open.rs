//! Opens the state file: restores what the agent before left there, and starts its writer.

use std::path::Path;
use std::sync::Arc;

use eviction_config::ActionSettings;

use super::{DurableRevision, Identity, RestoredState, StateWriter, keeper, restore};
use crate::daemon::configuration::Options;
use crate::daemon::control_loop::StateSender;
use crate::error::Failure;
use crate::telemetry::metrics::Metrics;

/// The file in a state directory.
const STATE_FILE: &str = "state.json";

/// The id of this boot of the machine, by the kernel.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The writer of the state, and the revision that is written; `None` if no state is kept.
pub(crate) type PersistedState = Option<(StateWriter, DurableRevision)>;

/// Restores the state of the agent before, and returns what writes that of this one.
///
/// # Errors
/// If the id of the boot cannot be read, or the channel to the writer cannot be made.
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
    let restored = restore(&path, &identity);
    let (sender, writer, written) = keeper(&path, identity, restored.names, metrics)?;
    Ok((StateSender::by(sender), Some((writer, written)), restored))
}

/// The id of this boot; nothing if it cannot be read.
pub(crate) fn read_boot_id() -> Option<String> {
    Some(std::fs::read_to_string(BOOT_ID).ok()?.trim().to_owned()).filter(|id| !id.is_empty())
}
