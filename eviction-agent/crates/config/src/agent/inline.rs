//! Kubelet settings in the AgentConfiguration itself.

use serde_json::Value;

use super::AgentConfiguration;
use crate::kubelet::{KubeletConfiguration, resolve_given};
use crate::problem::{Problem, Problems};

const PLACE: &str = "thresholds.inline";

impl AgentConfiguration {
    /// What `thresholds.inline` comes to, read as a kubelet would read it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn resolve_inline(&self) -> Result<KubeletConfiguration, Problems> {
        let file = self.file.as_deref();
        let Ok(Value::Object(object)) = serde_json::to_value(&self.thresholds.inline) else {
            // Never the defaults in the place of what was given.
            return Err(Problem::new(PLACE, "is missing").in_file(file).into());
        };
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
