//! Counts steps of work that grow with the number of pods. Tests check how they grow, which a clock on a
//! shared machine could not do.

#[cfg(test)]
use std::cell::Cell;

#[cfg(test)]
thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Counts one step: a pod is accessed or looked up, a sort key is made, or a name is compared.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// Runs `work` and returns how many steps it took.
#[cfg(test)]
pub(crate) fn steps<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = STEPS.with(Cell::get);
    let result = work();
    (result, STEPS.with(Cell::get) - before)
}
