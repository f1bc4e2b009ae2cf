//! How large the ring is made, and the maps: by how many cgroups there are.
#![forbid(unsafe_code)]

use std::{fs, path::Path};

/// Size of the ring, bytes: room for 5,000 cgroups that are created or removed before anybody reads. What does
/// not fit is counted, and looked for. A ring is mapped twice, and counts as the agent's memory twice.
pub const RING_BYTES: u32 = 256 << 10;

/// Entries of maps by cgroup. Half of them are left for cgroups that come.
const CGROUPS_LEAST: u32 = 4096;
const CGROUPS_MOST: u32 = 1 << 17;

const LEVELS_LEAST: u32 = 1024;
const LEVELS_MOST: u32 = 8192;

/// How many cgroups the maps have room for.
pub fn map_entries(cgroups: u32) -> u32 {
    cgroups.saturating_mul(2).clamp(CGROUPS_LEAST, CGROUPS_MOST)
}

/// On how many of them a level can be armed. Not all have a limit; the agent often starts before the
/// pods do, of which there are 110 by default, each with two or three groups that may have one.
pub fn levels(cgroups: u32) -> u32 {
    cgroups.clamp(LEVELS_LEAST, LEVELS_MOST)
}

/// How many memory cgroups there are, as /proc/cgroups has it, else the root of cgroup version 2: kernels without
/// memory's version 1 (6.12 on, CONFIG_MEMCG_V1) leave that line out. 0 if neither says it.
pub(super) fn read_cgroups() -> u32 {
    let read = |path: &str, parse: fn(&str) -> Option<u32>| parse(&fs::read_to_string(Path::new(path)).ok()?);
    read("/proc/cgroups", parse_cgroups)
        .or_else(|| read("/sys/fs/cgroup/cgroup.stat", parse_stat))
        .unwrap_or(0)
}

/// `nr_descendants` and `nr_dying_descendants`, and the root.
fn parse_stat(text: &str) -> Option<u32> {
    let value = |key: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(name, _)| *name == key)?.1.trim().parse::<u32>().ok()
    };
    Some(value("nr_descendants")?.saturating_add(value("nr_dying_descendants")?).saturating_add(1))
}

/// The third word of the memory controller's line.
fn parse_cgroups(text: &str) -> Option<u32> {
    let words = text.lines().map(str::split_whitespace);
    let mut memory = words.filter_map(|mut words| (words.next() == Some("memory")).then_some(words));
    memory.next()?.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_have_room_for_twice_as_many_cgroups_within_bounds() {
        assert_eq!([0, 450, 3000, 50_000, u32::MAX].map(map_entries), [4096, 4096, 6000, 100_000, 131_072]);
    }

    #[test]
    fn levels_can_be_armed_on_as_many_cgroups_as_there_are_within_bounds() {
        assert_eq!([0, 450, 3000, u32::MAX].map(levels), [1024, 1024, 3000, 8192]);
    }

    #[test]
    fn where_that_line_is_missing_the_roots_own_count_says_it() {
        let text = "nr_descendants 330\nnr_subsys_memory 300\nnr_dying_descendants 12\n";
        assert_eq!(parse_stat(text), Some(343));
        for odd in ["", "nr_descendants 3", "nr_descendants many\nnr_dying_descendants 1"] {
            assert_eq!(parse_stat(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn the_number_of_cgroups_is_the_third_word_of_its_line() {
        let text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t2\t1\nmemory\t4\t79\t1\n";
        assert_eq!(parse_cgroups(text), Some(79));
        for odd in ["", "memory", "memory\t4", "memory\t4\tmany\t1", "memory\t4\t-1\t1", "memory_x\t4\t79"] {
            assert_eq!(parse_cgroups(odd), None, "{odd:?}");
        }
    }
}
