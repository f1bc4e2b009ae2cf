//! How far a hog comes beyond the armed line when the kernel carries out a standing verdict, and
//! when the agent does it itself.

use anyhow::Result;
use tests::node::MIB;

use crate::case::{Case, Hog, Load, Rate};
use crate::reaction::{self, Loaded};
use crate::rival::Rival;
use crate::stage::Stage;

/// Fresh pages run on for longer at full speed.
const ROOM: u64 = 512 * MIB;

pub(crate) fn run(stage: &mut Stage, n: usize) -> Result<()> {
    let backend = reaction::backend(stage)?;
    stage.begin(Some(backend))?;
    for load in [Load::Idle, Load::Hogs] {
        let hogs = Loaded::new(stage, load)?;
        for rate in Rate::ALL {
            for hog in Hog::ALL {
                for cache_full in [false, true] {
                    let room = if rate == Rate::Full { ROOM } else { 64 * MIB };
                    let case = Case { load, hog, rate, cache_full, room, ..Case::new(n) };
                    pair(stage, case)?;
                }
            }
        }
        drop(hogs);
    }
    Ok(())
}

/// One case without kernel kill and with it; fresh pages beside earlyoom.
fn pair(stage: &mut Stage, case: Case) -> Result<()> {
    let mut theirs = Vec::new();
    if case.hog == Hog::Fresh && !case.cache_full && stage.wants(&case.name()) {
        theirs = reaction::rival_rows(stage, case, Rival::Earlyoom)?;
        stage.keep(theirs.clone())?;
    }
    for case in [case, Case { kernel_kill: true, ..case }] {
        if stage.wants(&case.name()) {
            let rows = reaction::ours(stage, case)?;
            stage.keep(rows.into_iter().map(|row| reaction::compare(row, &theirs)).collect::<Vec<_>>())?;
        }
    }
    Ok(())
}
