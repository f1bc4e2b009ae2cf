//! The sources on the running kernel: real cgroups, real processes, real values.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod churn;
mod machine;
mod namespace;
mod threshold;
mod trigger;

use std::path::Path;
use std::time::Duration;

use eviction_node::cgroup::hierarchy::{Hierarchies, Host};
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::cgroup::sampler::{Sampler, max_descriptors};
use tests::cgroup::Subtree;
use tests::node::MIB;
use tests::process::HANG;

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(HANG, test).await.expect("hangs") })
}

/// Returns whether nothing is reported for 200 ms.
async fn is_quiet(reported: impl Future) -> bool {
    tokio::time::timeout(Duration::from_millis(200), reported).await.is_err()
}

fn root(cgroup_root: &Path) -> NodeRoot {
    let hierarchies = Hierarchies::discover(&Host::default()).unwrap();
    NodeRoot::resolve(&hierarchies, cgroup_root).unwrap()
}

fn sampler(subtree: &Subtree) -> Sampler {
    Sampler::new(root(&subtree.path()), Path::new("/proc"), max_descriptors(), |_| false).unwrap()
}
