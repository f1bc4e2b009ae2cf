//! All groups at a glance: the kernel's iterator says what the files say, and does not stand still.

use std::path::Path;

use eviction_agent::core::reading::Reading;
use eviction_agent::source::bpf::iter::Looked;
use eviction_agent::source::bpf::{GroupUsage, LoadOptions, Usages, load};
use eviction_agent::source::cgroup::glance::Glances;
use eviction_agent::source::cgroup::sample::{Fresh, GroupSample, LevelSample, Tasks};
use eviction_agent::source::cgroup::sampler::Sampler;
use eviction_agent::source::clock::now_ns;
use tests::cgroup::{Driver, Group, Qos, Subtree, container_id, pod_uid};
use tests::mounts::Hierarchy;
use tests::workload::Workload;

use crate::working_set::{TOLERANCE, grow_in_full_cache, node};
use crate::{MIB, cache, sampler, workload};

/// The iterator on a subtree, with room for so many groups; or why there is none.
pub(crate) fn usages_of(subtree: &Subtree, cgroups: u32) -> Result<Usages, String> {
    let folder = folder(subtree.root());
    let options = LoadOptions { usages_of: Some(folder), cgroups: Some(cgroups), ..LoadOptions::default() };
    let loaded = load(&options).map_err(|refused| refused.why)?;
    let why =
        loaded.missing.iter().find(|info| info.source == "cgroup usage").map(|info| info.reason.clone());
    loaded.usages.ok_or_else(|| why.unwrap_or_default())
}

pub(crate) fn folder(group: &Group) -> std::path::PathBuf {
    group.dir(Hierarchy::Memory).or_else(|| group.dir(Hierarchy::Unified)).unwrap()
}

pub(crate) fn id(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).unwrap().ino()
}

/// Opens what a process has open, so that its pages outlive the process and its group.
pub(crate) fn open_files(process: &Workload) -> Vec<std::fs::File> {
    let pid = process.pid();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    open.filter_map(|entry| std::fs::File::open(entry.unwrap().path()).ok()).collect()
}

/// Ends the test where there is no iterator.
macro_rules! usages {
    ($subtree:expr, $cgroups:expr) => {
        match crate::glance::usages_of($subtree, $cgroups) {
            Ok(usages) => usages,
            Err(why) => tests::skip!("{why}"),
        }
    };
}
pub(crate) use usages;

pub(crate) fn look(usages: &mut Usages) -> Vec<GroupUsage> {
    let mut rows = Vec::new();
    assert_eq!(usages.walk(&mut rows).unwrap(), Looked { left_out: 0, walked: true });
    rows
}

pub(crate) fn row(rows: &[GroupUsage], group: &Group) -> GroupUsage {
    let id = id(&folder(group));
    *rows.iter().find(|row| row.id == id).unwrap()
}

/// Has everything sampled until a glance is like that: on a loaded machine it may come late, and is then not looked at.
pub(crate) fn glance_until(sampler: &mut Sampler, is_it: impl Fn(&Glances) -> bool) -> Glances {
    let look = |_| {
        sampler.sample_pods(Fresh::All, Tasks::Leave);
        sampler.take_glances()
    };
    (0..1000).map(look).find(is_it).unwrap_or_else(|| panic!("none came in time"))
}

/// Two containers of two pods, one with anonymous memory and the other with page cache.
pub(crate) fn two(subtree: &Subtree) -> (Group, Group, [Workload; 2]) {
    let container = |n| {
        let pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &pod_uid(n)).unwrap();
        pod.group(container_id(n)).unwrap()
    };
    let (one, two) = (container(1), container(2));
    let mut hold = Workload::run(workload(), &one, ["hold", "--size", "64M"]).unwrap();
    hold.wait_event("holding").unwrap();
    let cache = cache(&two, "64M");
    (one, two, [hold, cache])
}

#[test]
fn figures_are_those_of_the_files() {
    let subtree = Subtree::new("glance").unwrap();
    subtree.root().limit_memory(1024 * MIB).unwrap();
    let (one, two, _running) = two(&subtree);
    let mut usages = usages!(&subtree, 4096);
    let before = now_ns();
    let rows = look(&mut usages);
    for group in [subtree.root(), &one, &two] {
        let row = row(&rows, group);
        assert!(row.usage.abs_diff(group.memory().unwrap()) <= MIB, "{row:?}");
        let stat = group.memory_stat("inactive_file").unwrap();
        let told = row.inactive_file.unwrap();
        assert!(told.abs_diff(stat) <= 2 * MIB, "{told} and not {stat} in {}", group.path().display());
        assert!(row.at_ns >= before && row.at_ns <= now_ns(), "{row:?}");
    }
    assert!(row(&rows, &two).inactive_file.unwrap() >= 60 * MIB, "its page cache is seen");
    assert!(row(&rows, &one).inactive_file.unwrap() <= 2 * MIB, "the other has none");
    assert_eq!(row(&rows, subtree.root()).limit, Some(1024 * MIB));
    assert_eq!(row(&rows, &one).limit, None);
    let order: Vec<_> = [subtree.root(), &one].map(|group| id(&folder(group))).into();
    let at = |id| rows.iter().position(|row| row.id == id).unwrap();
    assert!(at(order[0]) == 0 && at(order[1]) > 0, "each parent before its children");
    drop(_running);
    subtree.remove().unwrap();
}

#[test]
fn a_limit_that_was_met_is_counted() {
    let subtree = Subtree::new("glance").unwrap();
    let group = subtree.group("full").unwrap();
    group.limit_memory(32 * MIB).unwrap();
    let cache = cache(&group, "128M");
    let mut usages = usages!(&subtree, 4096);
    let row = row(&look(&mut usages), &group);
    assert_eq!(row.limit, Some(32 * MIB));
    let folder = folder(&group);
    match std::fs::read_to_string(folder.join("memory.failcnt")) {
        Ok(text) => assert_eq!(row.failures, text.trim().parse::<u64>().unwrap()),
        Err(_) => println!("cgroup v2: {} failures", row.failures),
    }
    drop(cache);
    subtree.remove().unwrap();
}

#[test]
fn twelve_levels_are_seen_to_the_last() {
    let subtree = Subtree::new("glance").unwrap();
    let mut path = std::path::PathBuf::new();
    let mut chain = Vec::new();
    for level in 0..12 {
        path = path.join(format!("level{level}"));
        chain.push(subtree.group(&path).unwrap());
    }
    let deepest = chain.last().unwrap();
    let mut hold = Workload::run(workload(), deepest, ["hold", "--size", "16M"]).unwrap();
    hold.wait_event("holding").unwrap();
    let mut usages = usages!(&subtree, 4096);
    let rows = look(&mut usages);
    assert_eq!(rows.len(), 13);
    for group in &chain {
        assert!(row(&rows, group).usage >= 16 * MIB, "{}", group.path().display());
    }
    drop(hold);
    subtree.remove().unwrap();
}

#[test]
fn more_groups_than_there_is_room_for_are_counted() {
    let subtree = Subtree::new("glance").unwrap();
    for n in 0..10 {
        subtree.group(format!("g{n}")).unwrap();
    }
    let mut usages = usages!(&subtree, 4);
    let mut rows = Vec::new();
    assert_eq!(usages.read(&mut rows).unwrap().left_out, 7);
    assert_eq!(rows.len(), 4);
    // A sampler takes no part for the whole.
    let mut sampler = sampler(&subtree);
    sampler.glance_by(usages);
    let glances = glance_until(&mut sampler, |glances| glances.late == 0);
    assert_eq!(glances, Glances { incomplete: 1, ..Glances::default() });
    let root = sampler.tree().groups()[0].id;
    assert!(sampler.group(root).unwrap().working_set.known().is_some());
    subtree.remove().unwrap();
}

/// What a removed group leaves behind is in its parent's memory.stat alone.
#[test]
fn page_cache_of_removed_groups_is_not_taken_for_working_set() {
    let subtree = Subtree::new("glance").unwrap();
    let pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &pod_uid(1)).unwrap();
    let first = pod.group(container_id(1)).unwrap();
    let _second = pod.group(container_id(2)).unwrap();
    let cache = cache(&first, "64M");
    let mut sampler = sampler(&subtree);
    let usages = usages!(&subtree, 4096);
    sampler.glance_by(usages);
    let kept = open_files(&cache);
    drop(cache);
    first.destroy().unwrap();
    sampler.refresh(|_| false).unwrap();
    let pods = sampler.sample_pods(Fresh::All, Tasks::Leave);
    let memory = pods[0].memory;
    assert!(memory.usage.known().unwrap() >= 60 * MIB, "the pages stay charged to the pod: {memory:?}");
    assert!(memory.working_set.known().unwrap() <= 8 * MIB, "and are no working set: {memory:?}");
    drop(kept);
    subtree.remove().unwrap();
}

#[test]
fn a_sampler_reads_few_files_beside_it() {
    let subtree = Subtree::new("glance").unwrap();
    let (one, two, running) = two(&subtree);
    let usages = usages!(&subtree, 4096);
    let mut plain = sampler(&subtree);
    let mut glancing = sampler(&subtree);
    glancing.glance_by(usages);
    glancing.sample_pods(Fresh::All, Tasks::Leave);
    plain.sample_pods(Fresh::All, Tasks::Leave);
    for group in [&one, &two] {
        let id = id(&folder(group));
        let (ours, theirs) = (glancing.group(id).unwrap(), plain.group(id).unwrap());
        let set = |sample: GroupSample| sample.working_set.known().unwrap();
        assert!(set(ours).abs_diff(set(theirs)) <= 2 * MIB, "{ours:?} {theirs:?}");
        assert!(ours.stat.anon.known().is_some(), "what only memory.stat tells is there as well");
    }
    let id = id(&folder(&one));
    let mut one_more = || {
        let before = glancing.group(id).unwrap();
        glancing.sample_pods(Fresh::All, Tasks::Leave);
        (before, glancing.group(id).unwrap(), glancing.take_glances())
    };
    // A kernel that does not let it through in time is no error, and on a loaded machine happens. The first one that
    // comes had the tree walked.
    let mut seen = (0..1000).map(|_| one_more()).filter(|(_, _, glances)| glances.late == 0);
    let seen = seen.find(|(_, _, glances)| glances.walked == 0);
    let (before, after, glances) = seen.expect("it comes in time at last");
    assert!(glances.came > 0 && (glances.incomplete, glances.failed) == (0, 0), "{glances:?}");
    assert_eq!(after.stat_at_ns, before.stat_at_ns, "nothing moved: no file is read again");
    assert!(after.inactive_file_at_ns > before.inactive_file_at_ns, "and still its page cache is of now");
    assert!(after.usage_at_ns > before.usage_at_ns);
    drop(running);
    subtree.remove().unwrap();
}

/// Where the parent's memory.stat may stand still, the sizes of the lists do not.
#[test]
fn a_glance_follows_the_growth_in_a_full_cache() {
    for rate in ["100M", "1G"] {
        let (subtree, one, two) = node("glance");
        let root = id(&folder(subtree.root()));
        let mut usages = usages!(&subtree, 4096);
        let mut rows = Vec::new();
        let sample = |_: &mut Sampler| {
            usages.read(&mut rows).unwrap();
            let row = rows.iter().find(|row| row.id == root).unwrap();
            let inactive_file = row.inactive_file.map_or(Reading::Known(0), Reading::Known);
            let working_set = Reading::Known(row.usage.saturating_sub(row.inactive_file.unwrap()));
            LevelSample {
                at_ns: row.at_ns,
                usage: Reading::Known(row.usage),
                inactive_file,
                working_set,
                stat_reads: 0,
                left_out: 0,
                difference: 0,
            }
        };
        let (behind, ahead) = grow_in_full_cache(&subtree, &one, &two, rate, sample);
        println!("rate {rate}: {behind} bytes behind, {ahead} ahead");
        assert!(behind <= TOLERANCE && ahead <= TOLERANCE, "{behind} bytes behind, {ahead} ahead");
        subtree.remove().unwrap();
    }
}
