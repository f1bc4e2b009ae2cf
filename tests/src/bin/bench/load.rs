//! Other load on the processors and the memory of the machine.

use anyhow::Result;
use tests::cgroup::Subtree;
use tests::node::MIB;
use tests::workload::Workload;

use crate::case::Load;
use crate::testbed::Testbed;

const PROCESSORS: usize = 15;
const MEMORY: usize = 4;
const EACH: u64 = 64 * MIB;

/// The processes of the load and their cgroup. Dropping it ends the processes first, then removes the cgroup.
#[derive(Debug)]
pub(crate) struct Hogs {
    _processes: Vec<Workload>,
    _tree: Subtree,
}

impl Hogs {
    /// Starts the processes in their own cgroup, which limits them; `None` if there is to be no load.
    pub(crate) fn start(testbed: &Testbed, load: Load) -> Result<Option<Self>> {
        if load == Load::Idle {
            return Ok(None);
        }
        let tree = Subtree::new("load")?;
        tree.root().limit_memory(MEMORY as u64 * EACH * 2)?;
        tree.root().limit_pids(64)?;
        let size = EACH.to_string();
        let busy = std::iter::repeat_n(vec!["busy"], PROCESSORS);
        let churn = std::iter::repeat_n(vec!["churn", "--size", &size], MEMORY);
        let mut processes = Vec::new();
        for arguments in busy.chain(churn) {
            testbed.interrupt.check()?;
            processes.push(Workload::run(tree.root(), arguments)?);
        }
        Ok(Some(Self { _processes: processes, _tree: tree }))
    }
}
