//! More cgroups than there are descriptors for, and than any node has.

use std::fs;
use std::path::PathBuf;

use tests::mounts::Hierarchy;
use tests::node::{MIB, Node};
use tests::skip;

use crate::fixture::{Fixture, node_of};

const GROUPS: usize = 50_000;
const EACH: usize = 100;

/// Cgroups in the hierarchy of the memory controller alone, which are removed before the node.
struct ManyCgroups(Vec<PathBuf>);

impl ManyCgroups {
    fn new(node: &Node) -> Self {
        // In a folder, so that the node itself has few.
        let parent = node.root().file(Hierarchy::Memory, ("crowd", "crowd")).unwrap();
        fs::create_dir(&parent).unwrap();
        let mut cgroups = Self(vec![parent.clone()]);
        for row in 0..GROUPS / EACH {
            let row = parent.join(format!("row-{row}"));
            fs::create_dir(&row).unwrap();
            cgroups.0.push(row.clone());
            for child in 1..EACH {
                let child = row.join(format!("seat-{child}"));
                fs::create_dir(&child).unwrap();
                cgroups.0.push(child);
            }
        }
        cgroups
    }
}

impl Drop for ManyCgroups {
    fn drop(&mut self) {
        for group in self.0.iter().rev() {
            // The removal of the node reports what is left.
            drop(fs::remove_dir(group));
        }
    }
}

#[test]
fn a_hog_is_evicted_among_fifty_thousand_cgroups() {
    let Some(node) = node_of("crowd", 1024 * MIB) else { skip!("no cgroups can be made here") };
    let cgroups = ManyCgroups::new(&node);
    let fixture = Fixture::start(node);
    assert_eq!(fixture.metric("eviction_agent_cgroups_unreadable"), 0.0);
    fixture.assert_hog_is_evicted("1000M", "1G");
    // All of them are removed at once, and the agent continues.
    drop(cgroups);
    fixture.until("the loop turns", || fixture.get("/healthz").is_some_and(|(status, _)| status == 200));
    fixture.stop();
}
