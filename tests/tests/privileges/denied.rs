//! Cgroup files that the agent may not read: each costs only its own values, with a reason, and the rest continues.

use std::fs::Permissions;

use tests::cgroup::Group;

use super::testbed::Testbed;
use super::*;

/// A file of a cgroup that only root may read, as long as this value exists.
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

/// Starts an agent without the right to bypass file permissions.
fn start_agent(testbed: &Testbed) -> Agent {
    testbed.agent(&without("DAC_READ_SEARCH"))
}

/// Asserts that the agent decides at the crossing, and that no other pod is touched.
fn assert_hog_is_evicted(testbed: &mut Testbed, mut agent: Agent, what: &str) {
    testbed.go();
    testbed.assert_decided(&mut agent, what);
    testbed.assert_hog_ended(what);
    agent.stop().unwrap();
}

#[test]
fn unreadable_files_of_another_pod_do_not_prevent_a_decision() {
    need_root!();
    let mut testbed = Testbed::new("denied-pod");
    let [_, quiet] = &testbed.node.pods[..] else { panic!("two pods") };
    let of = |group: &Group| [USAGE, STAT, LIMIT, TASKS].map(|(tree, names)| Denied::new(group, tree, names));
    let denied = [of(&quiet.group), of(&quiet.containers[0].group)];
    let agent = start_agent(&testbed);
    assert_hog_is_evicted(&mut testbed, agent, "pod and container of the quiet one");
    drop(denied);
}

#[test]
fn no_pod_is_evicted_while_the_memory_of_the_node_is_unreadable() {
    need_root!();
    for (number, (hierarchy, names)) in [USAGE, STAT].into_iter().enumerate() {
        let mut testbed = Testbed::new(&format!("denied-node-{number}"));
        let denied = Denied::new(testbed.node.root(), hierarchy, names);
        let what = denied.0.display().to_string();
        let mut agent = start_agent(&testbed);
        let is_memory_error =
            |event: &Event| event.kind() == "signal_read_error" && event.text("signal") == "memory.available";
        let unknown = agent.wait_for("the signal to be unknown", GUARD, is_memory_error).unwrap();
        assert!(unknown.text("error").contains("Permission denied"), "{what}: {unknown:?}");
        testbed.go();
        testbed.hog.wait_event("grown").unwrap();
        // Longer than the time until a full sample, which would find the pressure.
        std::thread::sleep(Duration::from_secs(3));
        let events = agent.events().unwrap();
        assert!(events.iter().all(|event| !event.is_decision()), "{what}: {events:?}");
        assert!(testbed.hog.process().is_running().unwrap(), "{what}");
        drop(denied);
        testbed.assert_decided(&mut agent, &what);
        agent.stop().unwrap();
    }
}

#[test]
fn an_unreadable_task_count_does_not_prevent_a_memory_decision() {
    need_root!();
    let mut testbed = Testbed::new("denied-tasks");
    let denied = Denied::new(testbed.node.root(), TASKS.0, TASKS.1);
    let mut agent = start_agent(&testbed);
    let is_task_error =
        |event: &Event| event.kind() == "signal_read_error" && event.text("signal") == "pid.available";
    let unknown = agent.wait_for("the signal to be unknown", GUARD, is_task_error).unwrap();
    assert!(unknown.text("error").contains("Permission denied"), "{unknown:?}");
    assert_hog_is_evicted(&mut testbed, agent, "tasks of the node");
    drop(denied);
}
