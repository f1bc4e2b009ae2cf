//! Runs of programs that did not take place.

use super::kernel::Kernel;
use super::plan::Family;

impl Kernel {
    /// How often the programs of each family were not run although their place was reached: the kernel runs no
    /// program while it is at work on the same CPU. Where it preempts tasks in the kernel (from 7.0 on it does), that
    /// happens on a busy node. Counts of tasks are too small by as much, and a crossing shows at the next charge
    /// or sample. What cannot be asked is 0, and so are kernels before 5.12.
    pub fn runs_missed(&self) -> [(Family, u64); Family::ALL.len()] {
        Family::ALL.map(|family| {
            let links = self.links.iter().filter(|(its, _)| *its == family);
            let always: u64 = links.filter_map(|(_, link)| link.runs_missed().ok()).sum();
            let near = self.near.as_ref().filter(|_| family == Family::Near);
            let near = near.and_then(|near| near.runs_missed().ok());
            (family, always.saturating_add(near.unwrap_or(0)))
        })
    }
}
