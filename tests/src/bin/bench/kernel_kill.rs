//! How far a hog comes beyond the armed line when the kernel carries out a standing verdict, and
//! when the agent does it itself.

use anyhow::Result;
use tests::node::MIB;

use crate::case::{Case, Hog, Load, Rate};
use crate::competitor::Competitor;
use crate::reaction::{self, Loaded};
use crate::testbed::Testbed;

/// Fresh pages run on for longer at full speed.
const ROOM: u64 = 512 * MIB;

pub(crate) fn run(testbed: &mut Testbed, n: usize) -> Result<()> {
    let backend = reaction::backend(testbed)?;
    testbed.begin(Some(backend))?;
    for load in [Load::Idle, Load::Hogs] {
        let hogs = Loaded::new(testbed, load)?;
        for rate in Rate::ALL {
            for hog in Hog::ALL {
                for cache_full in [false, true] {
                    let room = if rate == Rate::Full { ROOM } else { 64 * MIB };
                    let case = Case { load, hog, rate, cache_full, room, ..Case::new(n) };
                    pair(testbed, case)?;
                }
            }
        }
        drop(hogs);
    }
    Ok(())
}

/// One case without kernel kill and with it; fresh pages beside earlyoom.
fn pair(testbed: &mut Testbed, case: Case) -> Result<()> {
    let mut theirs = Vec::new();
    if case.hog == Hog::Fresh && !case.cache_full && testbed.wants(&case.name()) {
        theirs = reaction::competitor_rows(testbed, case, Competitor::Earlyoom)?;
        testbed.keep(theirs.clone())?;
    }
    for case in [case, Case { kernel_kill: true, ..case }] {
        if testbed.wants(&case.name()) {
            let rows = reaction::ours(testbed, case)?;
            testbed.keep(rows.into_iter().map(|row| reaction::compare(row, &theirs)).collect::<Vec<_>>())?;
        }
    }
    Ok(())
}
