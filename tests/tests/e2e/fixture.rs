//! What every story begins with.

use std::sync::OnceLock;

use rustix::process::{Signal, set_parent_process_death_signal};
use tests::cluster::{Binaries, Cluster, Options};
use tests::interrupt::Interrupt;

/// One for all stories of this program: after Ctrl-C no other one begins. Whoever started the
/// program may be gone without a word; that is taken for a Ctrl-C.
pub(crate) fn interrupt() -> &'static Interrupt {
    static INTERRUPT: OnceLock<Interrupt> = OnceLock::new();
    INTERRUPT.get_or_init(|| {
        let interrupt = Interrupt::install().unwrap();
        set_parent_process_death_signal(Some(Signal::TERM)).unwrap();
        interrupt
    })
}

/// A cluster; nothing where Kubernetes' programs are not there, and says so.
pub(crate) fn cluster(options: &Options) -> Option<Cluster> {
    match Binaries::find() {
        Ok(binaries) => Some(Cluster::start(&binaries, options, interrupt()).unwrap()),
        Err(why) => {
            tests::report_skip(&why);
            None
        }
    }
}
