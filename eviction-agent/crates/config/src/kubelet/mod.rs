//! The node's own `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1), read as it is.
//!
//! Mirrors what kubelet v1.36.3 makes of it at start: decoding, defaults, drop-in files,
//! feature gates, validation and `ParseThresholdConfig`. Fields that do not count here are
//! ignored.

mod configz;
mod drop_in;
mod fields;
mod gates;
mod kinds;
mod layer;
mod notes;
mod reserved;
mod rules;
mod settings;
#[cfg(test)]
mod tests;
mod thresholds;
mod validate;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::document::{Document, got};
use super::problem::{Problem, Problems};
pub use configz::Effective;
pub use drop_in::files_of;
use eviction_core::hands::EvictionSettings;
use eviction_core::policy::{Policy, Rules, Threshold};
use eviction_core::reflex::KernelKill;
use eviction_core::units::{GoDuration, Quantity};
use fields::Fields;
use layer::{Layer, Origins};
pub use settings::{Origin, Setting};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// What a node's configuration comes to.
#[derive(Clone, Debug)]
pub struct KubeletConfiguration {
    /// What the engine decides by.
    pub policy: Policy,
    /// How often the kubelet computes its status.
    pub node_status_update_frequency: GoDuration,
    /// How often the kubelet posts an unchanged status.
    pub node_status_report_frequency: GoDuration,
    /// `systemReserved`, by resource.
    pub system_reserved: BTreeMap<String, Quantity>,
    /// `kubeReserved`, by resource.
    pub kube_reserved: BTreeMap<String, Quantity>,
    /// Every value that counts, and where it came from.
    pub settings: Vec<Setting>,
    /// What is accepted but will surprise.
    pub notes: Vec<Problem>,
}

/// At which step of its start the kubelet gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A wrong JSON type or a bad duration.
    Decode,
    /// A feature gate that is unknown, fixed, or lacks another. (The kubelet panics.)
    FeatureGates,
    /// `ValidateKubeletConfiguration`.
    Validate,
    /// `ParseThresholdConfig`.
    Thresholds,
}

impl Stage {
    /// The name in scenario files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::FeatureGates => "featureGates",
            Self::Validate => "validate",
            Self::Thresholds => "thresholds",
        }
    }
}

/// The error that ends the kubelet's start. At stage thresholds the text is the kubelet's;
/// of several errors it is the first in the order of the maps and, within one, of the keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct KubeletError {
    /// When it happens.
    pub stage: Stage,
    /// What it says.
    pub text: String,
}

/// What the kubelet makes of a configuration as a scenario file has it: `apiVersion` and
/// `kind` may be absent, and null is the same as an empty object.
///
/// # Errors
/// The first error that the kubelet would report, where chance decides always the same.
pub fn kubelet_policy(configuration: &Value) -> Result<Policy, KubeletError> {
    let mut problems = Vec::new();
    let object = match configuration {
        Value::Object(object) => object.clone(),
        Value::Null => Map::new(),
        other => {
            let cause = format!("must be an object, got {}", got(other));
            problems.push(Problem::new("", cause));
            Map::new()
        }
    };
    for (key, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        if object.get(key).is_some_and(|value| value != wanted) {
            problems.push(Problem::new(key, format!("is not `{wanted}`")));
        }
    }
    problems.extend(kinds::wrong(&object).map(|key| Problem::new(key, "has the wrong type")));
    let document = Document { file: None, object };
    let mut fields = Fields::default();
    fields.read(&mut Layer {
        document: &document,
        patch: false,
        origin: None,
        problems: &mut problems,
        origins: &mut Origins::new(),
    });
    fields.default_eviction_hard();
    let first = |stage: Stage, problems: &mut Vec<Problem>| match problems.first() {
        Some(problem) => Err(KubeletError { stage, text: problem.cause.clone() }),
        None => Ok(()),
    };
    first(Stage::Decode, &mut problems)?;
    let gates = gates::resolve(fields.feature_gates.as_ref(), &mut problems);
    first(Stage::FeatureGates, &mut problems)?;
    validate::enforce_node_allocatable(&fields, &mut problems);
    let broken = rules::broken(&document.object, &gates);
    problems.extend(broken.map(|path| Problem::new(path, "is not valid")));
    first(Stage::Validate, &mut problems)?;
    let thresholds = thresholds::resolve(&fields, &mut problems);
    first(Stage::Thresholds, &mut problems)?;
    Ok(policy(&fields, thresholds, &gates))
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
    let mut origins = Origins::new();
    let mut fields = Fields::default();
    if let Some(file) = file {
        fields.lay_over(file, false, &mut problems, &mut origins);
    }
    fields.default_eviction_hard();
    let mut notes = Vec::new();
    if let Some(dir) = drop_in_dir {
        fields.omit_empty(&mut origins);
        match drop_in::list(dir) {
            Ok(found) => {
                for file in &found.files {
                    fields.lay_over(file, true, &mut problems, &mut origins);
                }
                notes = found.skipped;
            }
            Err(problem) => problems.push(problem),
        }
        fields.omit_empty(&mut origins);
    }
    // The kubelet that runs with them may be of another version than the one whose gates are known.
    let mut strange = Vec::new();
    gates::resolve(fields.feature_gates.as_ref(), &mut strange);
    notes.extend(strange.into_iter().map(|gate| Problem {
        cause: format!("{}; taken as it is, since the kubelet may be of another version", gate.cause),
        ..gate
    }));
    let gates = gates::in_force(fields.feature_gates.as_ref());
    finish(&fields, gates, problems, origins, notes, file)
}

/// What fields of a KubeletConfiguration come to that stand in a file of another kind.
pub(super) fn resolve_given(
    object: Map<String, Value>,
    file: Option<&Path>,
) -> Result<KubeletConfiguration, Problems> {
    let mut problems = Vec::new();
    let mut origins = Origins::new();
    let mut fields = Fields::default();
    let origin = file.map(|file| Origin::File(file.to_owned()));
    let document = Document { file: None, object };
    let mut layer =
        Layer { document: &document, patch: false, origin, problems: &mut problems, origins: &mut origins };
    fields.read(&mut layer);
    fields.default_eviction_hard();
    finish(&fields, gates::in_force(None), problems, origins, Vec::new(), file)
}

/// From what is said to what is decided by. `place` is where everything stands that is nowhere else.
fn finish(
    fields: &Fields,
    gates: gates::Enabled,
    mut problems: Vec<Problem>,
    origins: Origins,
    notes: Vec<Problem>,
    place: Option<&Path>,
) -> Result<KubeletConfiguration, Problems> {
    let located = |problem: Problem| {
        let field = problem.path.split(['[', '.']).next().unwrap_or_default();
        let origin = origins.get(&problem.path).or_else(|| origins.get(field));
        let found = problem.file.clone().or_else(|| origin?.file().map(Path::to_owned));
        problem.in_file(found.as_deref().or(place))
    };
    validate::enforce_node_allocatable(fields, &mut problems);
    let thresholds = thresholds::resolve(fields, &mut problems);
    let system_reserved = reserved::parse("systemReserved", &fields.system_reserved, &mut problems);
    let kube_reserved = reserved::parse("kubeReserved", &fields.kube_reserved, &mut problems);
    if !problems.is_empty() {
        return Err(Problems(problems.into_iter().map(located).collect()));
    }
    let policy = policy(fields, thresholds, &gates);
    let surprises = notes::collect(fields, &policy).into_iter().map(&located);
    Ok(KubeletConfiguration {
        node_status_update_frequency: fields.status_update_frequency(),
        node_status_report_frequency: fields.status_report_frequency(),
        system_reserved,
        kube_reserved,
        settings: settings::list(fields, &policy, &origins),
        notes: notes.into_iter().map(located).chain(surprises).collect(),
        policy,
    })
}

impl Fields {
    /// Reads a file over what is there.
    fn lay_over(&mut self, file: &Path, patch: bool, problems: &mut Vec<Problem>, origins: &mut Origins) {
        match Document::read(file, API_VERSION, KIND) {
            Ok(document) => {
                let file = file.to_owned();
                let origin = Some(if patch { Origin::DropIn(file) } else { Origin::File(file) });
                self.read(&mut Layer { document: &document, patch, origin, problems, origins });
            }
            Err(wrong) => problems.extend(wrong),
        }
    }
}

fn policy(
    fields: &Fields,
    (thresholds, list_room): (Vec<Threshold>, usize),
    gates: &gates::Enabled,
) -> Policy {
    Policy {
        thresholds,
        kubelet_thresholds: Vec::new(),
        list_room,
        pressure_transition_period: fields.pressure_transition_period(),
        max_pod_grace_period_seconds: fields.eviction_max_pod_grace_period.unwrap_or(0).into(),
        local_storage_capacity_isolation: fields.local_storage_capacity_isolation.unwrap_or(true),
        gates: gates.policy(),
        rules: Rules::kubelet(),
        reflex: KernelKill::Off,
        hands: EvictionSettings::default(),
    }
}
