//! Steps of work that grow with the number of pods, counted in tests: how they grow is a promise
//! that no clock on a shared machine can check.

#[cfg(test)]
use std::cell::Cell;

#[cfg(test)]
thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// One pod looked at or looked up, one key of a sort made, or one name compared.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// Runs `work` and says how many steps it took.
#[cfg(test)]
pub(crate) fn steps<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = STEPS.with(Cell::get);
    let result = work();
    (result, STEPS.with(Cell::get) - before)
}
