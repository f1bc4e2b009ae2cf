//! Settings that the AgentConfiguration has itself, in the place of a kubelet's.

use serde_json::Value;

use super::AgentConfiguration;
use crate::config::kubelet::{KubeletConfiguration, resolve_given};
use crate::config::problem::{Problem, Problems};

const PLACE: &str = "thresholds.given";

impl AgentConfiguration {
    /// What `thresholds.given` comes to, read as a kubelet would read it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn resolve_given(&self) -> Result<KubeletConfiguration, Problems> {
        let given = self.thresholds.given.clone().unwrap_or_default();
        let object = match serde_json::to_value(given) {
            Ok(Value::Object(object)) => object,
            Ok(_) | Err(_) => serde_json::Map::new(),
        };
        let file = self.file.as_deref();
        let placed = |problem: Problem| {
            let path = format!("{PLACE}.{}", problem.path);
            Problem { path, ..problem }.in_file(file)
        };
        let mut resolved = resolve_given(object, file)
            .map_err(|Problems(problems)| Problems(problems.into_iter().map(placed).collect()))?;
        resolved.notes = resolved.notes.into_iter().map(placed).collect();
        Ok(resolved)
    }
}
