//! What an outcome says of the engine's reasons: a [`Report`] in brief.

use serde::{Deserialize, Serialize};

use super::story::{EndBrief, KillBrief};
use crate::core::report::{About, PodName, Report};

/// A step's report in brief. A field that says nothing is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Brief {
    /// How the pass ended, or why there was none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub end: String,
    /// What is lacking of the signal that drives the pass, in whole units.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deficit: Option<i64>,
    /// Uids of the critical pods that would have gone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spared: Vec<String>,
    /// Kills by the kernel that were told since the last step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub oom_kills: Vec<KillBrief>,
    /// Verdicts on containers that ended, given since the last step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<EndBrief>,
}

impl Brief {
    /// What the report of a pass says.
    pub(super) fn of(report: &Report) -> Self {
        match &report.about {
            About::Pass(pass) => Self {
                end: name(&pass.end),
                deficit: pass.deficit.map(|deficit| deficit.total),
                spared: pass.spared.iter().map(|PodName { uid, .. }| uid.to_string()).collect(),
                ..Self::default()
            },
            About::NoPass(why) => Self { end: name(why), ..Self::default() },
            About::Nothing | About::Admission { .. } | About::Story(_) => Self::default(),
        }
    }
}

/// The name of a variant; one that holds another is `outer: inner`.
pub(super) fn name(variant: &impl Serialize) -> String {
    match serde_json::to_value(variant) {
        Ok(serde_json::Value::String(name)) => name,
        Ok(serde_json::Value::Object(object)) => {
            let named = |(outer, inner): (String, serde_json::Value)| format!("{outer}: {}", name(&inner));
            object.into_iter().next().map(named).unwrap_or_default()
        }
        _ => String::new(),
    }
}
