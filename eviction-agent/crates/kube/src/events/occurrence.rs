//! Something that happened, to be told.

use std::collections::BTreeMap;

use jiff::Timestamp;

use eviction_core::pod::PodName;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A pod was evicted: the kubelet's word for it.
    Evicted,
    /// The kernel killed a process of a container for want of memory.
    ContainerOomKilled,
    /// The kernel killed a process that is of no known pod.
    ProcessOomKilled,
    /// An eviction threshold is met: the kubelet's word for it.
    ThresholdMet,
    /// It is so no more.
    ThresholdCleared,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 5] = [
        Self::Evicted,
        Self::ContainerOomKilled,
        Self::ProcessOomKilled,
        Self::ThresholdMet,
        Self::ThresholdCleared,
    ];

    /// `reason` of the event.
    pub fn name(self) -> &'static str {
        match self {
            Self::Evicted => "Evicted",
            Self::ContainerOomKilled => "ContainerOOMKilled",
            Self::ProcessOomKilled => "ProcessOOMKilled",
            Self::ThresholdMet => "EvictionThresholdMet",
            Self::ThresholdCleared => "EvictionThresholdCleared",
        }
    }

    /// `action` of the event: what was done, and by whom.
    pub(super) fn action(self) -> &'static str {
        match self {
            Self::Evicted => "Evict",
            Self::ContainerOomKilled | Self::ProcessOomKilled => "KernelOOMKill",
            Self::ThresholdMet | Self::ThresholdCleared => "Observe",
        }
    }

    /// `type` of the event.
    pub(super) fn severity(self) -> &'static str {
        match self {
            Self::ThresholdCleared => "Normal",
            _ => "Warning",
        }
    }
}

/// Of what object it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Regarding {
    /// A pod.
    Pod(PodName),
    /// The node of that name.
    Node(Box<str>),
}

impl Regarding {
    /// What tells it from all others.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Pod(pod) => &pod.uid,
            Self::Node(name) => name,
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// What.
    pub reason: Reason,
    /// To what.
    pub regarding: Regarding,
    /// To which part of it: what is of the same part, for the same reason, is one series.
    pub part: Box<str>,
    /// When, by the system's clock.
    pub at: Timestamp,
    /// For people; of a series the first one's stays, since the API lets it not be changed.
    pub note: Box<str>,
    /// For programs, likewise.
    pub annotations: BTreeMap<Box<str>, Box<str>>,
    /// How often it happened at once.
    pub times: u64,
}

/// What became of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// It is to be told. Every occurrence is counted here, and in one of the others once that is known.
    Noted,
    /// It made an event.
    Created,
    /// It is in the count of a series.
    Counted,
    /// There was no room for it, or for too long no server that would take it.
    Dropped,
    /// The server does not take it.
    Refused,
}

impl Fate {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Noted, Self::Created, Self::Counted, Self::Dropped, Self::Refused];

    /// As metrics write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Noted => "noted",
            Self::Created => "created",
            Self::Counted => "counted",
            Self::Dropped => "dropped",
            Self::Refused => "refused",
        }
    }
}
