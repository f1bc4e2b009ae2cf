//! Fixtures with which every test begins.

use std::sync::OnceLock;

use rustix::process::{Signal, set_parent_process_death_signal};
use tests::agent::{self, Agent};
use tests::cluster::{Binaries, Cluster, Options};
use tests::interrupt::Interrupt;

/// Returns the interrupt of all tests of this program: after Ctrl-C no other test begins. If the process that started
/// the program exits without a signal, that counts as a Ctrl-C.
pub(crate) fn interrupt() -> &'static Interrupt {
    static INTERRUPT: OnceLock<Interrupt> = OnceLock::new();
    INTERRUPT.get_or_init(|| {
        let interrupt = Interrupt::install().unwrap();
        set_parent_process_death_signal(Some(Signal::TERM)).unwrap();
        interrupt
    })
}

/// Starts a cluster. Where the programs of Kubernetes are missing it reports that, and returns `None`.
pub(crate) fn cluster(options: &Options) -> Option<Cluster> {
    let binaries = tests::or_skip!(Binaries::find());
    Some(Cluster::start(&binaries, options, interrupt()).unwrap())
}

/// Starts an agent with a recording that is replayed when the agent has ended.
pub(crate) fn start(options: &agent::Options) -> Agent {
    Agent::start_recorded(options, interrupt()).unwrap()
}
