//! How fresh the sampled values are on the running kernel: real cgroups, real processes. Runs in guests as well.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod stale_stat;
mod working_set;

use std::path::Path;

use eviction_node::cgroup::hierarchy::{Hierarchies, Host};
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::cgroup::sampler::{Sampler, max_descriptors};
use tests::cgroup::{Group, Subtree};
use tests::node::MIB;
use tests::workload::Workload;

/// Starts a process that fills the page cache of a cgroup, and waits until it has done so.
fn cache(group: &Group, size: &str) -> Workload {
    let folder = tests::folder::on_disk().unwrap();
    let arguments = ["cache", "--size", size, "--dir", folder.to_str().unwrap()];
    let mut cache = Workload::run(group, arguments).unwrap();
    cache.wait_event("cached").unwrap();
    cache
}

fn sampler(subtree: &Subtree) -> Sampler {
    let hierarchies = Hierarchies::discover(&Host::default()).unwrap();
    let root = NodeRoot::resolve(&hierarchies, &subtree.path()).unwrap();
    Sampler::new(root, Path::new("/proc"), max_descriptors(), |_| false).unwrap()
}
