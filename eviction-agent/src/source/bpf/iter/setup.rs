//! What the iterator needs to know of this kernel.
#![forbid(unsafe_code)]

use eviction_common::{ABSENT, GENERATIONS, MAX_LISTS, MAX_NODES, MAX_ZONES, SPAN_BYTES, UsageSetup};

use super::super::btf::{Btf, Missing};
use super::super::offsets::css_of;
use crate::source::file::{InWords, read_once};

const NODES_FILE: &str = "/sys/devices/system/node/possible";

/// What the kernel says of its cgroups, and of their page cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageFacts {
    /// What the program is loaded with.
    pub setup: UsageSetup,
    /// Why it cannot tell page cache, if it cannot.
    pub no_page_cache: Option<String>,
    /// Why the tree is to be walked each time, if it is.
    pub no_again: Option<String>,
}

/// Finds what the iterator needs. `nodes` is how many memory nodes there may be.
pub(in super::super) fn resolve(btf: &Btf<'_>, nodes: Result<u32, String>) -> Result<UsageFacts, String> {
    let mut setup = places(btf).map_err(|missing| missing.to_string())?;
    let lists = nodes.and_then(|nodes| {
        let lists = lists(btf).map_err(|missing| missing.to_string())?;
        Ok((nodes, lists))
    });
    let no_page_cache = match lists {
        Ok((nodes, lists)) => {
            setup = lists.into(setup).on_nodes(nodes);
            None
        }
        Err(why) => Some(why),
    };
    let no_again = match again(btf) {
        Ok(Marks { root_nodes, nodes_last }) => {
            setup = UsageSetup { root_nodes, nodes_last, ..setup };
            None
        }
        Err(missing) => Some(missing.to_string()),
    };
    Ok(UsageFacts { setup, no_page_cache, no_again })
}

/// By what cgroups are known again.
struct Marks {
    root_nodes: u32,
    nodes_last: u32,
}

fn again(btf: &Btf<'_>) -> Result<Marks, Missing> {
    let at = |structure, member| btf.member(structure, member).map(|found| found.offset);
    btf.enumerator("CSS_ONLINE")?;
    btf.enumerator("CSS_DYING")?;
    let (flags, serial) = (at("cgroup_subsys_state", "flags")?, at("cgroup_subsys_state", "serial_nr")?);
    let memory = at("mem_cgroup", "memory")?;
    let mut end = serial;
    for figure in ["usage", "max", "failcnt"] {
        end = end.max(memory + at("page_counter", figure)?);
    }
    // What the program fetches at once, in whole words.
    if end + 8 - (flags.min(serial) & !7) > SPAN_BYTES {
        return Err(Missing::Form("mem_cgroup".into(), "of members that lie close together"));
    }
    let (root_nodes, nodes_last) = (at("cgroup_root", "kf_root")?, at("kernfs_root", "last_id_lowbits")?);
    Ok(Marks { root_nodes, nodes_last })
}

fn places(btf: &Btf<'_>) -> Result<UsageSetup, Missing> {
    let at = |structure, member| btf.member(structure, member).map(|found| found.offset);
    at("bpf_iter__cgroup", "cgroup")?;
    Ok(UsageSetup {
        meta_session: at("bpf_iter_meta", "session_id")?,
        meta_number: at("bpf_iter_meta", "seq_num")?,
        cgroup_memory: css_of(btf, "cgroup", "memory_cgrp_id")?,
        cgroup_dying: at("cgroup", "nr_dying_descendants")?,
        counter_failures: at("page_counter", "failcnt")?,
        ..UsageSetup::NONE.on_nodes(0)
    })
}

/// Where the sizes of a memory cgroup's lists of pages are.
struct Lists {
    nodes: u32,
    inactive_file: u32,
    stride: u32,
    zones: u32,
    generations: Generations,
}

/// Where a memory cgroup's pages are counted by generations (MGLRU, from 6.1): there they are on none of
/// the lists that have sizes.
struct Generations {
    youngest: u32,
    file: u32,
    stride: u32,
}

impl Lists {
    fn into(self, setup: UsageSetup) -> UsageSetup {
        let Self { nodes, inactive_file, stride, zones, generations } = self;
        UsageSetup {
            memcg_nodes: nodes,
            node_inactive_file: inactive_file,
            zone_stride: stride,
            zones,
            generation: generations.youngest,
            generation_file: generations.file,
            generation_stride: generations.stride,
            ..setup
        }
    }
}

fn lists(btf: &Btf<'_>) -> Result<Lists, Missing> {
    const WHAT: &str = "mem_cgroup_per_node.lru_zone_size";
    let sizes = btf.member("mem_cgroup_per_node", "lru_zone_size")?;
    let (list, lists) = (btf.enumerator("LRU_INACTIVE_FILE")?, btf.enumerator("NR_LRU_LISTS")?);
    let size = |zone: u32| btf.element(WHAT, &sizes, i64::from(zone) * lists + list).map(|it| it.offset);
    let first = size(0)?;
    let zones = (1..=MAX_ZONES).find(|zone| size(*zone).is_err());
    let zones = zones.ok_or(Missing::Form(WHAT.into(), "of few zones"))?;
    let stride = if zones > 1 { size(1)? - first } else { 0 };
    if lists > MAX_LISTS.into() {
        return Err(Missing::Form(WHAT.into(), "of five lists at most"));
    }
    let nodes = btf.member("mem_cgroup", "nodeinfo")?.offset;
    Ok(Lists { nodes, inactive_file: first, stride, zones, generations: generations(btf, zones)? })
}

/// A kernel that has generations, and not in the form that is known, tells no page cache: on its lists
/// there may be none of it.
fn generations(btf: &Btf<'_>, zones: u32) -> Result<Generations, Missing> {
    const WHAT: &str = "lrugen.nr_pages";
    let Ok(lrugen) = btf.member("lruvec", "lrugen") else {
        return Ok(Generations { youngest: ABSENT, file: ABSENT, stride: 0 });
    };
    let lrugen = btf.member("mem_cgroup_per_node", "lruvec")?.of(lrugen);
    let whole = btf.structure_of(&lrugen).ok_or(Missing::Form("lruvec.lrugen".into(), "a structure"))?;
    let pages = lrugen.of(btf.member(whole, "nr_pages")?);
    // Two types, of anonymous and of file pages.
    let stride = 2 * zones;
    if btf.len(WHAT, &pages)? != u64::from(GENERATIONS * stride) {
        return Err(Missing::Form(WHAT.into(), "of four generations"));
    }
    let at = |index: i64| btf.element(WHAT, &pages, index).map(|it| it.offset);
    let first = at(btf.enumerator("LRU_GEN_FILE")? * i64::from(zones))?;
    Ok(Generations {
        youngest: lrugen.of(btf.member(whole, "max_seq")?).offset,
        file: first,
        stride: at(stride.into())? - at(0)?,
    })
}

/// How many memory nodes there may be.
pub(in super::super) fn read_nodes() -> Result<u32, String> {
    let path = std::path::Path::new(NODES_FILE);
    if !path.exists() {
        // A kernel without NUMA.
        return Ok(1);
    }
    let text = read_once(path, 4096).map_err(|why| format!("read {NODES_FILE}: {}", InWords(why)))?;
    parse_nodes(&text)
}

/// A list of numbers and ranges in ascending order: `0`, `0-3`, `0,2-3`.
fn parse_nodes(text: &[u8]) -> Result<u32, String> {
    let text = String::from_utf8_lossy(text);
    let last = text.trim().rsplit([',', '-']).next().unwrap_or_default();
    match last.parse::<u32>() {
        Ok(last) if last < MAX_NODES => Ok(last + 1),
        Ok(last) => Err(format!("memory node {last} is beyond the {MAX_NODES} that are summed up")),
        Err(_) => Err(format!("{NODES_FILE} is `{}`", text.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::bpf::btf::tests::Blob;
    use crate::source::bpf::offsets::WANTED;

    /// A kernel with the iterator; with so many sizes of lists.
    fn kernel(sizes: u32) -> Blob {
        kernel_with(|blob, long| (blob.array(long, sizes), None))
    }

    /// One with these types of `lru_zone_size` and `lrugen`.
    fn kernel_with(types: impl FnOnce(&mut Blob, u32) -> (u32, Option<u32>)) -> Blob {
        kernel_of(5, types)
    }

    /// One with so many lists of pages in each zone.
    fn kernel_of(lists: i32, types: impl FnOnce(&mut Blob, u32) -> (u32, Option<u32>)) -> Blob {
        kernel_where(lists, 160, types)
    }

    /// One whose page counters have their limit there.
    fn kernel_where(lists: i32, max: u32, types: impl FnOnce(&mut Blob, u32) -> (u32, Option<u32>)) -> Blob {
        let mut blob = Blob::new();
        blob.enumeration(&[("memory_cgrp_id", 4)]);
        blob.enumeration(&[("LRU_INACTIVE_FILE", 2), ("NR_LRU_LISTS", lists)]);
        let long = blob.int("long", 8);
        blob.enumeration(&[("CSS_ONLINE", 2), ("CSS_DYING", 16)]);
        let css = blob.structure("cgroup_subsys_state", 208, &[("flags", long, 76), ("serial_nr", long, 80)]);
        blob.structure("cgroup_root", 6000, &[("kf_root", long, 0)]);
        blob.structure("kernfs_root", 248, &[("last_id_lowbits", long, 44)]);
        let css = blob.pointer(css);
        let controllers = blob.array(css, 14);
        let members = [("subsys", controllers, 256), ("nr_dying_descendants", long, 244)];
        let cgroup = blob.structure("cgroup", 2000, &members);
        let cgroup = blob.pointer(cgroup);
        blob.structure("bpf_iter__cgroup", 16, &[("meta", long, 0), ("cgroup", cgroup, 8)]);
        blob.structure("bpf_iter_meta", 24, &[("session_id", long, 8), ("seq_num", long, 16)]);
        blob.structure("page_counter", 192, &[("usage", long, 0), ("failcnt", long, 8), ("max", long, max)]);
        let (sizes, lrugen) = types(&mut blob, long);
        let mut members = vec![("lru_zone_size", sizes, 256)];
        if let Some(lrugen) = lrugen {
            blob.enumeration(&[("LRU_GEN_ANON", 0), ("LRU_GEN_FILE", 1)]);
            let lruvec = blob.structure("lruvec", 1560, &[("lrugen", lrugen, 136)]);
            members.push(("lruvec", lruvec, 1024));
        }
        let node = blob.structure("mem_cgroup_per_node", 3000, &members);
        let node = blob.pointer(node);
        let nodes = blob.array(node, 0);
        blob.structure("mem_cgroup", 2176, &[("memory", long, 256), ("nodeinfo", nodes, 2128)]);
        blob
    }

    fn resolved(blob: &Blob, nodes: Result<u32, String>) -> Result<UsageFacts, String> {
        resolve(&Btf::parse(&blob.bytes(), &WANTED).unwrap(), nodes)
    }

    #[test]
    fn everything_is_found() {
        let found = resolved(&kernel(25), Ok(2)).unwrap();
        let expected = UsageSetup {
            meta_session: 8,
            meta_number: 16,
            cgroup_memory: 256 + 4 * size_of::<usize>() as u32,
            cgroup_dying: 244,
            counter_failures: 8,
            root_nodes: 0,
            nodes_last: 44,
            memcg_nodes: 2128,
            node_inactive_file: 256 + 2 * 8,
            zone_stride: 5 * 8,
            zones: 5,
            nodes: 2,
            again_rows: 32,
            ..UsageSetup::NONE
        };
        assert_eq!(found, UsageFacts { setup: expected, no_page_cache: None, no_again: None });
    }

    #[test]
    fn arrays_of_arrays_are_read_as_flat_ones_are() {
        let flat = |blob: &mut Blob, long, sizes: &[u32]| blob.array(long, sizes.iter().product());
        let deep =
            |blob: &mut Blob, long, sizes: &[u32]| sizes.iter().fold(long, |of, len| blob.array(of, *len));
        let kernel = |array: fn(&mut Blob, u32, &[u32]) -> u32, generations: u32| {
            let blob = kernel_with(|blob, long| {
                let sizes = array(blob, long, &[5, 5]);
                let pages = array(blob, long, &[5, 2, generations]);
                let members = [("max_seq", long, 0), ("nr_pages", pages, 696)];
                (sizes, Some(blob.structure("lru_gen_folio", 1344, &members)))
            });
            resolved(&blob, Ok(1)).unwrap()
        };
        let found = kernel(flat, 4);
        assert_eq!(found, kernel(deep, 4));
        let UsageSetup { node_inactive_file, zone_stride, zones, .. } = found.setup;
        assert_eq!((node_inactive_file, zone_stride, zones), (256 + 2 * 8, 5 * 8, 5));
        let UsageSetup { generation, generation_file, generation_stride, .. } = found.setup;
        let lrugen = 1024 + 136;
        assert_eq!(
            (generation, generation_file, generation_stride),
            (lrugen, lrugen + 696 + 5 * 8, 2 * 5 * 8)
        );
        let why = kernel(deep, 5).no_page_cache.unwrap();
        assert_eq!(why, "this kernel's lrugen.nr_pages is not of four generations");
    }

    #[test]
    fn without_the_lists_usages_are_told_alone() {
        let found = resolved(&kernel(25), Err("many nodes".into())).unwrap();
        assert_eq!((found.setup.zones, found.no_page_cache.as_deref()), (0, Some("many nodes")));
        let found = resolved(&kernel(2), Ok(1)).unwrap();
        let why = "this kernel's mem_cgroup_per_node.lru_zone_size is not long enough";
        assert_eq!((found.setup.zones, found.no_page_cache.as_deref()), (0, Some(why)));
        let found = resolved(&kernel(500), Ok(1)).unwrap();
        assert!(found.no_page_cache.is_some(), "a form that is not known");
        let more = kernel_of(6, |blob, long| (blob.array(long, 30), None));
        let why = "this kernel's mem_cgroup_per_node.lru_zone_size is not of five lists at most";
        assert_eq!(resolved(&more, Ok(1)).unwrap().no_page_cache.as_deref(), Some(why));
    }

    #[test]
    fn what_lies_too_far_apart_has_the_tree_walked_each_time() {
        let kernel = |max| kernel_where(5, max, |blob, long| (blob.array(long, 25), None));
        let fits = SPAN_BYTES - 256 - 8 + 72;
        assert_eq!(resolved(&kernel(fits), Ok(1)).unwrap().no_again, None);
        let found = resolved(&kernel(fits + 8), Ok(1)).unwrap();
        let why = "this kernel's mem_cgroup is not of members that lie close together";
        assert_eq!((found.no_again.as_deref(), found.setup.root_nodes), (Some(why), ABSENT));
        assert_eq!(found.no_page_cache, None, "that is another matter");
    }

    #[test]
    fn a_kernel_without_the_iterator_is_a_reason() {
        let why = resolved(&Blob::new(), Ok(1)).unwrap_err();
        assert_eq!(why, "this kernel has no struct bpf_iter__cgroup");
    }

    #[test]
    fn memory_nodes_are_counted_by_the_last() {
        for (text, nodes) in [("0\n", 1), ("0-3\n", 4), ("0,2-3\n", 4), ("0,7", 8), ("0-15", 16)] {
            assert_eq!(parse_nodes(text.as_bytes()), Ok(nodes), "{text}");
        }
        for text in ["", "\n", "x", "0-", "0-1023", "0-99999999999", "\u{0}\u{1}"] {
            assert!(parse_nodes(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
