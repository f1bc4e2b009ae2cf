//! The whole machine, and what it offers.

use std::path::Path;
use std::time::Duration;

use eviction_bpf::preflight::{FactSubject, probe};
use eviction_node::cgroup::hierarchy::{Hierarchies, Host};
use eviction_node::cgroup::sampler::{Sampler, SamplerOptions};
use eviction_node::proc::meminfo::parse_meminfo;
use eviction_node::proc::pressure::parse_pressure;

use crate::MIB;
use crate::root;

#[test]
fn the_working_set_is_the_kubelets_but_never_stale() {
    let mut sampler = Sampler::new(root(Path::new("/")), &SamplerOptions::default(), |_| false).unwrap();
    let (mut usage, mut working_set) = (u64::MAX, u64::MAX);
    // The kubelet's own figure may be old, and the machine is at work between two reads: the
    // nearest pair counts.
    for _ in 0..60 {
        let kubelet = sampler.sample_as_kubelet();
        let ours = sampler.sample_node(&[]).level;
        let apart = |a: Option<u64>, b: Option<u64>| a.unwrap().abs_diff(b.unwrap());
        usage = usage.min(apart(ours.usage.known(), kubelet.usage.known()));
        working_set = working_set.min(apart(ours.working_set.known(), kubelet.working_set.known()));
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("usage {} KiB apart, working set {} KiB apart", usage >> 10, working_set >> 10);
    assert!(usage < 8 * MIB, "{usage}");
    assert!(working_set < 32 * MIB, "{working_set}");
}

#[test]
fn this_machine_is_probed() {
    let host = Host::default();
    let hierarchies = Hierarchies::discover(&host).unwrap();
    let root = root(Path::new("/"));
    assert!(root.whole_machine && !root.partial, "{root:?}");
    let facts = probe(&host, &hierarchies, Some(&root));
    for fact in &facts {
        println!("{}: {} ({})", fact.subject.name(), fact.found, fact.usable);
        assert!(fact.usable || !fact.required, "{fact:?}");
    }
    let usable = |subject| facts.iter().any(|fact| fact.subject == subject && fact.usable);
    assert!(
        usable(FactSubject::MemoryController) && usable(FactSubject::Meminfo) && usable(FactSubject::Tasks)
    );
}

#[test]
fn the_kernels_texts_are_understood() {
    let read = |path: &str| std::fs::read(path).unwrap();
    let meminfo = parse_meminfo(&read("/proc/meminfo"));
    assert!(meminfo.total.known().unwrap() > meminfo.usage.known().unwrap());
    assert!(meminfo.available.known().is_some() && meminfo.shmem.known().is_some());
    match std::fs::read("/proc/pressure/memory") {
        Ok(text) => {
            let pressure = parse_pressure(&text);
            assert!(pressure.some.total_us.known().is_some() && pressure.full.avg300.known().is_some());
        }
        Err(error) => tests::skip!("no pressure stall information: {error}"),
    }
}
