//! An end with its verdict.

use serde::Serialize;

use crate::pods::KnownPod;
use crate::time::Timestamp;

use super::cause::{AttributedCause, TerminationCause};
use super::container_end::{EndSeen, Evictor};
use super::pending::PendingEnd;
use super::pod::KillEntry;

/// A container that ended, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndedContainer {
    /// `metadata.namespace` of its pod; empty if the engine was never told of the pod.
    pub namespace: Box<str>,
    /// `metadata.name`, likewise.
    pub name: Box<str>,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// Name of the container, else the start of its id.
    pub container: Box<str>,
    /// The runtime's id of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<Box<str>>,
    /// When it ended, as near as anybody knows.
    pub ended_at: Timestamp,
    /// Its exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that its main process died by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The runtime's word.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: Box<str>,
    /// Why it ended: the first of these. What follows happened to it as well before it was
    /// gone, in this order. Never empty.
    pub causes: Vec<AttributedCause>,
    /// What is known about it, in order of time.
    pub evidence: Vec<Evidence>,
}

/// Something that speaks of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// The engine decided to evict the pod.
    AgentEvicts {
        /// When.
        at: Timestamp,
    },
    /// The kernel killed a process of it, or maybe of it.
    KernelKills(Box<KillEntry>),
    /// The pod is on record as evicted.
    EvictionOnRecord {
        /// By whom.
        by: Evictor,
        /// Since when.
        #[serde(skip_serializing_if = "Option::is_none")]
        at: Option<Timestamp>,
    },
    /// Somebody saw it end.
    Ended {
        /// Who.
        seen: EndSeen,
    },
}

impl Evidence {
    /// When it was, where that is known.
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Self::AgentEvicts { at } => Some(*at),
            Self::KernelKills(kill) => Some(kill.at),
            Self::EvictionOnRecord { at, .. } => *at,
            Self::Ended { .. } => None,
        }
    }
}

impl EndedContainer {
    pub(super) fn new(
        uid: &str,
        known: Option<&KnownPod>,
        end: &PendingEnd,
        causes: Vec<AttributedCause>,
        evidence: Vec<Evidence>,
    ) -> Self {
        Self {
            namespace: known.map_or_else(Box::default, |known| known.pod.namespace.clone()),
            name: known.map_or_else(Box::default, |known| known.pod.name.clone()),
            uid: uid.into(),
            container: end.container.clone(),
            instance: end.instance.clone(),
            ended_at: end.at,
            exit_code: end.exit_code,
            signal: end.signal,
            reason: end.reason.clone(),
            causes,
            evidence,
        }
    }

    /// Why it ended.
    pub fn verdict(&self) -> TerminationCause {
        self.causes.first().map_or(TerminationCause::Other, |cause| cause.verdict)
    }

    /// What else happened to it before it was gone.
    pub fn also(&self) -> Option<TerminationCause> {
        self.causes.get(1).map(|cause| cause.verdict)
    }
}
