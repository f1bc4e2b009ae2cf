//! What the kernel itself tells beside the charge hook on cgroup v2: tasks that wait for memory,
//! and limits that are run into. Where every charge is seen neither is needed.

use std::path::{Path, PathBuf};

use eviction_bpf::{BackendInfo, EventClass, attach_methods};
use eviction_node::backend_selection::BackendSelection;
use eviction_node::cgroup::files::Version;
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::psi_trigger::{EVENTS, PRESSURE, Trigger, TriggerError};

use super::failover::BackendFailure;
use super::realtime;
use crate::error::chain;

type Register = fn(&Path) -> Result<Trigger, TriggerError>;

/// Triggers on the files of the node's group.
#[derive(Debug, Default)]
pub(crate) struct PsiTriggers {
    pressure: Option<File>,
    events: Option<File>,
}

/// One file, and what is registered with it.
#[derive(Debug)]
struct File {
    name: &'static str,
    group: PathBuf,
    register: Register,
    current: Option<Trigger>,
}

impl PsiTriggers {
    /// The triggers of this group, and what is said of them; on cgroup v1 there are none.
    pub(crate) fn new(root: &NodeRoot, choice: &BackendSelection) -> (Self, Vec<BackendInfo>) {
        if root.version != Version::V2 {
            return (Self::default(), Vec::new());
        }
        let (pressure, pressure_info) = file(PRESSURE, Trigger::on_pressure, &root.memory, choice);
        let (events, events_info) = file(EVENTS, Trigger::on_events, &root.memory, choice);
        (Self { pressure, events }, vec![pressure_info, events_info])
    }

    /// Registers what is wanted where the charge hook has blind spots, and takes it off elsewhere. What cannot be
    /// registered any more is given up.
    pub(crate) fn arm(&mut self, blind: bool) -> impl Iterator<Item = BackendFailure> + use<> {
        let arm = |file: &mut Option<File>| {
            let error = file.as_mut()?.arm(blind).err()?;
            give_up(file, &error)
        };
        [arm(&mut self.pressure), arm(&mut self.events)].into_iter().flatten()
    }

    /// Waits until the kernel tells something, and says by which of them. For ever, where there is
    /// nothing to tell it.
    ///
    /// # Errors
    /// If one of them is of no use any more; it is given up then.
    pub(crate) async fn fired(&mut self) -> Result<&'static str, BackendFailure> {
        let Self { pressure, events } = self;
        let (file, fired) = tokio::select! {
            fired = fired(pressure.as_ref()) => (pressure, fired),
            fired = fired(events.as_ref()) => (events, fired),
        };
        let name = file.as_ref().map_or("", |file| file.name);
        match fired.err().and_then(|error| give_up(file, &error)) {
            Some(lapse) => Err(lapse),
            None => Ok(name),
        }
    }
}

impl File {
    fn arm(&mut self, blind: bool) -> Result<(), TriggerError> {
        match (blind, &self.current) {
            (false, _) => {
                if let Some(trigger) = self.current.take() {
                    realtime::let_go(trigger);
                }
            }
            (true, Some(_)) => {}
            (true, None) => self.current = Some((self.register)(&self.group)?),
        }
        Ok(())
    }
}

fn file(
    name: &'static str,
    register: Register,
    group: &Path,
    choice: &BackendSelection,
) -> (Option<File>, BackendInfo) {
    let refused = choice.refusal(name, attach_methods::ladder(EventClass::Charge)).map(str::to_owned);
    match refused.map_or_else(|| register(group).map_err(|error| chain(&error)), Err) {
        Ok(trigger) => {
            let file = File { name, group: group.to_owned(), register, current: Some(trigger) };
            let beside = "in addition to a charge probe that does not see every charge, on the node's cgroup";
            (Some(file), Trigger::info(name, beside.to_owned()))
        }
        Err(why) => (None, BackendInfo { rung: "", ..Trigger::info(name, format!("{name}: {why}")) }),
    }
}

fn give_up(file: &mut Option<File>, error: &dyn std::error::Error) -> Option<BackendFailure> {
    let File { name, .. } = file.take()?;
    Some(BackendFailure::of(Trigger::info(name, chain(error))))
}

async fn fired(file: Option<&File>) -> std::io::Result<()> {
    match file.and_then(|file| file.current.as_ref()) {
        Some(trigger) => trigger.fired().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn file(name: &'static str, register: Register, current: Option<Trigger>) -> Option<File> {
        Some(File { name, group: PathBuf::from("/nowhere"), register, current })
    }

    #[tokio::test]
    async fn a_trigger_that_tells_an_error_is_lost_once() {
        // Whose other end is gone: the kernel tells an error of it, as of a group that is gone.
        let (reader, writer) = std::io::pipe().unwrap();
        let trigger = Trigger::of(OwnedFd::from(writer)).unwrap();
        let mut triggers =
            PsiTriggers { pressure: file(PRESSURE, Trigger::on_pressure, Some(trigger)), events: None };
        drop(reader);
        let BackendFailure { source, rung, why } = triggers.fired().await.unwrap_err();
        assert_eq!((source, rung, &*why), ("pressure", PRESSURE, "the group is gone"));
        assert!(triggers.arm(true).next().is_none() && triggers.pressure.is_none(), "it was given up");
    }

    #[test]
    fn what_cannot_be_registered_any_more_is_lost_once() {
        let (pressure, events) =
            (file(PRESSURE, Trigger::on_pressure, None), file(EVENTS, Trigger::on_events, None));
        let mut triggers = PsiTriggers { pressure, events };
        assert!(triggers.arm(false).next().is_none());
        let lost: Vec<_> = triggers.arm(true).map(|lapse| (lapse.source, lapse.rung)).collect();
        assert_eq!(lost, [("pressure", PRESSURE), ("limits", EVENTS)]);
        assert!(triggers.arm(true).next().is_none(), "each once");
    }
}
