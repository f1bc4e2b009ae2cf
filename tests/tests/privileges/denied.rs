//! Files of cgroups that the agent may not read: each costs what it tells, with its reason, and the rest goes on.

use std::fs::Permissions;

use tests::cgroup::Group;

use super::site::Site;
use super::*;

/// A file of a group that nobody but root may read, as long as this lives.
struct Denied(PathBuf);

impl Denied {
    fn new(group: &Group, hierarchy: Hierarchy, names: (&str, &str)) -> Self {
        let file = group.file(hierarchy, names).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o000)).unwrap();
        Self(file)
    }
}

impl Drop for Denied {
    fn drop(&mut self) {
        std::fs::set_permissions(&self.0, Permissions::from_mode(0o444)).unwrap();
    }
}

const USAGE: (Hierarchy, (&str, &str)) = (Hierarchy::Memory, ("memory.usage_in_bytes", "memory.current"));
const STAT: (Hierarchy, (&str, &str)) = (Hierarchy::Memory, ("memory.stat", "memory.stat"));
const LIMIT: (Hierarchy, (&str, &str)) = (Hierarchy::Memory, ("memory.limit_in_bytes", "memory.max"));
const TASKS: (Hierarchy, (&str, &str)) = (Hierarchy::Pids, ("pids.current", "pids.current"));

/// An agent for which these files are all that there is to be read: without the right to pass over permissions.
fn agent_at(site: &Site) -> Agent {
    site.agent(&without("DAC_READ_SEARCH"), &[])
}

/// The crossing is decided, and nobody else is touched.
fn assert_the_hog_goes(site: &mut Site, mut agent: Agent, what: &str) {
    site.go();
    site.assert_decided(&mut agent, what);
    site.assert_the_hog_ends(what);
    agent.stop().unwrap();
}

#[test]
fn what_a_quiet_pod_withholds_keeps_no_decision_from_being_made() {
    need_root!();
    let mut site = Site::new("denied-pod");
    let [_, quiet] = &site.node.pods[..] else { panic!("two pods") };
    let of = |group: &Group| [USAGE, STAT, LIMIT, TASKS].map(|(tree, names)| Denied::new(group, tree, names));
    let denied = [of(&quiet.group), of(&quiet.containers[0].group)];
    let agent = agent_at(&site);
    assert_the_hog_goes(&mut site, agent, "pod and container of the quiet one");
    drop(denied);
}

#[test]
fn a_node_whose_memory_may_not_be_read_has_nobody_evicted_until_it_may() {
    need_root!();
    for (number, (hierarchy, names)) in [USAGE, STAT].into_iter().enumerate() {
        let mut site = Site::new(&format!("denied-node-{number}"));
        let denied = Denied::new(site.node.root(), hierarchy, names);
        let what = denied.0.display().to_string();
        let mut agent = agent_at(&site);
        let of_memory =
            |event: &Event| event.kind() == "signal_read_error" && event.text("signal") == "memory.available";
        let unknown = agent.wait_for("the signal to be unknown", GUARD, of_memory).unwrap();
        assert!(unknown.text("error").contains("Permission denied"), "{what}: {unknown:?}");
        site.go();
        site.hog.wait_event("grown").unwrap();
        // More than a full sample, which would find it.
        std::thread::sleep(Duration::from_secs(3));
        let heard = agent.heard().unwrap();
        assert!(heard.iter().all(|event| event.kind() != "eviction_decision"), "{what}: {heard:?}");
        assert!(site.hog.process().is_running().unwrap(), "{what}");
        drop(denied);
        site.assert_decided(&mut agent, &what);
        agent.stop().unwrap();
    }
}

#[test]
fn a_node_whose_tasks_may_not_be_counted_still_decides_for_memory() {
    need_root!();
    let mut site = Site::new("denied-tasks");
    let denied = Denied::new(site.node.root(), TASKS.0, TASKS.1);
    let mut agent = agent_at(&site);
    let of_tasks =
        |event: &Event| event.kind() == "signal_read_error" && event.text("signal") == "pid.available";
    let unknown = agent.wait_for("the signal to be unknown", GUARD, of_tasks).unwrap();
    assert!(unknown.text("error").contains("Permission denied"), "{unknown:?}");
    assert_the_hog_goes(&mut site, agent, "tasks of the node");
    drop(denied);
}
