//! The agent's taints.
//!
//! A node's taints are one list, which others write as well. What is the agent's in it is told by
//! key, effect and the absence of a value, and nothing else of it is ever touched.

use super::taint_key;
use crate::node::{Node, Taint};
use crate::node_conditions::pressure::{CONDITIONS, Pressure, Severity};
use crate::policy::eviction_settings::NodeStatusSettings;
use crate::signal::NodeCondition;

/// What a taint does to pods that do not tolerate it: those values of `v1.TaintEffect` that the
/// agent writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The scheduler avoids the node.
    PreferNoSchedule,
    /// The scheduler lets no pod on it.
    NoSchedule,
}

impl Effect {
    /// As the API has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoSchedule => "NoSchedule",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::PreferNoSchedule, Self::NoSchedule].into_iter().find(|effect| effect.name() == name)
    }
}

/// A change of the list of taints. They are made in their order, on the list as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintChange {
    /// The agent's taint of that key at that place gets another effect.
    Replace {
        /// Its place.
        index: usize,
        /// Its key.
        key: &'static str,
        /// The new effect.
        effect: Effect,
    },
    /// The agent's taint of that key at that place goes. Later places come first.
    Remove {
        /// Its place.
        index: usize,
        /// Its key.
        key: &'static str,
        /// Its effect.
        effect: Effect,
    },
    /// A taint is added at the end.
    Add {
        /// Its key.
        key: &'static str,
        /// Its effect.
        effect: Effect,
    },
}

/// The effect of a taint, if it is one that the agent wrote for that condition.
fn own(taint: &Taint, condition: NodeCondition) -> Option<Effect> {
    let Taint { key, value, effect } = taint;
    Effect::named(effect).filter(|_| &**key == taint_key(condition) && value.is_empty())
}

/// The effects of the taints that the agent has on a node for a condition.
pub fn effects(node: &Node, condition: NodeCondition) -> impl Iterator<Item = Effect> {
    node.taints.iter().filter_map(move |taint| own(taint, condition))
}

/// What a condition's taint ought to do; nothing if there ought to be none.
pub fn wanted(pressure: &Pressure, marks: NodeStatusSettings) -> Option<Effect> {
    match pressure.severity? {
        Severity::Hard if marks.no_schedule => Some(Effect::NoSchedule),
        Severity::Hard | Severity::Soft => marks.prefer_no_schedule.then_some(Effect::PreferNoSchedule),
    }
}

/// What has to change so that the agent's taints are these, by the place of the condition.
pub fn taints(node: &Node, wanted: &[Option<Effect>; NodeCondition::COUNT]) -> Vec<TaintChange> {
    let (mut replaced, mut removed, mut added) = (Vec::new(), Vec::new(), Vec::new());
    for condition in CONDITIONS {
        let key = taint_key(condition);
        let found = node.taints.iter().enumerate();
        let mut found: Vec<(usize, Effect)> =
            found.filter_map(|(index, taint)| Some((index, own(taint, condition)?))).collect();
        // There is one of each key and effect at most: what somebody else has said is said.
        let is_said = |effect: &Effect| {
            let mut others = node.taints.iter().filter(|taint| own(taint, condition).is_none());
            others.any(|taint| &*taint.key == key && *taint.effect == *effect.name())
        };
        if let Some(effect) = wanted[condition as usize].filter(|effect| !is_said(effect)) {
            let right = found.iter().position(|(_, own)| *own == effect);
            match (right, found.first().copied()) {
                (Some(right), _) => {
                    found.remove(right);
                }
                (None, Some((index, _))) => {
                    replaced.push(TaintChange::Replace { index, key, effect });
                    found.remove(0);
                }
                (None, None) => added.push(TaintChange::Add { key, effect }),
            }
        }
        removed.extend(found.into_iter().map(|(index, effect)| (index, key, effect)));
    }
    // What comes behind a place that is taken away moves up.
    removed.sort_by_key(|(index, ..)| std::cmp::Reverse(*index));
    let removed = removed.into_iter().map(|(index, key, effect)| TaintChange::Remove { index, key, effect });
    replaced.into_iter().chain(removed).chain(added).collect()
}
