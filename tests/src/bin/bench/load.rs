//! A machine whose processors and memory are wanted by others.

use anyhow::Result;
use tests::cgroup::Subtree;
use tests::node::MIB;
use tests::workload::Workload;

use crate::testbed::Testbed;

const PROCESSORS: usize = 15;
const MEMORY: usize = 4;
const EACH: u64 = 64 * MIB;

/// Ended when it goes out of scope: the processes first, then their group.
#[derive(Debug)]
pub(crate) struct Hogs {
    _processes: Vec<Workload>,
    _tree: Subtree,
}

impl Hogs {
    /// Starts them, in a group of their own that bounds them.
    pub(crate) fn start(testbed: &Testbed) -> Result<Self> {
        let tree = Subtree::new("load")?;
        tree.root().limit_memory(MEMORY as u64 * EACH * 2)?;
        tree.root().limit_pids(64)?;
        let size = EACH.to_string();
        let busy = std::iter::repeat_n(vec!["busy"], PROCESSORS);
        let churn = std::iter::repeat_n(vec!["churn", "--size", &size], MEMORY);
        let mut processes = Vec::new();
        for arguments in busy.chain(churn) {
            testbed.interrupt.check()?;
            processes.push(Workload::run(&testbed.workload, tree.root(), arguments)?);
        }
        Ok(Self { _processes: processes, _tree: tree })
    }
}
