//! How far a hog grows beyond the threshold when the kernel carries out an armed kill order, and when the agent
//! kills.

use anyhow::Result;
use tests::node::MIB;

use crate::case::{Case, Hog, Load, Rate};
use crate::competitor::Competitor;
use crate::load::Hogs;
use crate::reaction;
use crate::testbed::Testbed;

/// The greatest overshoot at full speed, where a hog with fresh pages grows further, bytes.
const MAX_OVERSHOOT: u64 = 512 * MIB;

pub(crate) fn run(testbed: &mut Testbed, n: usize) -> Result<()> {
    reaction::print_machine(testbed)?;
    for load in [Load::Idle, Load::Hogs] {
        let hogs = Hogs::start(testbed, load)?;
        for rate in Rate::ALL {
            for hog in Hog::ALL {
                for cache_full in [false, true] {
                    let max_overshoot = if rate == Rate::Full { MAX_OVERSHOOT } else { 64 * MIB };
                    let case = Case { load, hog, rate, cache_full, max_overshoot, ..Case::new(n) };
                    run_pair(testbed, case)?;
                }
            }
        }
        drop(hogs);
    }
    Ok(())
}

/// Measures one case without and with kernel kill; for fresh pages, also with earlyoom.
fn run_pair(testbed: &mut Testbed, case: Case) -> Result<()> {
    let mut theirs = Vec::new();
    if case.hog == Hog::Fresh && !case.cache_full && testbed.is_selected(&case.name()) {
        theirs = reaction::competitor_rows(testbed, case, Competitor::Earlyoom)?;
        testbed.add_rows(theirs.clone())?;
    }
    for case in [case, Case { kernel_kill: true, ..case }] {
        if testbed.is_selected(&case.name()) {
            let rows = reaction::agent_rows(testbed, case)?;
            testbed.add_rows(
                rows.into_iter().map(|row| reaction::with_ratio(row, &theirs)).collect::<Vec<_>>(),
            )?;
        }
    }
    Ok(())
}
