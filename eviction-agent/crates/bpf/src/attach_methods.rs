//! The table of attach methods: every way to observe a class of events, and what it requires of the kernel. A
//! new method is an entry in `attach_methods/table.rs` and a thin program.
#![forbid(unsafe_code)]

mod table;

use eviction_common::{BATCH_PAGES, MIN_CHANGE_PAGES};
use eviction_node::notify::{memcg_v1, memory_events, psi, timer};

use super::btf::Argument;
pub use table::ATTACH_METHODS;

eviction_core::named_enum! {
    /// What a program reports.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum EventClass {
        /// Charges of memory cgroups: threshold crossings and charged cgroups.
        Charge = "charge",
        /// What the method for charges does not see, by a hook that costs too much to be attached all
        /// the time.
        ChargeNear = "charge near",
        /// Out-of-memory kills.
        Oom = "oom",
        /// Forks, execs and exits.
        Task = "task",
        /// Time spent in memcg direct reclaim.
        Reclaim = "reclaim",
        /// Cgroups created and removed.
        Cgroup = "cgroup",
        /// Blocks and inodes of ext4: allocated and freed.
        Disk = "disk",
        /// Blocks of ext4 that buffered writes reserve, by hooks that cost too much to be attached all the time.
        DiskNear = "disk near",
        /// Blocks and inodes of xfs: reserved, allocated and created.
        DiskXfs = "disk xfs",
    }
}

impl EventClass {
    /// Returns the type of the file systems that the class is about. It is loaded where the node has one
    /// ([`LoadOptions::disks`]).
    ///
    /// [`LoadOptions::disks`]: crate::LoadOptions::disks
    pub const fn file_system(self) -> Option<&'static str> {
        match self {
            Self::Disk | Self::DiskNear => Some("ext4"),
            Self::DiskXfs => Some("xfs"),
            _ => None,
        }
    }

    /// Returns the class whose method the on-demand probes of this class accompany.
    pub const fn accompanied(self) -> Option<Self> {
        match self {
            Self::ChargeNear => Some(Self::Charge),
            Self::DiskNear => Some(Self::Disk),
            _ => None,
        }
    }
}

/// A way to observe a class of events: programs that are attached together.
#[derive(Debug)]
pub struct AttachMethod {
    /// Its name in logs, metrics, `check` and options.
    pub name: &'static str,
    /// The class of events that it observes.
    pub class: EventClass,
    /// Its programs.
    pub hooks: &'static [ProgramHook],
    /// The members that it requires, by the names of their fields in [`eviction_common::Offsets`].
    pub(super) needs: &'static [&'static [&'static str]],
    pub(super) sees_every_charge: bool,
    /// How far a cgroup can grow before the method reports it, in bytes; 0 if that does not apply to the method.
    pub(super) granularity: fn(page_bytes: u64) -> u64,
    /// When it is attached, if it is an on-demand probe; otherwise always.
    pub(super) when: Option<AttachWhen>,
    /// The methods for charges, or for disks, that an on-demand probe accompanies; `""` is no method.
    pub(super) accompanies: &'static [&'static str],
}

/// When an on-demand probe is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttachWhen {
    /// While a threshold is near: the probe sees growth that the other method ignores.
    NearThreshold,
    /// While the release of memory is awaited: the other method does not see freed memory.
    OnRelease,
    /// While a threshold on a disk is near: the other method sees only what write-back writes.
    NearDiskThreshold,
}

/// Returns the bytes that each CPU charges in advance at once.
fn batch(page_bytes: u64) -> u64 {
    BATCH_PAGES * page_bytes
}

/// Returns the bytes that one page of page tables maps, plus the changes that are ignored.
fn page_table(page_bytes: u64) -> u64 {
    // An entry is 8 bytes on every machine that BPF programs are compiled for.
    page_bytes / 8 * page_bytes + MIN_CHANGE_PAGES * page_bytes
}

/// A program of the object, and its hook point.
#[derive(Debug)]
pub struct ProgramHook {
    /// Its name in the object.
    pub program: &'static str,
    /// What it is attached to.
    pub at: HookPoint,
    /// The required types of its first arguments.
    pub(super) arguments: &'static [Expected],
}

/// A place in the kernel that a program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint {
    /// A tracepoint, by BTF.
    Tracepoint(&'static str),
    /// A tracepoint, also one of a module. The verifier does not know the types of its arguments.
    RawTracepoint(&'static str),
    /// The entry of a function, by BTF and a trampoline.
    Entry(&'static str),
    /// The return of a function, by BTF and a trampoline.
    Exit(&'static str),
    /// The entry of a function, by a breakpoint or its replacement.
    Probe(&'static str),
    /// The return of a function, by the same means as [`Self::Probe`].
    ReturnProbe(&'static str),
}

impl HookPoint {
    /// Returns the tracepoint, if it is one.
    pub fn tracepoint(self) -> Option<&'static str> {
        match self {
            Self::Tracepoint(name) | Self::RawTracepoint(name) => Some(name),
            Self::Entry(_) | Self::Exit(_) | Self::Probe(_) | Self::ReturnProbe(_) => None,
        }
    }

    /// Returns the function, if it is one.
    pub fn function(self) -> Option<&'static str> {
        match self {
            Self::Tracepoint(_) | Self::RawTracepoint(_) => None,
            Self::Entry(name) | Self::Exit(name) | Self::Probe(name) | Self::ReturnProbe(name) => Some(name),
        }
    }
}

/// The required type of an argument.
pub(super) type Expected = Argument<&'static str>;

/// The fallbacks of the methods for charges on every machine, by the names of their backends.
pub const FALLBACKS: [&str; 4] = [memcg_v1::NAME, psi::NAME, memory_events::NAME, timer::NAME];

/// Returns the backends of a class: the names to choose from.
pub fn backends(class: EventClass) -> impl Iterator<Item = &'static str> {
    let is_of_charges = matches!(class, EventClass::Charge | EventClass::ChargeNear);
    let fallbacks = if is_of_charges { FALLBACKS.as_slice() } else { &[] };
    let own = ATTACH_METHODS.iter().filter(move |method| method.class == class).map(|method| method.name);
    own.chain(fallbacks.iter().copied())
}

/// Returns the name of every method that can be requested or disabled.
pub fn names() -> impl Iterator<Item = &'static str> {
    ATTACH_METHODS.iter().map(|method| method.name).chain(FALLBACKS)
}
