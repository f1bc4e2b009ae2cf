//! The node's own `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1), read as it is.
//!
//! Mirrors what kubelet v1.36.3 makes of it at start: decoding, defaults, drop-in files and
//! `ParseThresholdConfig`. KubeletFields that do not count here are ignored.

mod configz;
mod drop_in;
mod fields;
mod gates;
mod layers;
mod notes;
mod replay;
mod settings;
#[cfg(test)]
mod tests;
mod thresholds;

use std::path::Path;

use serde_json::{Map, Value};

use super::document::read_document;
use super::problem::{Problem, Problems};
use super::read::read;
pub use configz::Effective;
pub use drop_in::files_of;
use eviction_core::policy::eviction_settings::EvictionSettings;
use eviction_core::policy::eviction_settings::KernelKillMode;
use eviction_core::policy::{Policy, Rules, Threshold};
pub use fields::KubeletFields;
use fields::{default_eviction_hard, retain_known};
use layers::Layers;
pub use replay::{KubeletError, kubelet_policy};
pub use settings::{Origin, Setting};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// What a node's configuration comes to.
#[derive(Clone, Debug)]
pub struct KubeletConfiguration {
    /// What the engine decides by.
    pub policy: Policy,
    /// Every value that counts, and where it came from.
    pub settings: Vec<Setting>,
    /// What is accepted but will surprise.
    pub notes: Vec<Problem>,
}

/// Reads a configuration file and lays the `*.conf` files of a directory over it, as the
/// kubelet's `--config` and `--config-dir` do. Without a file all is default.
///
/// # Errors
/// Everything that is wrong, each with its file and field.
pub fn load_kubelet(
    file: Option<&Path>,
    drop_in_dir: Option<&Path>,
) -> Result<KubeletConfiguration, Problems> {
    let mut problems = Vec::new();
    let mut layers = Layers::default();
    if let Some(file) = file {
        match read_document(file, API_VERSION, KIND) {
            Ok(object) => layers = Layers::new(object, &Origin::File(file.to_owned())),
            Err(wrong) => problems.extend(wrong),
        }
    }
    default_eviction_hard(&mut layers.object);
    let mut notes = Vec::new();
    if let Some(dir) = drop_in_dir {
        layers.omit_empty();
        match drop_in::list(dir) {
            Ok(found) => {
                for file in found.files {
                    match read_document(&file, API_VERSION, KIND) {
                        Ok(object) => layers.lay_over(object, &Origin::DropIn(file)),
                        Err(wrong) => problems.extend(wrong),
                    }
                }
                notes = found.skipped;
            }
            Err(problem) => problems.push(problem),
        }
        layers.omit_empty();
    }
    finish(layers, problems, notes, file)
}

/// What fields of a KubeletConfiguration come to that stand in a file of another kind.
pub(super) fn resolve_given(
    mut object: Map<String, Value>,
    file: Option<&Path>,
) -> Result<KubeletConfiguration, Problems> {
    let origin = file.map_or(Origin::Default, |file| Origin::File(file.to_owned()));
    let given = Layers::new(object.clone(), &origin);
    default_eviction_hard(&mut object);
    finish(Layers { object, ..given }, Vec::new(), Vec::new(), file)
}

/// From what is said to what is decided by. `place` is where everything stands that is nowhere else.
fn finish(
    layers: Layers,
    mut problems: Vec<Problem>,
    notes: Vec<Problem>,
    place: Option<&Path>,
) -> Result<KubeletConfiguration, Problems> {
    let Layers { mut object, origins } = layers;
    retain_known(&mut object);
    let located = |problem: Problem| {
        let field = problem.path.split(['[', '.']).next().unwrap_or_default();
        let origin = origins.get(&problem.path).or_else(|| origins.get(field));
        let found = problem.file.clone().or_else(|| origin?.file().map(Path::to_owned));
        problem.in_file(found.as_deref().or(place))
    };
    let fields: KubeletFields = read(Value::Object(object), &mut problems).unwrap_or_default();
    let thresholds = thresholds::resolve(&fields, &mut problems);
    if !problems.is_empty() {
        return Err(Problems(problems.into_iter().map(located).collect()));
    }
    let policy = policy(&fields, thresholds);
    let surprises = notes::collect(&fields, &policy).into_iter().map(&located);
    Ok(KubeletConfiguration {
        settings: settings::list(&fields, &policy, &origins),
        notes: notes.into_iter().map(&located).chain(surprises).collect(),
        policy,
    })
}

fn policy(fields: &KubeletFields, (thresholds, list_room): (Vec<Threshold>, usize)) -> Policy {
    Policy {
        thresholds,
        kubelet_thresholds: Vec::new(),
        list_room,
        pressure_transition_period: fields.pressure_transition_period(),
        max_pod_grace_period_seconds: fields.eviction_max_pod_grace_period.unwrap_or(0).into(),
        local_storage_capacity_isolation: fields.local_storage_capacity_isolation.unwrap_or(true),
        gates: gates::resolve(&fields.feature_gates.clone().unwrap_or_default()),
        rules: Rules::kubelet(),
        kernel_kill: KernelKillMode::Off,
        eviction: EvictionSettings::default(),
    }
}
