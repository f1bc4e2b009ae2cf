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

/// The field (with new names), an old value, what to write instead. Those that only changed their case
/// need no row: the error for them names the new one.
pub(super) const VALUES: &[(&str, &str, &str)] = &[
    ("action", "dry-run", "action: None"),
    ("action", "evict-dry-run", "action: Evict` and `dryRun: Server"),
    ("eviction.whenAPIServerDown", "hold", "Wait"),
    ("thresholds.source", "given", "Inline"),
    ("policy.applyChanges", "byHand", "Manually"),
    ("policy.applyChanges", "atOnce", "Immediately"),
];

/// The new name of a key.
pub(crate) fn key(parent: &str, old: &str) -> Option<&'static str> {
    find(KEYS, parent, old)
}

/// What to write in the place of a value.
pub(crate) fn value(field: &str, old: &str) -> Option<&'static str> {
    find(VALUES, field, old)
}

fn find(table: &[(&str, &str, &'static str)], place: &str, old: &str) -> Option<&'static str> {
    table.iter().find(|row| (row.0, row.1) == (place, old)).map(|row| row.2)
}
