//! More cgroups than there are descriptors for, and than any node has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tests::mounts::Hierarchy;
use tests::node::{MIB, Node, PodSpec};
use tests::skip;
use tests::workload::Workload;

use crate::rig::Rig;

const GROUPS: usize = 50_000;
const EACH: usize = 100;

/// Groups of the memory controller's hierarchy alone, which are gone before the node is.
struct Crowd(Vec<PathBuf>);

impl Crowd {
    fn new(node: &Node) -> Self {
        // In a folder, so that the node itself keeps few.
        let above = node.root().file(Hierarchy::Memory, ("crowd", "crowd")).unwrap();
        fs::create_dir(&above).unwrap();
        let mut crowd = Self(vec![above.clone()]);
        for row in 0..GROUPS / EACH {
            let row = above.join(format!("row-{row}"));
            fs::create_dir(&row).unwrap();
            crowd.0.push(row.clone());
            for seat in 1..EACH {
                let seat = row.join(format!("seat-{seat}"));
                fs::create_dir(&seat).unwrap();
                crowd.0.push(seat);
            }
        }
        crowd
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for group in self.0.iter().rev() {
            // What is left the end of the node tells.
            drop(fs::remove_dir(group));
        }
    }
}

#[test]
fn among_fifty_thousand_groups_the_right_one_is_found() {
    let Ok(mut node) = Node::new("crowd", 1024 * MIB, 100) else { skip!("no cgroups can be made here") };
    let late = node.add(PodSpec::new("shop", "web", &["main"], 8)).unwrap();
    let crowd = Crowd::new(&node);
    let rig = Rig::start(node, Stdio::null(), Stdio::null(), "info", &[]);
    assert_eq!(rig.metric("eviction_agent_cgroups_skipped"), 0.0);
    let group = &rig.node.pods[late].containers[0].group;
    let arguments = ["grow", "--size", "1000M", "--rate", "1G"];
    let mut hog = Workload::start(Path::new(env!("CARGO_BIN_EXE_workload")), group, arguments).unwrap();
    hog.go().unwrap();
    rig.until("the hog is killed", || !hog.process().is_running().unwrap());
    assert_eq!(rig.node.oom_kills().unwrap(), 0, "by the agent, not by the kernel");
    rig.until("the eviction is told", || rig.metric("eviction_agent_evictions_total") == 1.0);
    // All of them go at once, and it goes on.
    drop(crowd);
    rig.until("the loop turns", || rig.get("/healthz").is_some_and(|(status, _)| status == 200));
    assert!(rig.stop().success());
}
