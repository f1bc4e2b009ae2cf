//! A kill that was brought about, and what the agent has to report of it.

/// By what limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// The container's own.
    Container,
    /// The pod's.
    Pod,
    /// The container's own, in a group that is made for this kill and removed the moment after.
    Fleeting,
    /// The container's own, and all of its processes die together.
    Group,
    /// There is none: the machine has no more.
    Global,
}

impl Level {
    pub(crate) const ALL: [Self; 5] = [Self::Container, Self::Pod, Self::Fleeting, Self::Group, Self::Global];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Pod => "pod",
            Self::Fleeting => "container, removed at once",
            Self::Group => "group",
            Self::Global => "global",
        }
    }

    /// As the agent calls the owner.
    pub(crate) fn owner(self) -> &'static str {
        match self {
            Self::Container | Self::Fleeting | Self::Group => "container",
            Self::Pod => "pod",
            Self::Global => "node",
        }
    }
}

/// What has to be reported.
#[derive(Clone, Debug)]
pub(crate) struct Kill {
    pub(crate) level: Level,
    /// Every process that died; of a group more than one.
    pub(crate) pids: Vec<u32>,
    pub(crate) pod: String,
    pub(crate) container: String,
    /// The victim's group below the node's.
    pub(crate) cgroup: String,
    /// That of the limit's owner; nothing for the machine.
    pub(crate) owner_cgroup: Option<String>,
}
