//! The kernel's backends besides the BPF programs. They are used if the BPF programs do not see every charge.

use std::error::Error;

use eviction_bpf::{BackendInfo, EventClass, attach_methods};
use eviction_node::backend::BackendSelection;
use eviction_node::cgroup::files::Version;
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::cgroup::tree::Tree;
use eviction_node::notify::memcg_v1::{self, MemcgV1};
use eviction_node::notify::memory_events::{self, MemoryEventsWatch};
use eviction_node::notify::psi::{self, PsiWatch};

use super::super::realtime;
use super::Trigger;
use crate::error::chain;

/// The available backends of the node's cgroup.
pub(super) struct KernelBackends {
    memcg_v1: Option<MemcgV1>,
    psi: Option<PsiWatch>,
    memory_events: Option<MemoryEventsWatch>,
    /// Whether `memory_events` reports charges too, and not only OOM kills.
    has_node_events: bool,
}

const V1_REASON: &str = "beside the charge hook, on the node's own group";
const V2_REASON: &str = "in addition to a charge probe that does not see every charge, on the node's cgroup";

impl KernelBackends {
    /// Opens the backends that may be used, and returns the entry of each for `check`.
    pub(super) fn open(root: &NodeRoot, selection: &BackendSelection) -> (Self, Vec<BackendInfo>) {
        let group = &root.memory;
        let memory_events = Some(MemoryEventsWatch::new(root.version));
        let none = Self { memcg_v1: None, psi: None, memory_events, has_node_events: false };
        let refusal = |name| selection.refusal(name, attach_methods::backends(EventClass::Charge));
        match root.version {
            Version::V1 => {
                let (memcg_v1, info) =
                    open("usage", memcg_v1::NAME, V1_REASON, refusal(memcg_v1::NAME), || {
                        MemcgV1::open(group)
                    });
                (Self { memcg_v1, ..none }, vec![info])
            }
            Version::V2 => {
                let (psi, pressure) =
                    open("pressure", psi::NAME, V2_REASON, refusal(psi::NAME), || PsiWatch::open(group));
                let refused = refusal(memory_events::NAME);
                let probe = || memory_events::probe(group);
                let (node, limits) = open("limits", memory_events::NAME, V2_REASON, refused, probe);
                let memory_events = none.memory_events.filter(|_| refused.is_none());
                let this = Self { psi, memory_events, has_node_events: node.is_some(), ..none };
                (this, vec![pressure, limits])
            }
        }
    }

    /// Sets or clears the backends that report growth on the node, given its usage and the headroom to the
    /// nearest threshold, both in bytes.
    ///
    /// # Errors
    /// If the PSI trigger failed.
    pub(super) fn set(
        &mut self,
        usage: u64,
        headroom: Option<u64>,
        sees_every_charge: bool,
        now_ns: u64,
    ) -> Result<(), BackendInfo> {
        if let Some(memcg_v1) = &mut self.memcg_v1 {
            match headroom {
                _ if sees_every_charge => memcg_v1.clear(),
                Some(headroom) => memcg_v1.set(usage.saturating_add(headroom), headroom, now_ns),
                None => {}
            }
        }
        if let Some(psi) = &mut self.psi {
            if sees_every_charge {
                release(psi.clear());
            } else if let Err(error) = psi.set() {
                return Err(fail(&mut self.psi, "pressure", psi::NAME, &error));
            }
        }
        Ok(())
    }

    /// Watches the cgroups of this tree for limits and OOM kills that no other backend reports.
    ///
    /// # Errors
    /// If none of them can be watched any more.
    pub(super) fn watch_events(
        &mut self,
        tree: &Tree,
        sees_every_charge: bool,
        reports_kills: bool,
    ) -> Result<(), BackendInfo> {
        let Some(events) = &mut self.memory_events else { return Ok(()) };
        let followed = match (reports_kills, self.has_node_events && !sees_every_charge) {
            (false, _) => events.watch_all(tree),
            (true, true) => events.watch_node(tree),
            (true, false) => {
                release(events.clear());
                return Ok(());
            }
        };
        followed.map_err(|error| fail(&mut self.memory_events, "limits", memory_events::NAME, &error))
    }

    /// Waits until one of the backends fires; forever while none is set. Cancel-safe.
    ///
    /// # Errors
    /// If a backend has failed. It is not used again.
    pub(super) async fn next(&mut self) -> Result<Trigger, BackendInfo> {
        let Self { memcg_v1, psi, memory_events, has_node_events: _ } = self;
        tokio::select! {
            crossed = wait(memcg_v1, async |it| it.crossed().await) => match crossed {
                Ok(()) => Ok(Trigger::MemcgV1Threshold),
                Err(error) => Err(fail(memcg_v1, "usage", memcg_v1::NAME, &error)),
            },
            fired = wait(psi, async |it| it.fired().await) => match fired {
                Ok(()) => Ok(Trigger::Psi),
                Err(error) => Err(fail(psi, "pressure", psi::NAME, &error)),
            },
            fired = wait(memory_events, async |it| it.fired().await) => match fired {
                Ok(()) => Ok(Trigger::MemoryEvents),
                Err(error) => Err(fail(memory_events, "limits", memory_events::NAME, &error)),
            },
        }
    }
}

fn open<B, E: Error + 'static>(
    source: &'static str,
    name: &'static str,
    reason: &str,
    refusal: Option<&str>,
    open: impl FnOnce() -> Result<B, E>,
) -> (Option<B>, BackendInfo) {
    let opened = match refusal {
        Some(why) => Err(why.to_owned()),
        None => open().map_err(|error| chain(&error)),
    };
    match opened {
        Ok(backend) => (Some(backend), BackendInfo::plain(source, name, reason)),
        Err(why) => (None, BackendInfo::plain(source, "", format!("{name}: {why}"))),
    }
}

fn fail<B>(
    backend: &mut Option<B>,
    source: &'static str,
    name: &'static str,
    error: &(dyn Error + 'static),
) -> BackendInfo {
    *backend = None;
    BackendInfo::plain(source, name, chain(error))
}

/// Closes descriptors on another thread, so that the control loop does not wait for it.
fn release(of: Option<impl Send + 'static>) {
    if let Some(of) = of {
        realtime::drop_on_thread(of);
    }
}

async fn wait<B, R>(backend: &mut Option<B>, fired: impl AsyncFnOnce(&mut B) -> R) -> R {
    match backend {
        Some(backend) => fired(backend).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn backends_with(psi: PsiWatch) -> KernelBackends {
        KernelBackends { memcg_v1: None, psi: Some(psi), memory_events: None, has_node_events: false }
    }

    /// Returns a trigger whose other end is closed: the kernel reports an error, as for a removed cgroup.
    fn broken_trigger() -> PsiWatch {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        PsiWatch::of(OwnedFd::from(writer)).unwrap()
    }

    #[tokio::test]
    async fn a_trigger_that_reports_an_error_fails_once() {
        let mut backends = backends_with(broken_trigger());
        let BackendInfo { source, backend, reason: why, .. } = backends.next().await.unwrap_err();
        assert_eq!((source, backend, &*why), ("pressure", psi::NAME, "the group is gone"));
        assert!(backends.psi.is_none(), "it is not used again");
        assert_eq!(backends.set(0, None, false, 0), Ok(()));
    }

    #[tokio::test]
    async fn a_trigger_that_cannot_be_registered_again_fails_once() {
        let mut backends = backends_with(broken_trigger());
        let mut set = |sees_every_charge| {
            let set = backends.set(0, None, sees_every_charge, 0);
            set.map_err(|failure| (failure.source, failure.backend))
        };
        assert_eq!(set(false), Ok(()), "it is registered");
        assert_eq!(set(true), Ok(()), "it is not needed");
        assert_eq!(set(false), Err(("pressure", psi::NAME)));
        assert_eq!(set(false), Ok(()));
    }
}
