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
fn usages(subtree: &Subtree, cgroups: u32) -> Result<Usages, String> {
    let folder = folder(subtree.root());
    let options = LoadOptions { usages_of: Some(folder), cgroups: Some(cgroups), ..LoadOptions::default() };
    let loaded = load(&options).map_err(|refused| refused.why)?;
    let why =
        loaded.missing.iter().find(|info| info.source == "cgroup usage").map(|info| info.reason.clone());
    loaded.usages.ok_or_else(|| why.unwrap_or_default())
}

fn folder(group: &Group) -> std::path::PathBuf {
    group.dir(Hierarchy::Memory).or_else(|| group.dir(Hierarchy::Unified)).unwrap()
}

fn id(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).unwrap().ino()
}

/// Opens what a process has open, so that its pages outlive the process and its group.
fn open_files(process: &Workload) -> Vec<std::fs::File> {
    let pid = process.pid();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    open.filter_map(|entry| std::fs::File::open(entry.unwrap().path()).ok()).collect()
}

/// Ends the test where there is no iterator.
macro_rules! usages {
    ($subtree:expr, $cgroups:expr) => {
        match usages($subtree, $cgroups) {
            Ok(usages) => usages,
            Err(why) => tests::skip!("{why}"),
        }
    };
}

fn look(usages: &mut Usages) -> Vec<GroupUsage> {
    let mut rows = Vec::new();
    assert_eq!(usages.walk(&mut rows).unwrap(), Looked { left_out: 0, walked: true });
    rows
}

/// Once more; whether that needed a walk through the tree.
fn look_again(usages: &mut Usages) -> (Vec<GroupUsage>, bool) {
    let mut rows = Vec::new();
    let Looked { left_out, walked } = usages.again(&mut rows).unwrap();
    assert_eq!(left_out, 0);
    (rows, walked)
}

fn row(rows: &[GroupUsage], group: &Group) -> GroupUsage {
    let id = id(&folder(group));
    *rows.iter().find(|row| row.id == id).unwrap()
}

/// Two containers of two pods, one with anonymous memory and the other with page cache.
fn two(subtree: &Subtree) -> (Group, Group, [Workload; 2]) {
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

/// The kernel's tree is not walked for it, and nothing in it is of the walk before.
#[test]
fn figures_are_of_now_when_they_are_looked_at_again() {
    let subtree = Subtree::new("glance").unwrap();
    let (one, two, running) = two(&subtree);
    let mut usages = usages!(&subtree, 4096);
    let before = look(&mut usages);
    one.limit_memory(512 * MIB).unwrap();
    let mut hold = Workload::run(workload(), &one, ["hold", "--size", "160M"]).unwrap();
    hold.wait_event("holding").unwrap();
    let cache = cache(&two, "128M");
    let began = now_ns();
    let (rows, walked) = look_again(&mut usages);
    assert!(!walked, "nothing came or went");
    let ids = |rows: &[GroupUsage]| rows.iter().map(|row| row.id).collect::<Vec<_>>();
    assert_eq!(ids(&rows), ids(&before), "the same groups in the same order");
    assert!(rows.iter().all(|row| (began..=now_ns()).contains(&row.at_ns)), "{rows:?}");
    for group in [subtree.root(), &one, &two] {
        let row = row(&rows, group);
        assert!(row.usage.abs_diff(group.memory().unwrap()) <= MIB, "{row:?}");
        let stat = group.memory_stat("inactive_file").unwrap();
        let told = row.inactive_file.unwrap();
        assert!(told.abs_diff(stat) <= 2 * MIB, "{told} and not {stat} in {}", group.path().display());
    }
    assert_eq!((row(&before, &one).limit, row(&rows, &one).limit), (None, Some(512 * MIB)));
    assert!(row(&rows, &two).inactive_file.unwrap() >= 120 * MIB, "its page cache is seen");
    drop((running, hold, cache));
    subtree.remove().unwrap();
}

/// Others are made at once where it was, by the kernel's allocator as well: no figure is given of a group that is
/// gone, and none of another one in its place.
#[test]
fn a_group_that_is_gone_is_noticed_whatever_is_where_it_was() {
    let subtree = Subtree::new("glance").unwrap();
    let mut usages = usages!(&subtree, 4096);
    let mut group = subtree.group("g0").unwrap();
    for round in 1..=100 {
        let before = look(&mut usages);
        assert_eq!(before.len(), 2);
        let id = id(&folder(&group));
        group.destroy().unwrap();
        let (rows, walked) = match round % 2 {
            0 => look_again(&mut usages),
            _ => {
                group = subtree.group(format!("g{round}")).unwrap();
                look_again(&mut usages)
            }
        };
        assert!(walked, "round {round}: {rows:?}");
        assert!(rows.iter().all(|row| row.id != id), "round {round}: {rows:?}");
        if round % 2 == 0 {
            group = subtree.group(format!("g{round}")).unwrap();
        }
    }
    subtree.remove().unwrap();
}

/// It came and went between two looks, and its page cache is its parent's now, on no list of those that are known.
#[test]
fn what_a_group_leaves_behind_that_nobody_saw_is_noticed() {
    let subtree = Subtree::new("glance").unwrap();
    let pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &pod_uid(1)).unwrap();
    let mut usages = usages!(&subtree, 4096);
    let before = look(&mut usages);
    let group = pod.group(container_id(1)).unwrap();
    let cache = cache(&group, "32M");
    let kept = open_files(&cache);
    drop(cache);
    group.destroy().unwrap();
    let (rows, walked) = look_again(&mut usages);
    assert!(walked && rows.len() == before.len(), "{rows:?}");
    let left = row(&rows, &pod);
    assert!(left.usage >= 30 * MIB && left.inactive_file.is_none(), "{left:?}");
    let (_, walked) = look_again(&mut usages);
    assert!(!walked, "what is known to be there does not have the tree walked each time");
    drop(kept);
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
    assert_eq!(usages.walk(&mut rows).unwrap().left_out, 7);
    assert_eq!(rows.len(), 4);
    // A sampler takes no part for the whole.
    let mut sampler = sampler(&subtree);
    sampler.glance_by(usages);
    // On a loaded machine it may come late, and is then not looked at.
    let look = |_| {
        sampler.sample_pods(Fresh::All, Tasks::Leave);
        sampler.take_glances()
    };
    let glances = (0..1000).map(look).find(|glances| glances.late == 0).expect("it comes in time at last");
    let walked = glances.walked;
    assert_eq!(glances, Glances { incomplete: 1, walked, ..Glances::default() });
    let root = sampler.tree().groups()[0].id;
    assert!(sampler.group(root).unwrap().working_set.known().is_some());
    subtree.remove().unwrap();
}

#[test]
fn groups_that_come_and_go_are_survived() {
    let subtree = Subtree::new("glance").unwrap();
    let mut usages = usages!(&subtree, 4096);
    assert_eq!(look(&mut usages).len(), 1);
    let group = subtree.group("a").unwrap();
    let (rows, walked) = look_again(&mut usages);
    assert!(rows.len() == 1 && !walked, "who looks again must know what is new: {rows:?}");
    assert_eq!(look(&mut usages).len(), 2);
    group.destroy().unwrap();
    let (rows, walked) = look_again(&mut usages);
    assert!(rows.len() == 1 && walked, "{rows:?}");
    assert_eq!(look(&mut usages).len(), 1);
    subtree.remove().unwrap();
    let mut rows = Vec::new();
    let gone = usages.walk(&mut rows);
    assert!(gone.is_err() || rows.is_empty(), "{gone:?} {rows:?}");
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

#[test]
fn a_sampler_has_the_tree_walked_when_it_is_another() {
    let subtree = Subtree::new("glance").unwrap();
    let pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &pod_uid(1)).unwrap();
    let _first = pod.group(container_id(1)).unwrap();
    let usages = usages!(&subtree, 4096);
    let mut sampler = sampler(&subtree);
    sampler.glance_by(usages);
    let walked = |sampler: &mut Sampler| {
        let look = |_| {
            sampler.sample_pods(Fresh::All, Tasks::Leave);
            sampler.take_glances()
        };
        (0..1000).map(look).find(|glances| glances.came > 0).expect("it comes in time at last").walked
    };
    assert_eq!((walked(&mut sampler), walked(&mut sampler)), (1, 0));
    let second = pod.group(container_id(2)).unwrap();
    assert_eq!(walked(&mut sampler), 0, "nobody told");
    sampler.refresh(|_| false).unwrap();
    assert_eq!((walked(&mut sampler), walked(&mut sampler)), (1, 0));
    sampler.refresh(|_| false).unwrap();
    assert_eq!(walked(&mut sampler), 0, "nothing is another");
    let mut hold = Workload::run(workload(), &second, ["hold", "--size", "16M"]).unwrap();
    hold.wait_event("holding").unwrap();
    assert_eq!(walked(&mut sampler), 0);
    let usage = sampler.group(id(&folder(&second))).unwrap().usage;
    assert!(usage.known().unwrap() >= 16 * MIB, "the new one is among them: {usage:?}");
    drop(hold);
    second.destroy().unwrap();
    assert_eq!((walked(&mut sampler), walked(&mut sampler)), (1, 0));
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
            usages.walk(&mut rows).unwrap();
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
