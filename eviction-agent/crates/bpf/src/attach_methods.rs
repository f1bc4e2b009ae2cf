//! The table of attach methods: every way to see a class of events that there is, and what it needs of the
//! kernel. A new one is an entry in `attach_methods/table.rs` and a thin program.
#![forbid(unsafe_code)]

mod table;

use std::fmt;

use eviction_common::{BATCH_PAGES, MIN_CHANGE_PAGES};
use eviction_node::notify::{memcg_v1, memory_events, psi, timer};

use super::btf::Argument;
pub use table::ATTACH_METHODS;

eviction_core::named_enum! {
    /// What a program tells about.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum EventClass {
        /// Charges of memory cgroups: crossings and the dirty set.
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
        /// Cgroups made and removed.
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
    /// The type of the file systems that it is about; it is loaded where the node has one ([`LoadOptions::disks`]).
    ///
    /// [`LoadOptions::disks`]: crate::LoadOptions::disks
    pub const fn file_system(self) -> Option<&'static str> {
        match self {
            Self::Disk | Self::DiskNear => Some("ext4"),
            Self::DiskXfs => Some("xfs"),
            _ => None,
        }
    }
}

impl fmt::Display for EventClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One way to see a class of events: programs that are attached together.
#[derive(Debug)]
pub struct AttachMethod {
    /// Its name in logs, metrics, `check` and options.
    pub name: &'static str,
    /// What it tells about.
    pub class: EventClass,
    /// Its programs.
    pub hooks: &'static [ProgramHook],
    /// The members without which it is of no use, by the names of their fields in
    /// [`eviction_common::Offsets`].
    pub(super) needs: &'static [&'static [&'static str]],
    pub(super) sees_every_charge: bool,
    pub(super) granularity: Granularity,
    /// Of a hook for a time, beside what and when.
    pub(super) companion: Option<CompanionProbe>,
}

/// What a hook that is attached for a time is good for.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompanionProbe {
    /// The methods for charges, or for disks, that it goes with.
    pub(super) methods: &'static [&'static str],
    /// When it is attached.
    pub(super) when: AttachWhen,
}

/// When a hook for a time is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttachWhen {
    /// While a line is near: it sees growth that the other passes over.
    NearThreshold,
    /// While it is to be seen how pressure ends: the other sees no memory given back.
    OnRelease,
    /// While a threshold on a disk is near: the other sees what is written by write-back only.
    NearDiskThreshold,
}

/// How far a cgroup can grow before a method sees it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Granularity {
    /// That says nothing about it.
    None,
    /// What one page of page tables maps, and what is passed over.
    PageTable,
    /// What each CPU charges ahead at once.
    Batch,
}

impl Granularity {
    pub(super) fn bytes(self, page_bytes: u64) -> u64 {
        match self {
            Self::None => 0,
            // An entry is 8 bytes on every machine that BPF programs are compiled for.
            Self::PageTable => page_bytes / 8 * page_bytes + MIN_CHANGE_PAGES * page_bytes,
            Self::Batch => BATCH_PAGES * page_bytes,
        }
    }
}

/// One program of the object, and where it goes.
#[derive(Debug)]
pub struct ProgramHook {
    /// Its name in the object.
    pub program: &'static str,
    /// What it is attached to.
    pub at: HookPoint,
    /// What its first arguments have to be.
    pub(super) arguments: &'static [Expected],
}

/// A place in the kernel that a program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint {
    /// A tracepoint, by BTF.
    Tracepoint(&'static str),
    /// A tracepoint, also one of a module. The verifier does not know the types of its arguments.
    RawTracepoint(&'static str),
    /// Where a function begins, by BTF and a trampoline.
    Entry(&'static str),
    /// Where a function returns, by the same.
    Exit(&'static str),
    /// Where a function begins, by a breakpoint or what stands for one.
    Probe(&'static str),
    /// Where a function returns, by the same.
    ReturnProbe(&'static str),
}

impl HookPoint {
    /// The tracepoint, if it is one.
    pub fn tracepoint(self) -> Option<&'static str> {
        match self {
            Self::Tracepoint(name) | Self::RawTracepoint(name) => Some(name),
            Self::Entry(_) | Self::Exit(_) | Self::Probe(_) | Self::ReturnProbe(_) => None,
        }
    }

    /// The function, if it is one.
    pub fn function(self) -> Option<&'static str> {
        match self {
            Self::Tracepoint(_) | Self::RawTracepoint(_) => None,
            Self::Entry(name) | Self::Exit(name) | Self::Probe(name) | Self::ReturnProbe(name) => Some(name),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Expected {
    Struct(&'static str),
    Pointer,
    Number,
}

impl Expected {
    pub(super) fn is(self, argument: &Argument) -> bool {
        match (self, argument) {
            (Self::Struct(name), Argument::Struct(found)) => name == found,
            (Self::Pointer, Argument::Pointer) | (Self::Number, Argument::Number) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Struct(name) => write!(f, "struct {name} *"),
            Self::Pointer => f.write_str("pointer"),
            Self::Number => f.write_str("number"),
        }
    }
}

/// What stands behind the methods for charges on every machine, in the same backends.
pub const FALLBACKS: [&str; 4] = [memcg_v1::NAME, psi::NAME, memory_events::NAME, timer::NAME];

/// The backends that the methods of a class are on: the names that one is chosen from.
pub fn backends(class: EventClass) -> impl Iterator<Item = &'static str> {
    let is_of_charges = matches!(class, EventClass::Charge | EventClass::ChargeNear);
    let behind = if is_of_charges { FALLBACKS.as_slice() } else { &[] };
    let own = ATTACH_METHODS.iter().filter(move |method| method.class == class).map(|method| method.name);
    own.chain(behind.iter().copied())
}

/// The name of every method that can be asked for or denied.
pub fn names() -> impl Iterator<Item = &'static str> {
    ATTACH_METHODS.iter().map(|method| method.name).chain(FALLBACKS)
}
