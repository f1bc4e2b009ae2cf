//! Decides whether kubelet v1.36.3 would start with a configuration, and resolves its policy. Scenarios
//! compare this. A running agent checks less, since its kubelet has started and may have another version.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use eviction_core::policy::Policy;
use eviction_core::units::GoDuration;
use serde_json::{Map, Value};

use crate::kubelet::fields::{KubeletFields, default_eviction_hard, is_gate_on, retain_known};
use crate::kubelet::{API_VERSION, KIND, fields, policy, thresholds};
use crate::problem::Problem;
use crate::read::{describe, integer, read};

/// Resolves a configuration as the kubelet does, in the form of a scenario file: `apiVersion` and `kind` may
/// be absent, and null is the same as an empty object.
///
/// # Errors
/// The error that stops the kubelet at start: the step of the start that fails, by its name in scenario files, and
/// the text. The steps are `decode` (a wrong JSON type or an invalid duration), `featureGates` (the kubelet panics),
/// `validate` (`ValidateKubeletConfiguration`) and `thresholds` (`ParseThresholdConfig`), whose text is the
/// kubelet's. Where the kubelet's choice is random, the error is the first one in the order of the maps, and within
/// a map of the keys.
pub fn kubelet_policy(configuration: &Value) -> Result<Policy, (&'static str, String)> {
    let fail = |stage, text: String| Err((stage, text));
    let mut map = match configuration {
        Value::Object(object) => object.clone(),
        Value::Null => Map::new(),
        other => return fail("decode", format!("must be an object, got {}", describe(other))),
    };
    default_eviction_hard(&mut map);
    let mut known = map.clone();
    retain_known(&mut known);
    let mut problems = wrong_types(&map);
    let fields: KubeletFields = read(Value::Object(known), &mut problems).unwrap_or_default();
    if let Some(problem) = problems.first() {
        return fail("decode", problem.to_string());
    }
    let given = fields.feature_gates.clone().unwrap_or_default();
    if let Some(error) = fields::gate_error(&given) {
        return fail("featureGates", error);
    }
    let values = Values { object: &map, gates: &given };
    if let Some(field) = enforcement(&values, &fields.enforced()).or_else(|| invalid_field(&values)) {
        return fail("validate", format!("{field}: is not valid"));
    }
    let thresholds = thresholds::resolve(&fields, &mut problems);
    match problems.first() {
        Some(problem) => fail("thresholds", problem.cause.clone()),
        None => Ok(policy(&fields, thresholds)),
    }
}

/// Returns decoding errors in the fields that the agent does not use.
fn wrong_types(object: &Map<String, Value>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (key, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        if object.get(key).is_some_and(|value| value != wanted) {
            problems.push(Problem::new(key, format!("is not `{wanted}`")));
        }
    }
    let typed = FIELD_TYPES.lines().filter_map(|line| line.split_once('\t'));
    let wrong = typed.filter(|(path, wanted)| value_at(object, path).is_some_and(|it| !has_type(it, wanted)));
    problems.extend(wrong.map(|(path, _)| Problem::new(path, "has the wrong type")));
    problems
}

/// The fields that the agent does not use, one per line: path and type. A wrong type stops the kubelet like any
/// other decoding error.
const FIELD_TYPES: &str = include_str!("field-types.tsv");

/// Returns whether a value has a type of [`FIELD_TYPES`]. Null is the zero value of all but durations.
fn has_type(value: &Value, wanted: &str) -> bool {
    if value.is_null() {
        return wanted != "duration";
    }
    let is_text = |value: &Value| value.is_string() || value.is_null();
    match wanted {
        "bool" => value.is_boolean(),
        "int32" => integer(value).is_some_and(|n| i32::try_from(n).is_ok()),
        "int64" => integer(value).is_some(),
        "float" => value.is_number(),
        "string" => value.is_string(),
        "duration" | "duration or null" => nanos(value).is_some(),
        "list" => value.is_array(),
        "list of strings" => value.as_array().is_some_and(|list| list.iter().all(is_text)),
        "object" => value.is_object(),
        "map of strings" => value.as_object().is_some_and(|map| map.values().all(is_text)),
        _ => false,
    }
}

/// Checks `enforceNodeAllocatable`. Options must be known and unique, and `none` must be the only one. A
/// reserved option needs its cgroup, and excludes its other variant. All options need cgroups for QoS.
fn enforcement(values: &Values<'_>, enforced: &[&str]) -> Option<&'static str> {
    let has_qos_cgroups = values.flag("cgroupsPerQOS") != Some(false);
    let is_valid = |(index, option): (usize, &&str)| {
        let has_cgroup = |key: &str, other: &str| !values.text(key).is_empty() && !enforced.contains(&other);
        let is_known = match *option {
            "none" => return enforced.len() == 1,
            "pods" => true,
            "system-reserved" => has_cgroup("systemReservedCgroup", "system-reserved-compressible"),
            "system-reserved-compressible" => has_cgroup("systemReservedCgroup", "system-reserved"),
            "kube-reserved" => has_cgroup("kubeReservedCgroup", "kube-reserved-compressible"),
            "kube-reserved-compressible" => has_cgroup("kubeReservedCgroup", "kube-reserved"),
            _ => false,
        };
        is_known && !enforced[..index].contains(option) && has_qos_cgroups
    };
    (!enforced.iter().enumerate().all(is_valid)).then_some("enforceNodeAllocatable")
}

const SECOND: i64 = 1_000_000_000;

/// Fields with bounded numbers, and the bounds. Null means the default, and so does 0 in some of the fields that allow it.
const BOUNDS: &[(&str, RangeInclusive<i64>)] = &[
    ("nodeLeaseDurationSeconds", 0..=MAX),
    ("eventBurst", 0..=MAX),
    ("eventRecordQPS", 0..=MAX),
    ("healthzPort", 0..=65535),
    ("imageGCHighThresholdPercent", 0..=100),
    ("imageGCLowThresholdPercent", 0..=100),
    ("iptablesDropBit", 0..=31),
    ("iptablesMasqueradeBit", 0..=31),
    ("kubeAPIBurst", 0..=MAX),
    ("kubeAPIQPS", 0..=MAX),
    ("nodeStatusMaxImages", -1..=MAX),
    ("maxOpenFiles", 0..=MAX),
    ("maxPods", 0..=MAX),
    ("oomScoreAdj", -1000..=1000),
    ("podsPerCore", 0..=MAX),
    ("port", 0..=65535),
    ("readOnlyPort", 0..=65535),
    ("registryBurst", 0..=MAX),
    ("registryPullQPS", 0..=MAX),
    ("maxParallelImagePulls", 1..=MAX),
    ("containerLogMaxWorkers", 1..=MAX),
    ("containerLogMaxFiles", 2..=MAX),
    ("userNamespaces.idsPerPod", 65536..=0xffff_ffff),
    ("tracing.samplingRatePerMillion", 0..=1_000_000),
];

const MAX: i64 = i64::MAX;

/// Fields with a fixed set of values; empty means the default.
const CHOICES: &[(&str, &[&str])] = &[
    ("topologyManagerPolicy", &["none", "best-effort", "restricted", "single-numa-node"]),
    ("topologyManagerScope", &["container", "pod"]),
    ("hairpinMode", &["none", "hairpin-veth", "promiscuous-bridge"]),
    ("memorySwap.swapBehavior", &["NoSwap", "LimitedSwap"]),
    ("memoryReservationPolicy", &["None", "TieredReservation"]),
    ("logging.format", &["text", "json"]),
];

/// Returns the first of these fields that would stop the kubelet.
fn invalid_field(values: &Values<'_>) -> Option<&'static str> {
    let bound = BOUNDS.iter().find(|(path, bounds)| {
        let value = values.get(path).and_then(Value::as_i64);
        value.is_some_and(|value| !bounds.contains(&value))
    });
    let choice = CHOICES.iter().find(|(path, choices)| {
        let text = values.text(path);
        !text.is_empty() && !choices.contains(&text)
    });
    bound.map(|(path, _)| *path).or(choice.map(|(path, _)| *path)).or_else(|| {
        let rules: [fn(&Values<'_>) -> Option<&'static str>; 5] =
            [images, shutdown, logs, reservations, gated_fields];
        rules.into_iter().find_map(|rule| rule(values))
    })
}

fn images(values: &Values<'_>) -> Option<&'static str> {
    let high = values.integer("imageGCHighThresholdPercent", 85);
    if values.integer("imageGCLowThresholdPercent", 80) >= high {
        return Some("imageGCLowThresholdPercent");
    }
    let least = values.nanos("imageMinimumGCAge", 120 * SECOND);
    let most = values.nanos("imageMaximumGCAge", 0);
    if least < 0 || most < 0 || most > 0 && most <= least {
        return Some("imageMaximumGCAge");
    }
    if values.integer("maxParallelImagePulls", 1) > 1 && values.flag("serializeImagePulls") == Some(true) {
        return Some("serializeImagePulls");
    }
    let policy = values.text("imagePullCredentialsVerificationPolicy");
    let listed = values.has_items("preloadedImagesVerificationAllowlist");
    let is_valid = if values.is_on("KubeletEnsureSecretPulledImages") {
        let known =
            ["", "NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"];
        known.contains(&policy) && (!listed || policy == "NeverVerifyAllowlistedImages")
    } else {
        policy.is_empty() && !listed
    };
    (!is_valid).then_some("imagePullCredentialsVerificationPolicy")
}

fn shutdown(values: &Values<'_>) -> Option<&'static str> {
    let all = values.nanos("shutdownGracePeriod", 0);
    let critical = values.nanos("shutdownGracePeriodCriticalPods", 0);
    let by_priority = values.has_items("shutdownGracePeriodByPodPriority");
    let some = all > 0 || critical > 0;
    let short = |nanos: i64| nanos < 0 || nanos > 0 && nanos < SECOND;
    let wrong = if values.is_on("GracefulNodeShutdown") {
        critical > all || short(all) || short(critical)
    } else {
        some
    };
    let wrong = wrong || by_priority && (some || !values.is_on("GracefulNodeShutdownBasedOnPodPriority"));
    wrong.then_some("shutdownGracePeriod")
}

fn logs(values: &Values<'_>) -> Option<&'static str> {
    // Null is the default, but zero is zero.
    let interval = values.get("containerLogMonitorInterval").and_then(nanos);
    if interval.is_some_and(|interval| interval < 3 * SECOND) {
        return Some("containerLogMonitorInterval");
    }
    let dir = values.text("podLogsDir");
    let clean = |dir: &str| {
        dir == "/"
            || dir
                .strip_prefix('/')
                .is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
    };
    let is_valid = dir.is_empty() || clean(dir) && dir.is_ascii();
    if !is_valid {
        return Some("podLogsDir");
    }
    let is_refused = values.flag("enableSystemLogQuery") == Some(true)
        && values.flag("enableSystemLogHandler") == Some(false);
    is_refused.then_some("enableSystemLogQuery")
}

fn reservations(values: &Values<'_>) -> Option<&'static str> {
    if !values.text("systemCgroups").is_empty() && values.text("cgroupRoot").is_empty() {
        return Some("systemCgroups");
    }
    let cgroups = [values.text("systemReservedCgroup"), values.text("kubeReservedCgroup")];
    let cpus = values.text("reservedSystemCPUs");
    if !cpus.is_empty() && (cgroups != ["", ""] || !cpus.split(',').all(is_cpu_range)) {
        return Some("reservedSystemCPUs");
    }
    if values.integer("userNamespaces.idsPerPod", 65536) % 65536 != 0 {
        return Some("userNamespaces.idsPerPod");
    }
    let factor = values.get("memoryThrottlingFactor").and_then(Value::as_f64);
    if factor.is_some_and(|factor| factor <= 0.0 || factor > 1.0) {
        return Some("memoryThrottlingFactor");
    }
    let tiered = values.text("memoryReservationPolicy") == "TieredReservation";
    (tiered && !values.is_on("MemoryQoS")).then_some("memoryReservationPolicy")
}

/// Returns whether the text is a CPU or a range, such as `5` or `0-3`: `cpuset.Parse`.
fn is_cpu_range(text: &str) -> bool {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<i64>().ok();
    matches!((number(first), number(last)), (Some(first), Some(last)) if first <= last)
}

fn gated_fields(values: &Values<'_>) -> Option<&'static str> {
    if values.flag("runOnce") == Some(true) {
        return Some("runOnce");
    }
    if values.flag("serverTLSBootstrap") == Some(true) && !values.is_on("RotateKubeletServerCertificate") {
        return Some("serverTLSBootstrap");
    }
    let quota = values.get("cpuCFSQuotaPeriod").and_then(nanos);
    let quota = quota.unwrap_or(SECOND / 10);
    let is_valid = match values.is_on("CustomCPUCFSQuotaPeriod") {
        true => (SECOND / 1000..=SECOND).contains(&quota),
        false => quota == SECOND / 10,
    };
    if !is_valid {
        return Some("cpuCFSQuotaPeriod");
    }
    let restart = values.get("crashLoopBackOff.maxContainerRestartPeriod").and_then(nanos);
    let is_valid = match (restart, values.is_on("KubeletCrashLoopBackOffMax")) {
        (None, _) => true,
        (Some(nanos), true) => (1000..=300_000).contains(&(nanos / 1_000_000)),
        (Some(_), false) => false,
    };
    (!is_valid).then_some("crashLoopBackOff.maxContainerRestartPeriod")
}

fn nanos(value: &Value) -> Option<i64> {
    GoDuration::parse(value.as_str()?).ok().map(GoDuration::as_nanos)
}

/// Returns the value at a dotted path.
fn value_at<'a>(object: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut parts = path.split('.');
    let first = object.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}

struct Values<'a> {
    object: &'a Map<String, Value>,
    gates: &'a BTreeMap<String, bool>,
}

impl<'a> Values<'a> {
    fn is_on(&self, gate: &str) -> bool {
        is_gate_on(gate, self.gates)
    }

    /// Returns the value at a dotted path, if it is not null.
    fn get(&self, path: &str) -> Option<&'a Value> {
        value_at(self.object, path).filter(|value| !value.is_null())
    }

    fn flag(&self, path: &str) -> Option<bool> {
        self.get(path)?.as_bool()
    }

    fn has_items(&self, path: &str) -> bool {
        self.get(path).and_then(Value::as_array).is_some_and(|list| !list.is_empty())
    }

    fn text(&self, path: &str) -> &'a str {
        self.get(path).and_then(Value::as_str).unwrap_or_default()
    }

    fn integer(&self, path: &str, default: i64) -> i64 {
        self.get(path).and_then(Value::as_i64).unwrap_or(default)
    }

    /// Returns a duration in nanoseconds. Absent and zero mean the default.
    fn nanos(&self, path: &str, default: i64) -> i64 {
        match self.get(path).and_then(nanos) {
            None | Some(0) => default,
            Some(nanos) => nanos,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{FIELD_TYPES, has_type};

    #[test]
    fn every_field_has_a_type_that_some_value_has() {
        let values = [json!(true), json!(1), json!("1s"), json!(["a"]), json!({ "a": "b" })];
        for line in FIELD_TYPES.lines() {
            let (_, wanted) = line.split_once('\t').unwrap();
            assert!(values.iter().any(|value| has_type(value, wanted)), "{line}");
        }
    }
}
