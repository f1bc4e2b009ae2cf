//! The events of an agent.

use serde_json::Value;

/// An event that the agent printed as a JSON line.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When the line was read, nanoseconds of `CLOCK_MONOTONIC`.
    pub read_ns: u64,
    /// The JSON object.
    pub value: Value,
}

impl Event {
    /// Returns the kind of the event.
    pub fn kind(&self) -> &str {
        self.text("event")
    }

    /// Returns a field that is a string; empty if there is none.
    pub fn text(&self, field: &str) -> &str {
        self.value.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the pod as `namespace/name`; empty if there is none.
    pub fn pod(&self) -> String {
        full_name(&self.value)
    }

    /// Returns whether the event selects a pod for eviction.
    pub fn is_decision(&self) -> bool {
        self.kind() == "eviction_decision"
    }

    /// Returns whether the event reports a threshold in that state: `met`, `cleared` or `unknown`.
    pub fn is_threshold(&self, state: &str) -> bool {
        self.kind() == "threshold" && self.text("state") == state
    }

    /// Returns whether the event reports that result of an eviction.
    pub fn is_result(&self, result: &str) -> bool {
        self.kind() == "eviction_progress" && self.text("result") == result
    }

    /// Returns a field that is a non-negative integer.
    pub fn number(&self, field: &str) -> Option<u64> {
        self.value.get(field).and_then(Value::as_u64)
    }
}

/// Returns the pod of an event, or of an entry of a list, as `namespace/name`; empty if there is none.
pub fn full_name(value: &Value) -> String {
    let text = |field| value.get(field).and_then(Value::as_str);
    text("namespace")
        .zip(text("pod"))
        .map_or_else(String::new, |(namespace, pod)| format!("{namespace}/{pod}"))
}
