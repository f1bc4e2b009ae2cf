//! The kubelet's feature gates at v1.36.3, and what a configuration makes of them.

use std::collections::BTreeMap;

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

fn find(name: &str) -> Option<Gate> {
    table().find(|gate| gate.name == name)
}

/// A gate's own entry counts, then that of its stage as a whole, then the default.
fn is_on(gate: &Gate, given: &BTreeMap<String, bool>) -> bool {
    let whole = match gate.stage {
        _ if matches!(gate.name, "AllAlpha" | "AllBeta") => None,
        "alpha" => given.get("AllAlpha"),
        "beta" => given.get("AllBeta"),
        _ => None,
    };
    *given.get(gate.name).or(whole).unwrap_or(&gate.on)
}

/// The gates of a configuration.
pub(super) struct FeatureGates<'a>(pub(super) &'a BTreeMap<String, bool>);

impl FeatureGates<'_> {
    /// Whether the gate of this name is on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        find(name).is_some_and(|gate| is_on(&gate, self.0))
    }
}

/// The gates that change a decision. Others do not count: the kubelet may be of another version.
pub(super) fn resolve(given: &BTreeMap<String, bool>) -> Gates {
    let gates = FeatureGates(given);
    Gates {
        pod_level_resources: gates.is_on("PodLevelResources"),
        separate_disk_gc: gates.is_on("KubeletSeparateDiskGC"),
    }
}

/// `featureGate.SetFromMap`: unknown names, a change of a locked gate, and a gate that is on
/// while one it depends on is off are errors.
pub(super) fn error(given: &BTreeMap<String, bool>) -> Option<String> {
    let wrong = given.iter().find_map(|(name, value)| match find(name) {
        None => Some(format!("unrecognized feature gate: {name}")),
        Some(gate) if gate.locked && gate.on != *value => {
            Some(format!("cannot set feature gate {name} to {value}, feature is locked to {}", gate.on))
        }
        Some(_) => None,
    });
    wrong.or_else(|| {
        table().filter(|gate| is_on(gate, given)).find_map(|gate| {
            let is_off = |name: &&str| find(name).is_some_and(|gate| !is_on(&gate, given));
            let off: Vec<&str> = gate.needs.split(',').filter(is_off).collect();
            (!off.is_empty()).then(|| {
                let off = off.join(" ");
                format!("{} is enabled, but depends on features that are disabled: [{off}]", gate.name)
            })
        })
    })
}
