//! The kubelet's feature gates at v1.36.3, and what a configuration makes of them.

use std::collections::{BTreeMap, BTreeSet};

use super::super::problem::{Problem, did_you_mean, member};
use eviction_core::policy::Gates;

/// Name, stage, default, whether that is fixed, and the gates it depends on; one a line.
const TABLE: &str = include_str!("feature-gates.tsv");

struct Gate {
    name: &'static str,
    stage: &'static str,
    on: bool,
    locked: bool,
    needs: &'static str,
}

fn table() -> impl Iterator<Item = Gate> {
    TABLE.lines().filter_map(|line| {
        let mut columns = line.split('\t');
        let mut next = || columns.next();
        Some(Gate {
            name: next()?,
            stage: next()?,
            on: next()? == "on",
            locked: next()? == "locked",
            needs: next()?,
        })
    })
}

/// The gates that are on.
pub(super) struct Enabled(BTreeSet<&'static str>);

impl Enabled {
    pub(super) fn has(&self, gate: &str) -> bool {
        self.0.contains(gate)
    }

    /// Those that change a decision.
    pub(super) fn policy(&self) -> Gates {
        Gates {
            pod_level_resources: self.has("PodLevelResources"),
            separate_disk_gc: self.has("KubeletSeparateDiskGC"),
        }
    }
}

/// `featureGate.SetFromMap`: unknown names, a change of a locked gate, and a gate that is on
/// while one it depends on is off are errors.
pub(super) fn resolve(given: Option<&BTreeMap<String, bool>>, problems: &mut Vec<Problem>) -> Enabled {
    let before = problems.len();
    let unset = BTreeMap::new();
    let given = given.unwrap_or(&unset);
    for (name, value) in given {
        let problem = |cause: String| Problem::new(member("featureGates", name), cause);
        match table().find(|gate| gate.name == name) {
            None => problems.push(
                problem(format!("unrecognized feature gate: {name}"))
                    .with_help(did_you_mean(name, table().map(|gate| gate.name))),
            ),
            Some(gate) if gate.locked && gate.on != *value => problems.push(problem(format!(
                "cannot set feature gate {name} to {value}, feature is locked to {}",
                gate.on
            ))),
            Some(_) => {}
        }
    }
    let enabled: BTreeSet<&str> =
        table().filter(|gate| is_enabled(gate, given)).map(|gate| gate.name).collect();
    if problems.len() == before {
        problems.extend(table().filter_map(|gate| unmet(&gate, &enabled)));
    }
    Enabled(enabled)
}

/// The gates of a kubelet that runs with them: there is nothing to be refused, and those of other
/// versions do not count.
pub(super) fn in_force(given: Option<&BTreeMap<String, bool>>) -> Enabled {
    let unset = BTreeMap::new();
    let given = given.unwrap_or(&unset);
    Enabled(table().filter(|gate| is_enabled(gate, given)).map(|gate| gate.name).collect())
}

/// A gate's own entry counts, then that of its stage as a whole, then the default.
fn is_enabled(gate: &Gate, given: &BTreeMap<String, bool>) -> bool {
    let whole = match gate.stage {
        _ if matches!(gate.name, "AllAlpha" | "AllBeta") => None,
        "alpha" => given.get("AllAlpha"),
        "beta" => given.get("AllBeta"),
        _ => None,
    };
    *given.get(gate.name).or(whole).unwrap_or(&gate.on)
}

fn unmet(gate: &Gate, enabled: &BTreeSet<&str>) -> Option<Problem> {
    if !enabled.contains(gate.name) || gate.needs == "-" {
        return None;
    }
    let off: Vec<&str> = gate.needs.split(',').filter(|need| !enabled.contains(need)).collect();
    (!off.is_empty()).then(|| {
        Problem::new(
            "featureGates",
            format!(
                "{} is enabled, but depends on features that are disabled: [{}]",
                gate.name,
                off.join(" ")
            ),
        )
        .with_help(Some(format!("set {} to false as well", gate.name)))
    })
}
