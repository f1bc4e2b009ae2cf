//! Label selectors as Kubernetes writes them: `metav1.LabelSelector`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sorted_map::SortedMap;

/// Fits if all of its parts do; an empty one fits everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LabelSelector {
    /// Labels that must have exactly these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<Box<str>, Box<str>>,
    /// Other conditions on labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// A condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requirement {
    /// The label.
    pub key: Box<str>,
    /// How it is compared.
    pub operator: Operator,
    /// What it is compared with: at least one value for `In` and `NotIn`, none for the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Box<str>>,
}

/// How a label is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// It is there and has one of the values.
    In,
    /// It is not there, or has none of the values.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

impl LabelSelector {
    /// Returns whether a pod with these labels matches.
    pub fn matches(&self, labels: &SortedMap<Box<str>>) -> bool {
        let Self { match_labels, match_expressions } = self;
        match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && match_expressions.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &SortedMap<Box<str>>) -> bool {
        let label = labels.get(&self.key);
        let listed = || label.is_some_and(|label| self.values.contains(label));
        match self.operator {
            Operator::In => listed(),
            Operator::NotIn => !listed(),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(json: serde_json::Value) -> LabelSelector {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn selectors_match_as_in_kubernetes() {
        let labels = |pairs: &[(&str, &str)]| -> SortedMap<Box<str>> {
            pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
        };
        let web = labels(&[("app", "web"), ("tier", "front")]);
        let none = labels(&[]);
        for (json, matches_web, matches_none) in [
            (serde_json::json!({}), true, true),
            (serde_json::json!({"matchLabels": {"app": "web"}}), true, false),
            (serde_json::json!({"matchLabels": {"app": "web", "tier": "back"}}), false, false),
            (expression("app", "In", &["db", "web"]), true, false),
            (expression("app", "In", &["db"]), false, false),
            (expression("app", "NotIn", &["web"]), false, true),
            (expression("app", "NotIn", &["db"]), true, true),
            (expression("app", "Exists", &[]), true, false),
            (expression("app", "DoesNotExist", &[]), false, true),
        ] {
            let selector = selector(json.clone());
            assert_eq!(
                (selector.matches(&web), selector.matches(&none)),
                (matches_web, matches_none),
                "{json}"
            );
        }
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> serde_json::Value {
        serde_json::json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    }
}
