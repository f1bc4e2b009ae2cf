//! More cgroups than there are descriptors for, and than any node has.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use tests::mounts::Hierarchy;
use tests::node::{MIB, Node};
use tests::skip;

use crate::fixture::{Fixture, node_of};

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
    let Some(node) = node_of("crowd", 1024 * MIB) else { skip!("no cgroups can be made here") };
    let crowd = Crowd::new(&node);
    let fixture = Fixture::start(node, Stdio::null(), Stdio::null(), "info", &[]);
    assert_eq!(fixture.metric("eviction_agent_cgroups_unreadable"), 0.0);
    fixture.assert_a_hog_goes("1000M", "1G");
    // All of them go at once, and it goes on.
    drop(crowd);
    fixture.until("the loop turns", || fixture.get("/healthz").is_some_and(|(status, _)| status == 200));
    assert!(fixture.stop().success());
}
