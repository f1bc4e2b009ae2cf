//! What protects a candidate or puts it forward, and why nothing may be known of it yet.

use std::sync::Arc;

use serde::Serialize;

use crate::pods::KnownPod;
use crate::pods::{EvictionOrder, IgnoredAnnotation, PodProtection};
use crate::rank::OverRequestClass;
use crate::time::{Timestamp, since};
use crate::units::GoDuration;

/// For how long after its start a pod may well have no statistics yet: three of the kubelet's
/// rounds of sampling, one each ten seconds.
const YOUNG: GoDuration = GoDuration::from_secs(30);

/// When it is the turn of a pod for other reasons than what it uses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProtectionRecord {
    /// When its turn is.
    pub turn: EvictionOrder,
    /// The place in `policy.protection` of the rule that fits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    /// Nothing would bring it back, so that others of its standing and priority go before.
    pub bare: bool,
    /// What it asks for by `eviction-agent.io/priority-hint`: lower goes first.
    pub hint: i8,
    /// Its annotations that say nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored_annotations: Vec<IgnoredAnnotation>,
}

impl ProtectionRecord {
    /// None if there is nothing to tell.
    pub(super) fn of(known: &KnownPod) -> Option<Self> {
        if known.shelter
            == (PodProtection { account: Arc::clone(&known.shelter.account), ..PodProtection::default() })
        {
            return None;
        }
        let PodProtection { turn, rule, bare, hint, account: _, ignored } = known.shelter.clone();
        Some(Self { turn, rule, bare, hint, ignored_annotations: ignored })
    }
}

/// How long ago a pod started of which nothing is known, if that is so short a time that its
/// first sample may not have been taken yet.
pub(super) fn too_young(known: &KnownPod, standing: OverRequestClass, now: Timestamp) -> Option<GoDuration> {
    let is_unknown = matches!(standing, OverRequestClass::NoStats | OverRequestClass::Unknown);
    let age = since(now, known.pod.start_time.filter(|_| is_unknown)?);
    (age < YOUNG).then_some(age)
}
