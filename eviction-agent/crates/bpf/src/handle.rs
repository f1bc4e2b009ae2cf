//! The handle of the loaded programs: thresholds, charged cgroups, task counts.

pub(crate) mod disk;
pub(crate) mod kernel_kill;
pub(crate) mod task_counters;

use std::collections::HashMap;

use aya::Ebpf;
use aya::maps::{Array, HashMap as BpfHashMap, Map, MapData, MapError, PerCpuArray};
use eviction_common::{Edge, FireToken, MemcgThreshold, threshold_bit};

use super::{
    attach::Link,
    attach_methods::{AttachWhen, EventClass},
    on_demand::OnDemandProbe,
    plan::BackendInfo,
    sys::{self, MapEntry},
};

use disk::DiskMaps;
use kernel_kill::KernelKillMaps;
use task_counters::TaskCounterMaps;

/// The thresholds on a cgroup, in bytes. Each edge that is set fires once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelThreshold {
    /// Fires when usage plus what was reclaimed since the setting is at least this: if page cache is reclaimed
    /// for new charges, usage does not change. Only the probe of [`AttachWhen::NearThreshold`] reports what was
    /// reclaimed.
    pub usage_above: Option<u64>,
    /// Fires when usage is less than this.
    pub usage_below: Option<u64>,
    /// Fires when this much was charged since the setting, whatever was uncharged meanwhile. Only methods that
    /// see every charge count it ([`BackendInfo::sees_every_charge`]); on others it never fires.
    pub gross: Option<u64>,
}

/// Takes a map out of the object.
pub(super) fn take_map<M>(ebpf: &mut Ebpf, name: &str) -> Result<M, MapError>
where
    M: TryFrom<Map, Error = MapError>,
{
    ebpf.take_map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() })?.try_into()
}

/// Returns whether there was an entry to read or to remove.
fn was_present(result: Result<(), MapError>) -> Result<bool, MapError> {
    match result {
        Ok(()) => Ok(true),
        Err(MapError::KeyNotFound) => Ok(false),
        Err(MapError::SyscallError(error)) if error.io_error.kind() == std::io::ErrorKind::NotFound => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The programs that are loaded into the kernel. Dropping it detaches every program.
pub struct BpfHandle {
    threshold_map: BpfHashMap<MapData, u64, MapEntry<MemcgThreshold>>,
    threshold_bits: Array<MapData, u64>,
    fire_tokens: BpfHashMap<MapData, MapEntry<FireToken>, u8>,
    charged: MapData,
    pub(super) counters: PerCpuArray<MapData, u64>,
    task_counters: TaskCounterMaps,
    disks: DiskMaps,
    /// Absent if the programs were loaded without kernel kill, or this kernel does not show them what they need.
    kernel_kill: Option<KernelKillMaps>,
    pub(super) links: Vec<(EventClass, Link)>,
    pub(super) near: Vec<OnDemandProbe>,
    pub(super) sources: Vec<BackendInfo>,
    page_bytes: u64,
    charge_caches: u32,
    generation: u64,
    /// The generation and the values of each threshold that is set, by the id of its cgroup.
    thresholds: HashMap<u64, (u64, KernelThreshold)>,
}

impl BpfHandle {
    /// Takes the maps out of the object. Nothing is attached yet.
    pub(super) fn take(
        ebpf: &mut Ebpf,
        max_thresholds: u32,
        has_kernel_kill: bool,
        charge_caches: u32,
    ) -> Result<Self, MapError> {
        Ok(Self {
            threshold_map: take_map(ebpf, "THRESHOLDS")?,
            threshold_bits: take_map(ebpf, "THRESHOLD_BITS")?,
            fire_tokens: take_map(ebpf, "FIRE_TOKENS")?,
            charged: match ebpf.take_map("CHARGED_CGROUPS") {
                Some(Map::HashMap(map)) => map,
                _ => return Err(MapError::InvalidName { name: "CHARGED_CGROUPS".into() }),
            },
            counters: take_map(ebpf, "COUNTERS")?,
            task_counters: TaskCounterMaps::take(ebpf)?,
            disks: DiskMaps::take(ebpf)?,
            kernel_kill: has_kernel_kill.then(|| KernelKillMaps::take(ebpf)).transpose()?,
            links: Vec::new(),
            near: Vec::new(),
            sources: Vec::new(),
            page_bytes: rustix::param::page_size() as u64,
            charge_caches,
            generation: 0,
            thresholds: HashMap::with_capacity(max_thresholds as usize),
        })
    }

    /// Returns what is attached, one entry for each class.
    pub fn sources(&self) -> &[BackendInfo] {
        &self.sources
    }

    /// Returns the backend that currently sees charges; `None` if there is none.
    pub fn charge(&self) -> Option<&BackendInfo> {
        let is_near_attached = self.is_attached(AttachWhen::NearThreshold);
        let class = if is_near_attached { EventClass::ChargeNear } else { EventClass::Charge };
        self.sources.iter().find(|info| info.source == class.name())
    }

    /// Returns of how many memory cgroups a CPU caches charged pages at once.
    pub fn charge_caches(&self) -> u32 {
        self.charge_caches
    }

    /// Requests that the on-demand probe for `when`, if there is one, is attached or detached. Does not wait:
    /// [`BpfHandle::is_attached`] shows when that is done. An error is returned once, and the probe is removed.
    ///
    /// # Errors
    /// If the kernel has refused the probe.
    pub fn request_probe(&mut self, when: AttachWhen, wanted: bool) -> std::io::Result<()> {
        let Some(index) = self.near.iter().position(|near| near.when == when) else { return Ok(()) };
        let requested = self.near[index].switch.request(wanted);
        if requested.is_err() {
            let class = self.near.remove(index).class;
            self.sources.retain(|info| info.source != class.name());
        }
        requested
    }

    /// Returns whether the on-demand probe for `when` is attached.
    pub fn is_attached(&self, when: AttachWhen) -> bool {
        self.near.iter().any(|near| near.when == when && near.switch.is_on())
    }

    /// Returns whether a request is not yet done.
    pub fn is_changing(&self) -> bool {
        self.near.iter().any(|near| near.switch.is_changing())
    }

    /// Checks with the kernel which programs are not attached any more. Returns the class and the method of each,
    /// and the error that shows it.
    pub fn detached(&self) -> impl Iterator<Item = (EventClass, &'static str, std::io::Error)> {
        let near = self.near.iter().flat_map(|near| {
            let verified = near.switch.with(|links| links.iter().map(Link::verify).collect::<Vec<_>>());
            verified.into_iter().flatten().map(|verified| (near.class, verified))
        });
        let links = self.links.iter().map(|(class, link)| (*class, link.verify()));
        links.chain(near).filter_map(|(class, verified)| {
            let error = verified.err()?;
            let info = self.sources.iter().find(|info| info.source == class.name());
            Some((class, info.map_or("", |info| info.backend), error))
        })
    }

    /// Returns the kernel's ids of the attached programs, as `bpftool prog` lists them.
    pub fn program_ids(&self) -> Vec<u32> {
        let programs = |links: &Vec<Link>| links.iter().map(|link| link.program.id).collect::<Vec<_>>();
        let near = self.near.iter().filter_map(|near| near.switch.with(programs)).flatten();
        self.links.iter().map(|(_, link)| link.program.id).chain(near).collect()
    }

    /// Sets the threshold of the cgroup with this id (the root's is that of the node), in place of the one
    /// before. Each edge that is set fires once. A crossing before the call returned may still be reported,
    /// with an earlier generation. An edge that is already crossed fires when the charge hook runs next, that
    /// is, within the method's granularity.
    ///
    /// Returns the generation of the setting, which is greater than that of every earlier one.
    ///
    /// Bytes are rounded to pages so that an edge never fires later than requested.
    ///
    /// # Errors
    /// If a map cannot be written; "Argument list too long" means a full map.
    pub fn set_threshold(&mut self, id: u64, threshold: KernelThreshold) -> Result<u64, MapError> {
        self.set_threshold_since(id, threshold, None)
    }

    /// Sets a threshold that was computed from a reading that began at `since`. What was charged meanwhile
    /// counts, up to half of the gross limit, since values that take long to read must not be read without a
    /// pause. What was reclaimed meanwhile counts as well.
    pub fn set_threshold_since(
        &mut self,
        id: u64,
        threshold: KernelThreshold,
        since: Option<MemcgThreshold>,
    ) -> Result<u64, MapError> {
        self.generation += 1;
        let generation = self.generation;
        if let Err(error) = self.write(id, generation, &threshold, since) {
            self.remove_fire_tokens(id, generation, &threshold);
            return Err(error);
        }
        if let Some((old, threshold)) = self.thresholds.insert(id, (generation, threshold)) {
            self.remove_fire_tokens(id, old, &threshold);
        }
        Ok(generation)
    }

    /// Reads the threshold of this cgroup, with the pages that were charged and reclaimed since it was set. Must be
    /// called before the cgroup is read. Returns `None` without a threshold on it.
    pub fn read_threshold(&self, id: u64) -> Option<MemcgThreshold> {
        self.threshold_map.get(&id, 0).ok().map(|MapEntry(threshold)| threshold)
    }

    /// Returns what was charged since then, and what was reclaimed, in pages.
    fn charged_since(&self, id: u64, since: Option<MemcgThreshold>) -> (u64, u64) {
        match since.and_then(|since| Some((since, self.read_threshold(id)?))) {
            Some((since, now)) if now.generation == since.generation => {
                (now.gross.saturating_sub(since.gross), now.reclaimed.saturating_sub(since.reclaimed))
            }
            _ => (0, 0),
        }
    }

    fn write(
        &mut self,
        id: u64,
        generation: u64,
        threshold: &KernelThreshold,
        since: Option<MemcgThreshold>,
    ) -> Result<(), MapError> {
        // The fire tokens first: an edge that fires without one would not be reported.
        for edge in edges(threshold) {
            self.fire_tokens.insert(fire_token(id, generation, edge), 1, 0)?;
        }
        let KernelThreshold { usage_above, usage_below, gross } = *threshold;
        let gross_limit = gross.map_or(u64::MAX, |bytes| bytes / self.page_bytes);
        // This comes last, so that hardly anything is charged between this and the insertion.
        let (charged, reclaimed) = self.charged_since(id, since);
        let armed = MemcgThreshold {
            generation,
            usage_above: usage_above.map_or(u64::MAX, |bytes| bytes / self.page_bytes),
            usage_below: usage_below.map_or(0, |bytes| bytes.div_ceil(self.page_bytes)),
            gross_limit,
            gross: charged.min(gross_limit / 2),
            reclaimed,
        };
        self.threshold_map.insert(id, MapEntry(armed), 0)?;
        self.set_threshold_bit(id)
    }

    /// Makes the programs look up the threshold of this cgroup.
    fn set_threshold_bit(&mut self, id: u64) -> Result<(), MapError> {
        let (word, bit) = threshold_bit(id);
        let before = self.threshold_bits.get(&word, 0)?;
        if before & bit == 0 { self.threshold_bits.set(word, before | bit, 0) } else { Ok(()) }
    }

    /// Ends the lookups of this cgroup, unless another one has the same bit.
    fn clear_threshold_bit(&mut self, id: u64) {
        let (word, bit) = threshold_bit(id);
        if self.thresholds.keys().any(|other| threshold_bit(*other) == (word, bit)) {
            return;
        }
        // If the bit stays set, the programs look up the cgroup in vain.
        if let Ok(before) = self.threshold_bits.get(&word, 0) {
            let _ = self.threshold_bits.set(word, before & !bit, 0);
        }
    }

    /// Removes the threshold of the cgroup with this id. The cgroup may have been removed.
    pub fn clear_threshold(&mut self, id: u64) {
        // The entry is missing if the cgroup was removed: the program of rmdir has deleted it. One that stays
        // fires no more, since its tokens are removed.
        let _ = self.threshold_map.remove(&id);
        if let Some((generation, threshold)) = self.thresholds.remove(&id) {
            self.remove_fire_tokens(id, generation, &threshold);
            self.clear_threshold_bit(id);
        }
    }

    /// Returns how many threshold entries and how many fire tokens the kernel holds.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn threshold_entries(&self) -> Result<(usize, usize), MapError> {
        let thresholds = self.threshold_map.keys().collect::<Result<Vec<_>, _>>()?;
        let fire_tokens = self.fire_tokens.keys().collect::<Result<Vec<_>, _>>()?;
        Ok((thresholds.len(), fire_tokens.len()))
    }

    /// Returns the ids of the cgroups with a threshold.
    pub fn thresholds(&self) -> impl Iterator<Item = u64> + '_ {
        self.thresholds.keys().copied()
    }

    fn remove_fire_tokens(&mut self, id: u64, generation: u64, threshold: &KernelThreshold) {
        for edge in edges(threshold) {
            // The token is missing if it was taken, that is, if the edge fired. One that stays takes up an entry
            // of the map, and no later setting has its generation.
            let _ = self.fire_tokens.remove(&fire_token(id, generation, edge));
        }
    }

    /// Passes on the ids of the memory cgroups that charged since the last call, in no order.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn take_charged(&self, each: impl FnMut(u64)) -> Result<(), MapError> {
        sys::take_all(&self.charged, each)
    }
}

fn edges(threshold: &KernelThreshold) -> impl Iterator<Item = Edge> + use<> {
    let KernelThreshold { usage_above, usage_below, gross } = *threshold;
    [usage_above.map(|_| Edge::UsageAbove), gross.map(|_| Edge::Gross), usage_below.map(|_| Edge::UsageBelow)]
        .into_iter()
        .flatten()
}

fn fire_token(id: u64, generation: u64, edge: Edge) -> MapEntry<FireToken> {
    MapEntry(FireToken { id, generation, edge: edge as u32, pad: 0 })
}
