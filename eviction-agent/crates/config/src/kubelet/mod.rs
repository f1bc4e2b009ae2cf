//! Reads the node's own `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1).
//!
//! Mirrors how kubelet v1.36.3 processes it at start: decoding, defaults, drop-in files and
//! `ParseThresholdConfig`. Other fields are ignored.

mod fields;
mod files;
mod replay;
#[cfg(test)]
mod tests;
mod thresholds;

use std::fmt;
use std::path::{Path, PathBuf};

use eviction_core::policy::eviction_settings::{EvictionSettings, KernelKillMode};
use eviction_core::policy::{Policy, Rules, Threshold};
use eviction_core::units::{GoDuration, ThresholdValue, parse_percentage};
pub use fields::KubeletFields;
use fields::{StringMap, default_eviction_hard, retain_known};
pub use files::Effective;
use files::{Layers, Origins};
pub use replay::kubelet_policy;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::problem::{Problem, Problems, member};
use crate::read::{read, read_document};
use crate::yaml;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// The resolved configuration of a node's kubelet.
#[derive(Clone, Debug)]
pub struct KubeletConfiguration {
    /// The policy for the engine.
    pub policy: Policy,
    /// `containerRuntimeEndpoint`, if it is set.
    pub container_runtime_endpoint: Option<String>,
    /// `imageMinimumGCAge`.
    pub image_minimum_gc_age: GoDuration,
    /// All used values with their origin.
    pub settings: Vec<Setting>,
    /// Notes on values that are accepted but may be unexpected.
    pub notes: Vec<Problem>,
}

/// Reads a configuration file and applies the `*.conf` files of a directory, as the kubelet's `--config` and
/// `--config-dir` do. Without a file all values are defaults.
///
/// # Errors
/// If the configuration is invalid: all errors, each with its file and field.
pub fn load_kubelet(
    file: Option<&Path>,
    drop_in_dir: Option<&Path>,
) -> Result<KubeletConfiguration, Problems> {
    let mut problems = Vec::new();
    let mut layers = Layers::default();
    if let Some(file) = file {
        match read_document(file, API_VERSION, KIND, yaml::parse) {
            Ok(object) => layers = Layers::new(object, &Origin::File(file.to_owned())),
            Err(wrong) => problems.extend(wrong),
        }
    }
    default_eviction_hard(&mut layers.object);
    let mut notes = Vec::new();
    if let Some(dir) = drop_in_dir {
        layers.omit_empty();
        match files::list_drop_ins(dir, &mut notes) {
            Ok(drop_ins) => {
                for file in drop_ins {
                    match read_document(&file, API_VERSION, KIND, yaml::parse) {
                        Ok(object) => layers.apply_patch(object, &Origin::DropIn(file)),
                        Err(wrong) => problems.extend(wrong),
                    }
                }
            }
            Err(problem) => problems.push(problem),
        }
        layers.omit_empty();
    }
    resolve_layers(layers, problems, notes, file)
}

/// Resolves fields of a KubeletConfiguration that are in a file of another kind.
pub(super) fn resolve_fields(
    object: Map<String, Value>,
    file: Option<&Path>,
) -> Result<KubeletConfiguration, Problems> {
    let origin = file.map_or(Origin::Default, |file| Origin::File(file.to_owned()));
    let mut layers = Layers::new(object, &origin);
    default_eviction_hard(&mut layers.object);
    resolve_layers(layers, Vec::new(), Vec::new(), file)
}

/// Resolves the fields. `place` is the location of errors that have no other one.
fn resolve_layers(
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
    let warnings = collect_notes(&fields, &policy).into_iter().map(&located);
    Ok(KubeletConfiguration {
        container_runtime_endpoint: fields.container_runtime_endpoint.clone().filter(|it| !it.is_empty()),
        image_minimum_gc_age: fields.image_minimum_gc_age(),
        settings: list_settings(&fields, &policy, &origins),
        notes: notes.into_iter().map(&located).chain(warnings).collect(),
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
        gates: fields::resolve(&fields.feature_gates.clone().unwrap_or_default()),
        rules: Rules::kubelet(),
        kernel_kill: KernelKillMode::Off,
        eviction: EvictionSettings::default(),
    }
}

/// A value of the resolved configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The field, such as `evictionHard["memory.available"]`.
    pub path: String,
    /// Its value as it would be written in a file.
    pub value: String,
    /// The source of the value.
    pub origin: Origin,
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// The value is not set, or zero.
    Default,
    /// A file.
    File(PathBuf),
    /// A drop-in file.
    DropIn(PathBuf),
    /// The running kubelet, at this URL.
    Configz(String),
    /// An environment variable.
    Environment(String),
    /// An option on the command line.
    CommandLine,
}

impl Origin {
    /// Returns whether the value is not set.
    pub fn is_default(&self) -> bool {
        matches!(self, Self::Default)
    }

    /// Returns the file that contains the value.
    fn file(&self) -> Option<&Path> {
        match self {
            Self::File(file) | Self::DropIn(file) => Some(file),
            Self::Default | Self::Configz(_) | Self::Environment(_) | Self::CommandLine => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(file) => write!(f, "{}", file.display()),
            Self::DropIn(file) => write!(f, "drop-in {}", file.display()),
            Self::Configz(url) => write!(f, "configz {url}"),
            Self::Environment(variable) => write!(f, "environment {variable}"),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, value, origin } = self;
        write!(f, "{path} = {value} ({origin})")
    }
}

/// Returns all settings, in the order of the documentation.
fn list_settings(fields: &KubeletFields, policy: &Policy, origins: &Origins) -> Vec<Setting> {
    let origin = |path: &str| origins.get(path).cloned().unwrap_or(Origin::Default);
    let setting = |path: &str, value: String| Setting { path: path.to_owned(), value, origin: origin(path) };
    let map = |field: &str, map: &Option<StringMap>| -> Vec<Setting> {
        map.iter().flatten().map(|(key, value)| setting(&member(field, key), value.clone())).collect()
    };
    let mut settings = map("evictionHard", &fields.eviction_hard);
    settings.extend(map("evictionSoft", &fields.eviction_soft));
    settings.extend(map("evictionSoftGracePeriod", &fields.eviction_soft_grace_period));
    settings.extend(map("evictionMinimumReclaim", &fields.eviction_minimum_reclaim));
    settings.extend([
        setting("evictionPressureTransitionPeriod", policy.pressure_transition_period.to_string()),
        setting("evictionMaxPodGracePeriod", policy.max_pod_grace_period_seconds.to_string()),
        setting("localStorageCapacityIsolation", policy.local_storage_capacity_isolation.to_string()),
        setting("enforceNodeAllocatable", format!("[{}]", fields.enforced().join(", "))),
        setting("imageMinimumGCAge", fields.image_minimum_gc_age().to_string()),
        setting("featureGates.KubeletSeparateDiskGC", policy.gates.separate_disk_gc.to_string()),
        setting("featureGates.PodLevelResources", policy.gates.pod_level_resources.to_string()),
    ]);
    let endpoint = fields.container_runtime_endpoint.clone();
    settings.extend(endpoint.map(|it| setting("containerRuntimeEndpoint", it)));
    settings
}

/// Returns notes on a valid configuration.
fn collect_notes(fields: &KubeletFields, policy: &Policy) -> Vec<Problem> {
    let mut notes = Vec::new();
    let has = |map: &Option<StringMap>, key: &str| map.as_ref().is_some_and(|map| map.contains_key(key));
    for (field, map) in [("evictionHard", &fields.eviction_hard), ("evictionSoft", &fields.eviction_soft)] {
        for (signal, text) in map.iter().flatten() {
            let mut note = |cause: &str| notes.push(Problem::new(member(field, signal), cause));
            if text == "0%" || text == "100%" {
                note("makes no threshold: 0% and 100% turn the signal off");
            }
            if text.ends_with('%') && parse_percentage(text).is_ok_and(f32::is_nan) {
                note("is not a number and is never met");
            }
            if signal.starts_with("containerfs.") {
                note("is ignored: containerfs follows nodefs or imagefs");
            }
        }
    }
    let mut note = |path: String, cause: &str| notes.push(Problem::new(path, cause));
    const IDLE: &str = "is idle: there is no such threshold";
    for (key, text) in fields.eviction_soft_grace_period.iter().flatten() {
        let path = member("evictionSoftGracePeriod", key);
        if !has(&fields.eviction_soft, key) {
            note(path, IDLE);
        } else if GoDuration::parse(text) == Ok(GoDuration::ZERO) {
            note(path, "is zero, which makes the soft threshold a hard one");
        }
    }
    for key in fields.eviction_minimum_reclaim.iter().flatten().map(|(key, _)| key) {
        if !has(&fields.eviction_hard, key) && !has(&fields.eviction_soft, key) {
            note(member("evictionMinimumReclaim", key), IDLE);
        }
    }
    for threshold in &policy.thresholds {
        if let Some(ThresholdValue::Percentage(share)) = threshold.min_reclaim
            && (share > 1.0 || share.is_nan())
        {
            let path = member("evictionMinimumReclaim", threshold.signal.name());
            note(path, "is more than all there is: once met, never resolved");
        }
    }
    let period = "evictionPressureTransitionPeriod".to_owned();
    if fields.eviction_pressure_transition_period == Some(GoDuration::ZERO) {
        note(period, "zero means the default, 5m0s");
    } else if policy.pressure_transition_period < GoDuration::ZERO {
        note(period, "is negative: node conditions never show");
    }
    let soft = policy.thresholds.iter().any(|threshold| !threshold.is_hard());
    if soft && policy.max_pod_grace_period_seconds <= 0 {
        let cause = "is not above zero: soft evictions give pods no time to end";
        note("evictionMaxPodGracePeriod".to_owned(), cause);
    }
    notes
}
