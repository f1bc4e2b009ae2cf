//! Reserved resources: `parseResourceList` of the kubelet's command.

use std::collections::BTreeMap;

use super::super::examples::example;
use super::super::problem::{Problem, did_you_mean, member};
use super::fields::StringMap;
use eviction_core::units::Quantity;

const RESOURCES: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];

/// The amounts that are right.
pub(super) fn parse(
    field: &str,
    map: &Option<StringMap>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, Quantity> {
    let mut parsed = BTreeMap::new();
    for (resource, text) in map.iter().flatten() {
        let path = || member(field, resource);
        if !RESOURCES.contains(&resource.as_str()) {
            problems.push(
                Problem::new(path(), format!("cannot reserve `{resource}`"))
                    .with_help(did_you_mean(resource, RESOURCES)),
            );
            continue;
        }
        match Quantity::parse(text) {
            Ok(quantity) if quantity.signum() < 0 => {
                problems.push(Problem::new(path(), format!("must not be negative: {quantity}")));
            }
            Ok(quantity) => {
                parsed.insert(resource.clone(), quantity);
            }
            Err(error) => {
                let cause = error.to_string();
                let help = example(&cause);
                problems.push(Problem::new(path(), cause).with_help(help));
            }
        }
    }
    parsed
}
