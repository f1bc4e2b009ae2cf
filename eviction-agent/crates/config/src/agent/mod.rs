//! The agent's own configuration: `eviction-agent.io/v1alpha1`, `AgentConfiguration`.
//!
//! The fields of `policy`, their defaults and documentation are those of
//! [`core::preferences`](eviction_core::policy::preferences).
//! The JSON schema in `schema/` is generated from these types.

mod margin;
#[cfg(test)]
mod override_tests;
mod rules;
mod settings;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use eviction_core::policy::eviction_settings::{EvictionSettings, KernelKillMode};
use eviction_core::policy::preferences::{Preferences, Profile, SignalThresholds};
use eviction_core::policy::{Policy, Rules, Threshold};
use eviction_core::signal::Signal;
use eviction_core::units::{GoDuration, Limit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::kubelet::{KubeletConfiguration, Origin, Setting, resolve_fields};
use crate::problem::{Problem, Problems, member};
use crate::read::{describe, read, read_document};
use crate::yaml;

pub use margin::{Capacities, MarginMode, SignalMargin, ThresholdMargin};
pub use settings::{
    Action, ActionSettings, Configz, DryRun, EvictionRequests, KubeletFiles, MemoryLimits, MetricsSettings,
    PodMetrics, PodStorageSettings, PodStorageSource, Probes, ReclaimSettings, RecorderSettings, Server,
    ThresholdSettings, ThresholdSource,
};

const API_VERSION: &str = "eviction-agent.io/v1alpha1";
const KIND: &str = "AgentConfiguration";

/// Configuration of eviction-agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(extend("required" = ["apiVersion", "kind"]))]
pub struct AgentConfiguration {
    /// The version of this format.
    api_version: ApiVersion,
    /// The kind of this file.
    kind: Kind,
    /// The rules that the agent decides by.
    pub profile: Profile,
    /// What the agent does with a victim.
    pub action: Action,
    /// Whether the action is only tried.
    pub dry_run: DryRun,
    /// How the enhanced profile decides.
    pub policy: Preferences,
    /// Where the kubelet's settings come from.
    pub thresholds: ThresholdSettings,
    /// How far the thresholds lie above the kubelet's.
    pub threshold_margin: ThresholdMargin,
    /// When the expensive kernel probes are attached.
    pub probes: Probes,
    /// Which evictions a BPF program may carry out in the kernel, in either profile.
    pub kernel_kill: KernelKillMode,
    /// How evictions are carried out, in either profile.
    pub eviction: EvictionSettings,
    /// The container runtime, and which images stay.
    pub reclaim: ReclaimSettings,
    /// How it is known what pods use of the disks.
    pub pod_storage: PodStorageSettings,
    /// Eviction requests to the API server.
    pub eviction_requests: EvictionRequests,
    /// Memory limits of pods, containers and the cgroups above them.
    pub memory_limits: MemoryLimits,
    /// What is exported as metrics.
    pub metrics: MetricsSettings,
    /// Recordings of what the engine decides by.
    pub recorder: RecorderSettings,
    /// The HTTP server of the agent.
    pub server: Server,
    /// Where it was read.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// Every value, and where it came from.
    #[serde(skip)]
    pub settings: Vec<Setting>,
    /// What is accepted but will surprise.
    #[serde(skip)]
    pub notes: Vec<Problem>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
enum ApiVersion {
    #[default]
    #[serde(rename = "eviction-agent.io/v1alpha1")]
    V1Alpha1,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
enum Kind {
    #[default]
    AgentConfiguration,
}

/// Reads the agent's configuration, YAML or JSON. Without a file all values are defaults.
///
/// # Errors
/// If the configuration is invalid: all errors, each with its field.
pub fn load_agent(file: Option<&Path>) -> Result<AgentConfiguration, Problems> {
    let object = match file {
        Some(file) => read_document(file, API_VERSION, KIND, yaml::parse_strict).map_err(Problems)?,
        None => Map::new(),
    };
    resolve(object, file)
}

/// Resolves a configuration in the form of a scenario file: `apiVersion` and `kind` may be absent, and null
/// is the same as an empty object.
///
/// # Errors
/// If the configuration is invalid: all errors, each with its field.
pub fn parse_agent(configuration: &Value) -> Result<AgentConfiguration, Problems> {
    match configuration {
        Value::Object(object) => resolve(object.clone(), None),
        Value::Null => resolve(Map::new(), None),
        other => Err(Problem::new("", format!("must be an object, got {}", describe(other))).into()),
    }
}

fn resolve(given: Map<String, Value>, file: Option<&Path>) -> Result<AgentConfiguration, Problems> {
    let mut given = Value::Object(given);
    drop_nulls(&mut given);
    let mut problems = Vec::new();
    rules::check(&given, &mut problems);
    let mut document = given.clone();
    reject_lists(&mut document, &to_value(&AgentConfiguration::default()), "", &mut problems);
    let parsed: Option<AgentConfiguration> = read(document, &mut problems);
    let all = parsed.as_ref().map(to_value).unwrap_or_default();
    if problems.is_empty() {
        reject_lists(&mut given, &all, "", &mut problems);
    }
    let (Some(parsed), true) = (parsed, problems.is_empty()) else {
        problems.sort_by(|a, b| a.path.cmp(&b.path));
        return Err(Problems(problems.into_iter().map(|problem| problem.in_file(file)).collect()));
    };
    let mut resolved = AgentConfiguration {
        file: file.map(Path::to_owned),
        settings: settings(&all, &given, file),
        ..parsed
    };
    resolved.update_notes();
    Ok(resolved)
}

impl AgentConfiguration {
    /// Returns the action for the chosen pods.
    pub fn action(&self) -> ActionSettings {
        ActionSettings { action: self.action, dry_run: self.dry_run }
    }

    /// Sets a field, such as `server.listenAddress`, to the value that is given on the command line.
    ///
    /// # Errors
    /// If there is no such field, or it cannot have this value.
    pub fn override_setting(&mut self, path: &str, value: Value) -> Result<(), Problem> {
        let wrong = |error: serde_json::Error| Problem::new(path, error);
        let mut all = serde_json::to_value(&*self).map_err(wrong)?;
        let text = text(&value);
        if !set_field(&mut all, path, value) {
            return Err(Problem::new(path, "is not known here"));
        }
        let changed: Self = serde_json::from_value(all).map_err(wrong)?;
        let (file, settings) = (self.file.take(), std::mem::take(&mut self.settings));
        *self = Self { file, settings, ..changed };
        self.note_override(path, text);
        Ok(())
    }

    /// Sets a field to the path that is given on the command line. Unlike a path in a file, it need not be UTF-8.
    pub fn override_path(
        &mut self,
        path: &str,
        value: &Path,
        field: impl FnOnce(&mut Self) -> &mut Option<PathBuf>,
    ) {
        *field(self) = Some(value.to_owned());
        self.note_override(path, value.display().to_string());
    }

    fn note_override(&mut self, path: &str, value: String) {
        let setting = Setting { path: path.to_owned(), value, origin: Origin::CommandLine };
        match self.settings.iter_mut().find(|setting| setting.path == path) {
            Some(other) => *other = setting,
            None => self.settings.push(setting),
        }
        self.update_notes();
    }

    fn update_notes(&mut self) {
        self.notes.clear();
        if self.profile == Profile::Kubelet && self.policy != Preferences::default() {
            let note = Problem::new("policy", "is not used: the profile is `Kubelet`");
            self.notes.push(note.in_file(self.file.as_deref()));
        }
    }
}

/// Removes nulls. As in Kubernetes, null is the same as absent, for example a key with only commented-out
/// members.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, value| !value.is_null());
            object.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn to_value(file: &AgentConfiguration) -> Value {
    serde_json::to_value(file).unwrap_or_default()
}

/// Sets a field of a configuration, such as `policy.maxEvictionsPerSync`. Returns false if a part of the path is a value
/// without fields.
pub fn set_field(configuration: &mut Value, path: &str, value: Value) -> bool {
    let mut field = configuration;
    for key in path.split('.') {
        if !field.is_object() && !field.is_null() {
            return false;
        }
        field = &mut field[key];
    }
    *field = value;
    true
}

/// Returns a value as it would be written in a file.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Replaces lists by the object that they should be `like`, with an error, since serde reads an object from a
/// list as well.
fn reject_lists(given: &mut Value, like: &Value, path: &str, problems: &mut Vec<Problem>) {
    match (given, like) {
        (Value::Object(given), Value::Object(like)) => {
            for (key, value) in given {
                if let Some(like) = like.get(key) {
                    reject_lists(value, like, &member(path, key), problems);
                }
            }
        }
        (Value::Array(given), Value::Array(like)) => {
            for (index, (value, like)) in given.iter_mut().zip(like).enumerate() {
                reject_lists(value, like, &format!("{path}[{index}]"), problems);
            }
        }
        (given @ Value::Array(_), Value::Object(_)) => {
            problems.push(Problem::new(path, "must be an object, got a list"));
            *given = like.clone();
        }
        _ => {}
    }
}

/// Returns all values, from the file and the defaults: the profile first, then the others by name.
fn settings(all: &Value, given: &Value, file: Option<&Path>) -> Vec<Setting> {
    let mut settings = Vec::new();
    flatten(String::new(), all, Some(given), file, &mut settings);
    settings.retain(|setting| !matches!(setting.path.as_str(), "apiVersion" | "kind"));
    settings.sort_by_key(|setting| setting.path != "profile");
    settings
}

fn flatten(path: String, value: &Value, given: Option<&Value>, file: Option<&Path>, into: &mut Vec<Setting>) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (key, value) in object {
                let given = given.and_then(|given| given.get(key));
                flatten(member(&path, key), value, given, file, into);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            for (index, value) in list.iter().enumerate() {
                let given = given.and_then(|given| given.get(index));
                flatten(format!("{path}[{index}]"), value, given, file, into);
            }
        }
        value => {
            let origin = match (given, file) {
                (Some(_), Some(file)) => Origin::File(file.to_owned()),
                _ => Origin::Default,
            };
            into.push(Setting { path, value: text(value), origin });
        }
    }
}

const INLINE_PATH: &str = "thresholds.inline";

impl AgentConfiguration {
    /// Resolves `thresholds.inline` as a kubelet would.
    ///
    /// # Errors
    /// If it is invalid: all errors.
    pub fn resolve_inline(&self) -> Result<KubeletConfiguration, Problems> {
        let file = self.file.as_deref();
        let Ok(Value::Object(object)) = serde_json::to_value(&self.thresholds.inline) else {
            // Defaults must not replace the given values.
            return Err(Problem::new(INLINE_PATH, "is missing").in_file(file).into());
        };
        let at_inline_path = |problem: Problem| {
            let path = format!("{INLINE_PATH}.{}", problem.path);
            Problem { path, ..problem }.in_file(file)
        };
        let mut resolved = resolve_fields(object, file)
            .map_err(|Problems(problems)| Problems(problems.into_iter().map(at_inline_path).collect()))?;
        resolved.notes = resolved.notes.into_iter().map(at_inline_path).collect();
        Ok(resolved)
    }

    /// Applies this profile to the kubelet's settings.
    pub fn over(&self, kubelet: Policy) -> Policy {
        let (kernel_kill, eviction) = (self.kernel_kill, self.eviction);
        let mut policy = Policy { rules: Rules::kubelet(), kernel_kill, eviction, ..kubelet };
        if self.profile == Profile::Enhanced {
            policy.thresholds = with_own_thresholds(&policy.thresholds, &self.policy.signals);
            policy.rules = Rules::enhanced(&self.policy);
        }
        policy
    }
}

/// Replaces the kubelet's thresholds of the given signals. Hard thresholds of allocatable memory that are
/// copies of the hard memory threshold change with it.
fn with_own_thresholds(kubelet: &[Threshold], own: &[SignalThresholds]) -> Vec<Threshold> {
    let replaced = |signal: Signal| own.iter().any(|own| own.signal == signal);
    let copies: Vec<Threshold> = kubelet.iter().filter_map(Threshold::copy_for_all_pods).collect();
    let is_copy = |threshold: &Threshold| copies.iter().any(|copy| copy.is_like(threshold));
    let copied = kubelet.iter().any(is_copy);
    let is_replaced = |threshold: &Threshold| {
        replaced(threshold.signal) || replaced(Signal::MemoryAvailable) && is_copy(threshold)
    };
    let mut thresholds: Vec<Threshold> =
        kubelet.iter().filter(|threshold| !is_replaced(threshold)).cloned().collect();
    for own in own {
        let SignalThresholds { signal, hard, soft, grace_period, min_reclaim } = own;
        let threshold = |limit: &Limit, grace_period| Threshold {
            signal: *signal,
            value: limit.value().clone(),
            grace_period,
            min_reclaim: min_reclaim.as_ref().map(|limit| limit.value().clone()),
        };
        if let Some(hard) = hard {
            let hard = threshold(hard, GoDuration::ZERO);
            let is_copied = copied && !replaced(Signal::AllocatableMemoryAvailable);
            let copy = hard.copy_for_all_pods().filter(|_| is_copied);
            thresholds.push(hard);
            thresholds.extend(copy);
        }
        if let (Some(soft), Some(grace_period)) = (soft, grace_period) {
            thresholds.push(threshold(soft, *grace_period));
        }
    }
    // Hard thresholds first; the sort is stable.
    thresholds.sort_by_key(|threshold| !threshold.is_hard());
    thresholds
}
