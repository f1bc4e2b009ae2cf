//! A kill that the bench caused, and what the agent has to report about it.

/// The limit that causes a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// The limit of the container.
    Container,
    /// The limit of the pod.
    Pod,
    /// The limit of the container, in a cgroup that is created for this kill and removed right after it.
    Fleeting,
    /// The limit of the container; all of its processes are killed together.
    Group,
    /// No limit: the machine has no more memory.
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

    /// Returns the owner of the limit, as the agent names it.
    pub(crate) fn owner(self) -> &'static str {
        match self {
            Self::Container | Self::Fleeting | Self::Group => "container",
            Self::Pod => "pod",
            Self::Global => "node",
        }
    }
}

/// A kill that has to be reported.
#[derive(Clone, Debug)]
pub(crate) struct Kill {
    pub(crate) level: Level,
    /// All processes that died; more than one for a group.
    pub(crate) pids: Vec<u32>,
    pub(crate) pod: String,
    pub(crate) container: String,
    /// The victim's cgroup below the node's.
    pub(crate) cgroup: String,
    /// The cgroup of the limit's owner; `None` for the machine.
    pub(crate) owner_cgroup: Option<String>,
}
