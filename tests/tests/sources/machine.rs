//! Samples of the whole machine, and the probes of its features.

use std::path::Path;
use std::time::Duration;

use eviction_bpf::preflight::probe;
use eviction_core::policy::preferences::PsiKind;
use eviction_node::cgroup::files::Version;
use eviction_node::cgroup::hierarchy::{Hierarchies, Host};
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::cgroup::sampler::{Sampler, max_descriptors};
use eviction_node::proc::meminfo::parse_meminfo;
use eviction_node::psi::parse_pressure;

use crate::MIB;
use crate::root;

/// Returns usage and working set of the machine as the kubelet reads them; the root of cgroup v2 has no usage of its
/// own.
fn as_kubelet(root: &NodeRoot) -> (u64, u64) {
    let stat = std::fs::read_to_string(root.memory.join("memory.stat")).unwrap();
    let value = |key: &str| -> u64 {
        let line = stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        line.unwrap().parse().unwrap()
    };
    let (usage, inactive_file) = match root.version {
        Version::V1 => {
            let usage = std::fs::read_to_string(root.memory.join("memory.usage_in_bytes")).unwrap();
            (usage.trim().parse().unwrap(), value("total_inactive_file"))
        }
        Version::V2 => (value("anon") + value("file"), value("inactive_file")),
    };
    (usage, usage.saturating_sub(inactive_file))
}

#[test]
fn the_working_set_of_the_machine_is_close_to_the_kubelets_value() {
    let mut sampler =
        Sampler::new(root(Path::new("/")), Path::new("/proc"), max_descriptors(), |_| false).unwrap();
    let (mut usage, mut working_set) = (u64::MAX, u64::MAX);
    // The kubelet's own value may be old, and the machine works between two reads: the nearest pair counts.
    for _ in 0..60 {
        let kubelet = as_kubelet(sampler.root());
        let ours = sampler.sample_node(&[]).memory.known().unwrap();
        usage = usage.min(ours.usage.abs_diff(kubelet.0));
        working_set = working_set.min(ours.working_set.abs_diff(kubelet.1));
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("usage {} KiB apart, working set {} KiB apart", usage >> 10, working_set >> 10);
    assert!(usage < 8 * MIB, "{usage}");
    assert!(working_set < 32 * MIB, "{working_set}");
}

#[test]
fn the_features_of_this_machine_are_probed() {
    let host = Host::default();
    let hierarchies = Hierarchies::discover(&host).unwrap();
    let root = root(Path::new("/"));
    assert!(root.whole_machine && !root.partial, "{root:?}");
    let facts = probe(&host, &hierarchies, Some(&root));
    for fact in &facts {
        println!("{}: {} ({})", fact.name, fact.found, fact.usable);
        assert!(fact.usable || !fact.required, "{fact:?}");
    }
    let usable = |subject| facts.iter().any(|fact| fact.subject == subject && fact.usable);
    assert!(usable("memory-controller") && usable("meminfo") && usable("tasks"));
}

#[test]
fn meminfo_and_pressure_files_of_this_kernel_are_parsed() {
    let read = |path: &str| std::fs::read(path).unwrap();
    let meminfo = parse_meminfo(&read("/proc/meminfo"));
    assert!(meminfo.capacity.known().unwrap() > meminfo.memory.known().unwrap().usage);
    assert!(meminfo.detail.mem_available.known().is_some() && meminfo.detail.active_file.known().is_some());
    match std::fs::read("/proc/pressure/memory") {
        Ok(text) => {
            assert!(parse_pressure(&text, PsiKind::Some).total_us.known().is_some());
            assert!(parse_pressure(&text, PsiKind::Full).avg10.known().is_some());
        }
        Err(error) => tests::skip!("no pressure stall information: {error}"),
    }
}
