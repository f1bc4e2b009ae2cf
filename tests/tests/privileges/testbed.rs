//! A node with a crossed threshold, and an agent on it that is not root.

use super::*;

/// A node with a pod that grows over the threshold and one that stays small.
pub(super) struct Testbed {
    pub(super) node: Node,
    pub(super) hog: Workload,
    pub(super) quiet: Workload,
    folder: TempDir,
}

impl Testbed {
    pub(super) fn new(label: &str) -> Self {
        let mut node = Node::new(label, 256 * MIB, 200).unwrap();
        for name in ["web", "quiet"] {
            node.add(PodSpec::new("shop", name, &["app"], 8)).unwrap();
        }
        let start = |pod, size| node.workload(pod, &["grow", "--size", size]).unwrap();
        let (hog, quiet) = (start(0, "200M"), start(1, "2M"));
        Self { node, hog, quiet, folder: folder() }
    }

    /// Starts the agent as a user with these capabilities.
    pub(super) fn agent(&self, names: &[&str]) -> Agent {
        let kubelet = json!({"evictionHard": {"memory.available": "96Mi"}});
        Options::of(&agent_script(self.folder.path(), names), &self.node, &kubelet).unwrap().start().unwrap()
    }

    /// Lets both processes grow, the small one first.
    pub(super) fn go(&mut self) {
        self.quiet.go().unwrap();
        self.hog.go().unwrap();
    }

    pub(super) fn assert_decided(&self, agent: &mut Agent, what: &str) {
        assert_eq!(agent.wait_for_decision().unwrap().pod(), "shop/web", "{what}");
    }

    /// Asserts that the hog ends, which it does on SIGTERM, and that the small process still runs.
    pub(super) fn assert_hog_ended(&mut self, what: &str) {
        self.hog.process().wait().unwrap();
        assert!(self.quiet.process().is_running().unwrap(), "{what}");
    }
}
