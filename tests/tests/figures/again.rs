//! Looks at all groups that spare the walk through the kernel's tree.

use std::time::{Duration, Instant};

use eviction_agent::source::bpf::iter::Looked;
use eviction_agent::source::bpf::load::load_on;
use eviction_agent::source::bpf::{GroupUsage, LoadOptions, Usages, probe};
use eviction_agent::source::cgroup::sampler::Sampler;
use eviction_agent::source::clock::now_ns;
use tests::cgroup::{Driver, Qos, Subtree, container_id, pod_uid};
use tests::workload::Workload;

use crate::glance::{folder, glance_until, id, look, open_files, row, two, usages};
use crate::{MIB, cache, sampler, workload};

/// Once more; whether that needed a walk through the tree.
fn look_again(usages: &mut Usages) -> (Vec<GroupUsage>, bool) {
    let mut rows = Vec::new();
    let Looked { left_out, walked } = usages.read(&mut rows).unwrap();
    assert_eq!(left_out, 0);
    (rows, walked)
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
    // Whoever else makes cgroups in the hierarchy has it walked as well.
    let mut looks = (0..100).map(|_| look_again(&mut usages));
    let (rows, _) = looks.find(|(_, walked)| !walked).expect("nothing came or went");
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
        if round % 2 == 0 {
            group = subtree.group(format!("g{round}")).unwrap();
        }
        let (rows, walked) = look_again(&mut usages);
        assert!(walked, "round {round}: {rows:?}");
        assert!(rows.iter().all(|row| row.id != id), "round {round}: {rows:?}");
        if round % 2 == 1 {
            group = subtree.group(format!("g{round}")).unwrap();
        }
    }
    subtree.remove().unwrap();
}

/// How many there are, with those that are removed and not yet gone: of the subtree, or of the machine where the
/// kernel tells no less.
fn memory_groups(subtree: &Subtree) -> u64 {
    let number = |text: &str| text.parse::<u64>().unwrap();
    if let Ok(text) = std::fs::read_to_string(folder(subtree.root()).join("cgroup.stat")) {
        let field = |name| {
            text.lines().find_map(|line| line.strip_prefix(name)).map_or(0, |rest| number(rest.trim()))
        };
        return field("nr_descendants ") + field("nr_dying_descendants ");
    }
    let text = std::fs::read_to_string("/proc/cgroups").unwrap();
    let memory = text.lines().find(|line| line.starts_with("memory\t")).unwrap();
    number(memory.split('\t').nth(2).unwrap())
}

/// No group was made since, and the count of removed ones is what it was: only what is at its address tells.
#[test]
fn a_group_that_is_gone_for_good_is_noticed_by_its_place_alone() {
    let subtree = Subtree::new("glance").unwrap();
    let mut usages = usages!(&subtree, 4096);
    for round in 0..10 {
        let group = subtree.group(format!("g{round}")).unwrap();
        assert_eq!(look(&mut usages).len(), 2);
        let there = memory_groups(&subtree);
        group.destroy().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while memory_groups(&subtree) >= there && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (rows, walked) = look_again(&mut usages);
        assert!(walked && rows.len() == 1, "round {round}: {rows:?}");
    }
    subtree.remove().unwrap();
}

/// However many memory nodes there are: the programs are loaded, which the kernel refuses where there is too much to do.
#[test]
fn a_machine_of_many_memory_nodes_is_looked_at_as_well() {
    let subtree = Subtree::new("glance").unwrap();
    let mut facts = probe::facts();
    if facts.lockdown == probe::Lockdown::Confidentiality {
        tests::skip!("lockdown=confidentiality withholds what the iterator reads");
    }
    let Some(told) = facts.btf.as_mut().ok().and_then(|btf| btf.usages.as_mut().ok()) else {
        tests::skip!("no iterator");
    };
    // Those that are not there are read as whatever is behind the others.
    told.setup = told.setup.on_nodes(eviction_common::MAX_NODES);
    let options = LoadOptions { usages_of: Some(folder(subtree.root())), ..LoadOptions::default() };
    let loaded = load_on(&facts, &options).map_err(|refused| refused.why).unwrap();
    assert!(loaded.usages.is_some(), "{:?}", loaded.missing);
    let mut sources = loaded.kernel.sources().iter();
    let info = sources.find(|info| info.source == "cgroup usage").unwrap();
    assert!(!info.reason.contains("walked each time"), "{}", info.reason);
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
    // A kernel that hands pages of a removed group on to its parent may have done so: then it is on the parent's list.
    let left = row(&rows, &pod);
    assert!(left.usage >= 30 * MIB, "{left:?}");
    assert!(left.inactive_file.is_none_or(|pages| pages >= 30 * MIB), "{left:?}");
    let at_last = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        !look_again(&mut usages).1
    });
    assert!(at_last, "what is known to be there does not have the tree walked each time");
    drop(kept);
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
    let comes_without_a_walk =
        |sampler: &mut Sampler| glance_until(sampler, |glances| glances.came > 0 && glances.walked == 0);
    comes_without_a_walk(&mut sampler);
    let second = pod.group(container_id(2)).unwrap();
    sampler.refresh(|_| false).unwrap();
    let mut hold = Workload::run(workload(), &second, ["hold", "--size", "16M"]).unwrap();
    hold.wait_event("holding").unwrap();
    comes_without_a_walk(&mut sampler);
    let usage = sampler.group(id(&folder(&second))).unwrap().usage;
    assert!(usage.known().unwrap() >= 16 * MIB, "the new one is among them: {usage:?}");
    drop(hold);
    second.destroy().unwrap();
    sampler.refresh(|_| false).unwrap();
    comes_without_a_walk(&mut sampler);
    subtree.remove().unwrap();
}

#[test]
fn groups_that_come_and_go_are_survived() {
    let subtree = Subtree::new("glance").unwrap();
    let mut usages = usages!(&subtree, 4096);
    assert_eq!(look(&mut usages).len(), 1);
    let group = subtree.group("a").unwrap();
    let (rows, walked) = look_again(&mut usages);
    assert!(rows.len() == 2 && walked, "{rows:?}");
    group.destroy().unwrap();
    let (rows, walked) = look_again(&mut usages);
    assert!(rows.len() == 1 && walked, "{rows:?}");
    assert_eq!(look(&mut usages).len(), 1);
    subtree.remove().unwrap();
    let mut rows = Vec::new();
    let gone = usages.read(&mut rows);
    assert!(gone.is_err() || rows.is_empty(), "{gone:?} {rows:?}");
}
