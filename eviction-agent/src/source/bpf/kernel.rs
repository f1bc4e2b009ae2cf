//! The handle on what is loaded: arming, the dirty set, task counts, what was lost.

use std::collections::HashMap;

use aya::maps::{HashMap as BpfHashMap, MapData, MapError, PerCpuArray, PerCpuHashMap};
use eviction_common::{Armed, Counter, Dirty, Edge, TaskCount as RawTaskCount, Ticket};
use thiserror::Error;

use super::{
    attach::Link,
    near::Near,
    plan::{Family, SourceInfo, When},
    sys::{self, Entry},
};

/// What is to be told about a cgroup, in bytes. Each edge that is set fires once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// When usage is at least this.
    pub usage_above: Option<u64>,
    /// When usage is less than this.
    pub usage_below: Option<u64>,
    /// When so much was charged since the arming, whatever was uncharged meanwhile. Only rungs
    /// that see every charge count it ([`SourceInfo::sees_every_charge`]); on others it never fires.
    pub gross: Option<u64>,
}

/// The number of an arming; greater than that of every arming before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// Why a level could not be armed.
#[derive(Debug, Error)]
#[error("arm cgroup {id}")]
pub struct ArmError {
    /// The cgroup.
    pub id: u64,
    /// What the kernel said; "Argument list too long" is a full map.
    #[source]
    pub source: MapError,
}

/// A program that is not where it was attached any more.
#[derive(Debug, Error)]
#[error("{rung} was detached")]
pub struct Detached {
    /// What it told about.
    pub family: Family,
    /// Its rung.
    pub rung: &'static str,
    /// How that shows.
    #[source]
    pub source: std::io::Error,
}

/// A memory cgroup that charged since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLeaf {
    /// Its id.
    pub id: u64,
    /// Bytes charged since; 0 on rungs that do not see every charge.
    pub gross: u64,
    /// Usage at the last firing less usage at the first, bytes; 0 if it shrank.
    pub grown: u64,
    /// How often the hook fired for it.
    pub fired: u64,
}

/// Tasks that a cgroup made and ended since the programs were attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCount {
    /// Tasks (threads included) made.
    pub forks: u64,
    /// Tasks ended.
    pub exits: u64,
    /// Processes made.
    pub process_forks: u64,
    /// Processes whose first thread ended.
    pub process_exits: u64,
}

/// What the kernel side counted since it was loaded: what it lost, and what it saw in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Records written and lost.
    pub records: u64,
    /// Crossings that did not fit into the ring.
    pub crossed: u64,
    /// Kills that did not fit.
    pub oom_kill: u64,
    /// New cgroups that did not fit.
    pub cgroup_made: u64,
    /// Removed cgroups that did not fit.
    pub cgroup_gone: u64,
    /// Charging cgroups that found no room in the dirty set.
    pub dirty_full: u64,
    /// Cgroups whose event counts found no room.
    pub seen_full: u64,
    /// Cgroups whose task counts found no room.
    pub tasks_full: u64,
    /// Walks that ended before the root because the tree is too deep.
    pub walk_cut: u64,
    /// How often the charge hook looked at a memory cgroup.
    pub charges: u64,
    /// Tasks (threads included) made on the whole machine.
    pub forks: u64,
    /// Tasks ended on the whole machine.
    pub exits: u64,
}

impl Lost {
    /// Records of any kind that did not fit into the ring.
    pub fn records_lost(&self) -> u64 {
        self.crossed + self.oom_kill + self.cgroup_made + self.cgroup_gone
    }
}

pub(super) struct Maps {
    pub(super) armed: BpfHashMap<MapData, u64, Entry<Armed>>,
    pub(super) tickets: BpfHashMap<MapData, Entry<Ticket>, u8>,
    pub(super) dirty: MapData,
    pub(super) tasks: PerCpuHashMap<MapData, u64, Entry<RawTaskCount>>,
    pub(super) counters: PerCpuArray<MapData, u64>,
}

/// What is loaded into the kernel. Dropping it detaches every program.
pub struct Kernel {
    pub(super) maps: Maps,
    pub(super) links: Vec<(Family, Link)>,
    pub(super) near: Option<Near>,
    pub(super) sources: Vec<SourceInfo>,
    pub(super) page_bytes: u64,
    generation: u64,
    armed: HashMap<u64, (u64, Level)>,
}

impl Kernel {
    pub(super) fn new(
        maps: Maps,
        links: Vec<(Family, Link)>,
        near: Option<Near>,
        sources: Vec<SourceInfo>,
    ) -> Self {
        Self {
            maps,
            links,
            near,
            sources,
            page_bytes: rustix::param::page_size() as u64,
            generation: 0,
            armed: HashMap::new(),
        }
    }

    /// What is attached, one for each family.
    pub fn sources(&self) -> &[SourceInfo] {
        &self.sources
    }

    /// How charges are seen at present; nothing where they are not.
    pub fn charge(&self) -> Option<&SourceInfo> {
        let dense = self.is_attached(When::NearLine);
        let family = if dense { Family::Near } else { Family::Charge };
        self.sources.iter().find(|info| info.source == family.name())
    }

    /// Attaches the hook for a time that is good for this, if there is one. An error is told once;
    /// then there is none any more.
    ///
    /// # Errors
    /// If the kernel refuses it now.
    pub fn attach(&mut self, when: When) -> std::io::Result<()> {
        let attached = self.near.as_mut().filter(|near| near.when == when).map_or(Ok(()), Near::attach);
        if attached.is_err() {
            self.near = None;
        }
        attached
    }

    /// Takes that hook off.
    pub fn detach(&mut self, when: When) {
        self.near.iter_mut().filter(|near| near.when == when).for_each(Near::detach);
    }

    /// Whether that hook is attached.
    pub fn is_attached(&self, when: When) -> bool {
        self.near.as_ref().is_some_and(|near| near.when == when && near.is_attached())
    }

    /// Asks the kernel whether every program is where it was attached.
    ///
    /// # Errors
    /// The first that is not.
    pub fn verify(&self) -> Result<(), Detached> {
        let near = self.near.as_ref().and_then(Near::link).map(|link| (Family::Near, link));
        for (family, link) in self.links.iter().map(|(family, link)| (*family, link)).chain(near) {
            link.verify().map_err(|source| {
                let info = self.sources.iter().find(|info| info.source == family.name());
                Detached { family, rung: info.map_or("", |info| info.rung), source }
            })?;
        }
        Ok(())
    }

    /// The kernel's ids of the attached programs, as `bpftool prog` lists them.
    pub fn program_ids(&self) -> Vec<u32> {
        let near = self.near.as_ref().and_then(Near::link);
        self.links.iter().map(|(_, link)| link).chain(near).map(|link| link.program).collect()
    }

    /// Arms `level` on the cgroup with this id (the root's is the node's own level), instead of
    /// what was armed on it. Each edge that is set fires once; a crossing that came before the
    /// call returned may still come, with an earlier generation. An edge that is already
    /// crossed fires when the charge hook looks next, that is within the rung's grain.
    ///
    /// Bytes are rounded to pages so that an edge never fires later than asked.
    pub fn arm(&mut self, id: u64, level: Level) -> Result<Generation, ArmError> {
        self.generation += 1;
        let generation = self.generation;
        if let Err(source) = self.put(id, generation, &level) {
            self.withdraw(id, generation, &level);
            return Err(ArmError { id, source });
        }
        if let Some((old, level)) = self.armed.insert(id, (generation, level)) {
            self.withdraw(id, old, &level);
        }
        Ok(Generation(generation))
    }

    fn put(&mut self, id: u64, generation: u64, level: &Level) -> Result<(), MapError> {
        // The tickets first: an edge that fires without one would not be told.
        for edge in edges(level) {
            self.maps.tickets.insert(ticket(id, generation, edge), 1, 0)?;
        }
        let Level { usage_above, usage_below, gross } = *level;
        let armed = Armed {
            generation,
            usage_above: usage_above.map_or(u64::MAX, |bytes| bytes / self.page_bytes),
            usage_below: usage_below.map_or(0, |bytes| bytes.div_ceil(self.page_bytes)),
            gross_limit: gross.map_or(u64::MAX, |bytes| bytes / self.page_bytes),
            gross: 0,
            fired: [0; 3],
        };
        self.maps.armed.insert(id, Entry(armed), 0)
    }

    /// Disarms the cgroup with this id, which may be gone already.
    pub fn disarm(&mut self, id: u64) {
        // Gone already when the cgroup was removed: the program of rmdir took it out.
        let _ = self.maps.armed.remove(&id);
        if let Some((generation, level)) = self.armed.remove(&id) {
            self.withdraw(id, generation, &level);
        }
    }

    /// The ids of the cgroups on which something was armed and not disarmed.
    pub fn armed(&self) -> impl Iterator<Item = u64> + '_ {
        self.armed.keys().copied()
    }

    fn withdraw(&mut self, id: u64, generation: u64, level: &Level) {
        for edge in edges(level) {
            // Gone already when it was taken, that is when the edge fired.
            let _ = self.maps.tickets.remove(&ticket(id, generation, edge));
        }
    }

    /// Takes the set of memory cgroups that charged since the last call, those that grew most
    /// first, into `out` (which is cleared).
    pub fn take_dirty(&mut self, out: &mut Vec<DirtyLeaf>) -> Result<(), MapError> {
        out.clear();
        let page = self.page_bytes;
        sys::take_all::<u64, Dirty>(&self.maps.dirty, |id, dirty| {
            let Dirty { gross, fired, usage_first, usage_last } = dirty;
            out.push(DirtyLeaf {
                id,
                gross: gross.saturating_mul(page),
                grown: usage_last.saturating_sub(usage_first).saturating_mul(page),
                fired,
            });
        })?;
        out.sort_unstable_by_key(|leaf| {
            (std::cmp::Reverse((leaf.gross.max(leaf.grown), leaf.fired)), leaf.id)
        });
        Ok(())
    }

    /// What the tasks of this memory cgroup did since the programs were attached; zero for a
    /// cgroup that did nothing. Those of cgroups below it are not counted in.
    pub fn task_count(&self, id: u64) -> Result<TaskCount, MapError> {
        match self.maps.tasks.get(&id, 0) {
            Ok(per_cpu) => Ok(sum(per_cpu.iter())),
            Err(MapError::KeyNotFound) => Ok(TaskCount::default()),
            Err(error) => Err(error),
        }
    }

    /// The same of every memory cgroup that did anything, in no order, into `out` (which is cleared).
    pub fn task_counts(&self, out: &mut Vec<(u64, TaskCount)>) -> Result<(), MapError> {
        out.clear();
        for entry in self.maps.tasks.iter() {
            let (id, per_cpu) = entry?;
            out.push((id, sum(per_cpu.iter())));
        }
        Ok(())
    }

    /// What the programs counted and lost.
    pub fn lost(&self) -> Result<Lost, MapError> {
        let count = |counter: Counter| -> Result<u64, MapError> {
            Ok(self.maps.counters.get(&(counter as u32), 0)?.iter().sum())
        };
        Ok(Lost {
            records: count(Counter::Records)?,
            crossed: count(Counter::LostCrossed)?,
            oom_kill: count(Counter::LostOomKill)?,
            cgroup_made: count(Counter::LostCgroupMade)?,
            cgroup_gone: count(Counter::LostCgroupGone)?,
            dirty_full: count(Counter::DirtyFull)?,
            seen_full: count(Counter::SeenFull)?,
            tasks_full: count(Counter::TasksFull)?,
            walk_cut: count(Counter::WalkCut)?,
            charges: count(Counter::Charges)?,
            forks: count(Counter::Forks)?,
            exits: count(Counter::Exits)?,
        })
    }
}

fn edges(level: &Level) -> impl Iterator<Item = Edge> + use<> {
    let Level { usage_above, usage_below, gross } = *level;
    [usage_above.map(|_| Edge::UsageAbove), gross.map(|_| Edge::Gross), usage_below.map(|_| Edge::UsageBelow)]
        .into_iter()
        .flatten()
}

fn ticket(id: u64, generation: u64, edge: Edge) -> Entry<Ticket> {
    Entry(Ticket { id, generation, edge: edge as u32, pad: 0 })
}

fn sum<'a>(per_cpu: impl Iterator<Item = &'a Entry<RawTaskCount>>) -> TaskCount {
    per_cpu.fold(TaskCount::default(), |total, Entry(on_cpu)| TaskCount {
        forks: total.forks + on_cpu.forks,
        exits: total.exits + on_cpu.exits,
        process_forks: total.process_forks + on_cpu.process_forks,
        process_exits: total.process_exits + on_cpu.process_exits,
    })
}
