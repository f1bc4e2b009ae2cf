//! Kubelet settings in the AgentConfiguration itself.

use std::fmt;

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
        // Never the defaults in the place of what was given.
        let whole = |cause: &dyn fmt::Display| Problems(vec![Problem::new(PLACE, cause).in_file(file)]);
        let inline = self.thresholds.inline.as_ref().ok_or_else(|| whole(&"is missing"))?;
        let object = match serde_json::to_value(inline).map_err(|error| whole(&error))? {
            Value::Object(object) => object,
            _ => return Err(whole(&"must be an object")),
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
