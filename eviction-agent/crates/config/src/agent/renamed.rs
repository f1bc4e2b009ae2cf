//! Keys and values of former versions of the format. They are refused with the new name in the error.

/// Where the key is (with new names, `[]` for an index), its old name, its new name from the same place.
pub(super) const KEYS: &[(&str, &str, &str)] = &[
    ("", "act", "action"),
    ("", "advance", "thresholdMargin"),
    ("thresholdMargin", "when", "mode"),
    ("thresholdMargin", "by", "value"),
    ("thresholdMargin", "atLeast", "minimum"),
    ("thresholdMargin", "signals", "perSignal"),
    ("thresholdMargin.perSignal[]", "by", "value"),
    ("", "reflex", "kernelKill"),
    ("", "hands", "eviction"),
    ("eviction", "hardAction", "hardMode"),
    ("eviction", "apiUnreachable", "whenAPIServerDown"),
    ("eviction", "node", "nodeStatus"),
    ("", "hooks", "probes"),
    ("probes", "nearPercent", "nearThresholdPercent"),
    ("probes", "calmAfter", "detachAfter"),
    ("memoryLimits", "nearPercent", "warnPercent"),
    ("", "requests", "evictionRequests"),
    ("", "endpoints", "server"),
    ("server", "listen", "listenAddress"),
    ("thresholds", "given", "inline"),
    ("policy", "maxVictimsPerPass", "maxEvictionsPerSync"),
    ("policy", "maxUnknown", "unavailableAfterSamples"),
    ("policy", "acceptChanges", "applyChanges"),
    ("policy", "limits", "rateLimits"),
    ("policy", "predict", "prediction.mode"),
    ("policy", "predictWithin", "prediction.horizon"),
    ("policy.protection[]", "evict", "order"),
    ("policy.soft", "evictBarePods", "evictPodsWithoutController"),
    ("policy.memory", "pressure", "psi"),
    ("policy.memory.psi", "stalled", "kind"),
    ("policy.memory", "swapUsed", "swapUsedAtLeast"),
];

/// The field (with new names), an old value, what to write instead.
pub(super) const VALUES: &[(&str, &str, &str)] = &[
    ("profile", "kubelet", "Kubelet"),
    ("profile", "enhanced", "Enhanced"),
    ("action", "dry-run", "action: None"),
    ("action", "kill", "action: Kill"),
    ("action", "evict", "action: Evict"),
    ("action", "evict-dry-run", "action: Evict` and `dryRun: Server"),
    ("thresholdMargin.mode", "besideKubelet", "BesideKubelet"),
    ("thresholdMargin.mode", "always", "Always"),
    ("thresholdMargin.mode", "never", "Never"),
    ("kernelKill", "off", "Off"),
    ("kernelKill", "hardMemory", "HardMemory"),
    ("eviction.hardMode", "evict", "Evict"),
    ("eviction.hardMode", "evictAndKill", "EvictAndKill"),
    ("eviction.whenAPIServerDown", "hold", "Wait"),
    ("eviction.whenAPIServerDown", "kill", "Kill"),
    ("thresholds.source", "files", "Files"),
    ("thresholds.source", "configz", "Configz"),
    ("thresholds.source", "given", "Inline"),
    ("policy.memory.measure", "workingSet", "WorkingSet"),
    ("policy.memory.measure", "memAvailable", "MemAvailable"),
    ("policy.memory.measure", "workingSetMinusActiveFile", "WorkingSetMinusActiveFile"),
    ("policy.memory.psi.kind", "some", "Some"),
    ("policy.memory.psi.kind", "full", "Full"),
    ("policy.protection[].order", "first", "First"),
    ("policy.protection[].order", "normal", "Normal"),
    ("policy.protection[].order", "last", "Last"),
    ("policy.protection[].order", "never", "Never"),
    ("policy.rateLimits[].scope", "namespace", "Namespace"),
    ("policy.rateLimits[].scope", "owner", "Owner"),
    ("policy.applyChanges", "afterTransitionPeriod", "AfterTransitionPeriod"),
    ("policy.applyChanges", "byHand", "Manually"),
    ("policy.applyChanges", "atOnce", "Immediately"),
    ("policy.prediction.mode", "off", "Off"),
    ("policy.prediction.mode", "condition", "Condition"),
    ("policy.prediction.mode", "evict", "Evict"),
];

/// The new name of a key.
pub(super) fn key(parent: &str, old: &str) -> Option<&'static str> {
    find(KEYS, parent, old)
}

/// What to write in the place of a value.
pub(super) fn value(field: &str, old: &str) -> Option<&'static str> {
    find(VALUES, field, old)
}

fn find(table: &[(&str, &str, &'static str)], place: &str, old: &str) -> Option<&'static str> {
    table.iter().find(|row| (row.0, row.1) == (place, old)).map(|row| row.2)
}
