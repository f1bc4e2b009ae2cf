//! JSON types of the fields of a `KubeletConfiguration` that the agent does not use. A wrong type stops the
//! kubelet like any other decoding error.

use eviction_core::units::GoDuration;
use serde_json::{Map, Value};

use crate::read::integer;

#[derive(Clone, Copy)]
enum Kind {
    Bool,
    Int32,
    Int64,
    Float,
    Text,
    /// A null is an error.
    Duration,
    OptionalDuration,
    Texts,
    TextMap,
    List,
    Object,
}

use Kind::{Bool, Duration, Float, Int32, Int64, List, Object, OptionalDuration, Text, TextMap, Texts};

const FIELDS: &[(Kind, &[&str])] = &[
    (
        Bool,
        &[
            "cgroupsPerQOS",
            "enableServer",
            "rotateCertificates",
            "serverTLSBootstrap",
            "enableDebuggingHandlers",
            "enableContentionProfiling",
            "singleProcessOOMKill",
            "runOnce",
            "cpuCFSQuota",
            "serializeImagePulls",
            "enableControllerAttachDetach",
            "protectKernelDefaults",
            "makeIPTablesUtilChains",
            "failSwapOn",
            "kernelMemcgNotification",
            "enableSystemLogHandler",
            "enableSystemLogQuery",
            "enableProfilingHandler",
            "enableDebugFlagsHandler",
            "seccompDefault",
            "registerNode",
            "failCgroupV1",
            "authentication.webhook.enabled",
            "authentication.anonymous.enabled",
        ],
    ),
    (
        Int32,
        &[
            "port",
            "readOnlyPort",
            "registryPullQPS",
            "registryBurst",
            "eventRecordQPS",
            "eventBurst",
            "healthzPort",
            "oomScoreAdj",
            "nodeLeaseDurationSeconds",
            "imageGCHighThresholdPercent",
            "imageGCLowThresholdPercent",
            "maxPods",
            "nodeStatusMaxImages",
            "kubeAPIQPS",
            "kubeAPIBurst",
            "maxParallelImagePulls",
            "podsPerCore",
            "iptablesMasqueradeBit",
            "iptablesDropBit",
            "containerLogMaxFiles",
            "containerLogMaxWorkers",
            "tracing.samplingRatePerMillion",
        ],
    ),
    (Int64, &["podPidsLimit", "maxOpenFiles", "userNamespaces.idsPerPod"]),
    (Float, &["memoryThrottlingFactor"]),
    (
        Text,
        &[
            "systemReservedCgroup",
            "kubeReservedCgroup",
            "staticPodPath",
            "podLogsDir",
            "staticPodURL",
            "address",
            "tlsCertFile",
            "tlsPrivateKeyFile",
            "tlsMinVersion",
            "imagePullCredentialsVerificationPolicy",
            "healthzBindAddress",
            "clusterDomain",
            "kubeletCgroups",
            "systemCgroups",
            "cgroupRoot",
            "cgroupDriver",
            "cpuManagerPolicy",
            "memoryManagerPolicy",
            "topologyManagerPolicy",
            "topologyManagerScope",
            "hairpinMode",
            "podCIDR",
            "resolvConf",
            "contentType",
            "containerLogMaxSize",
            "configMapAndSecretChangeDetectionStrategy",
            "reservedSystemCPUs",
            "showHiddenMetricsForVersion",
            "volumePluginDir",
            "providerID",
            "memoryReservationPolicy",
            "containerRuntimeEndpoint",
            "imageServiceEndpoint",
            "authentication.x509.clientCAFile",
            "authorization.mode",
            "memorySwap.swapBehavior",
            "tracing.endpoint",
            "logging.format",
        ],
    ),
    (
        Duration,
        &[
            "nodeStatusUpdateFrequency",
            "nodeStatusReportFrequency",
            "syncFrequency",
            "fileCheckFrequency",
            "httpCheckFrequency",
            "streamingConnectionIdleTimeout",
            "imageMinimumGCAge",
            "imageMaximumGCAge",
            "volumeStatsAggPeriod",
            "cpuManagerReconcilePeriod",
            "runtimeRequestTimeout",
            "shutdownGracePeriod",
            "shutdownGracePeriodCriticalPods",
            "authentication.webhook.cacheTTL",
            "authorization.webhook.cacheAuthorizedTTL",
            "authorization.webhook.cacheUnauthorizedTTL",
        ],
    ),
    (
        OptionalDuration,
        &["cpuCFSQuotaPeriod", "containerLogMonitorInterval", "crashLoopBackOff.maxContainerRestartPeriod"],
    ),
    (
        Texts,
        &["tlsCipherSuites", "preloadedImagesVerificationAllowlist", "clusterDNS", "allowedUnsafeSysctls"],
    ),
    (
        TextMap,
        &[
            "systemReserved",
            "kubeReserved",
            "cpuManagerPolicyOptions",
            "topologyManagerPolicyOptions",
            "qosReserved",
        ],
    ),
    (
        List,
        &["tlsCurvePreferences", "shutdownGracePeriodByPodPriority", "reservedMemory", "registerWithTaints"],
    ),
    (
        Object,
        &[
            "staticPodURLHeader",
            "authentication",
            "authorization",
            "memorySwap",
            "logging",
            "crashLoopBackOff",
            "tracing",
            "userNamespaces",
            "authentication.x509",
            "authentication.webhook",
            "authentication.anonymous",
            "authorization.webhook",
        ],
    ),
];

/// Returns the fields with values of the wrong type.
pub(super) fn with_wrong_type(object: &Map<String, Value>) -> impl Iterator<Item = &'static str> {
    FIELDS
        .iter()
        .flat_map(|(kind, names)| names.iter().map(|name| (*kind, *name)))
        .filter(|(kind, path)| super::value_at(object, path).is_some_and(|it| !matches_kind(*kind, it)))
        .map(|(_, name)| name)
}

fn matches_kind(kind: Kind, value: &Value) -> bool {
    let text = |value: &Value| value.is_string() || value.is_null();
    match (kind, value) {
        (Duration, Value::Null) => false,
        (_, Value::Null) => true,
        (Bool, value) => value.is_boolean(),
        (Int32, value) => integer(value).is_some_and(|n| i32::try_from(n).is_ok()),
        (Int64, value) => integer(value).is_some(),
        (Float, value) => value.is_number(),
        (Text, value) => value.is_string(),
        (Duration | OptionalDuration, value) => {
            value.as_str().is_some_and(|text| GoDuration::parse(text).is_ok())
        }
        (Texts, Value::Array(list)) => list.iter().all(text),
        (TextMap, Value::Object(map)) => map.values().all(text),
        (List, value) => value.is_array(),
        (Object, value) => value.is_object(),
        (Texts | TextMap, _) => false,
    }
}
