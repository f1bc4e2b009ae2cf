//! The sources on the running kernel: real groups, real processes, real figures.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod churn;
mod machine;
mod namespace;
mod threshold;

use std::path::Path;

use eviction_agent::source::cgroup::hierarchy::{Hierarchies, Host};
use eviction_agent::source::cgroup::root::NodeRoot;
use eviction_agent::source::cgroup::sampler::{Sampler, SamplerOptions};
use tests::cgroup::Subtree;

const MIB: u64 = 1 << 20;

fn workload() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_workload"))
}

fn root(cgroup_root: &Path) -> NodeRoot {
    let hierarchies = Hierarchies::discover(&Host::default()).unwrap();
    NodeRoot::resolve(&hierarchies, cgroup_root).unwrap()
}

fn sampler(subtree: &Subtree) -> Sampler {
    Sampler::new(root(&subtree.path()), &SamplerOptions::default(), |_| false).unwrap()
}
