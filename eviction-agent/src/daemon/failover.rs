//! Losing a rung while running: noticed by asking the kernel and by its silence, and answered by
//! loading the kernel side anew without it.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

use eviction_bpf::load::load;
use eviction_bpf::{BackendInfo, BpfHandle, EventClass, LoadError, LoadOptions, Loaded, attach_methods};

use crate::error::chain;

/// So much cannot be charged without a batch that a rung that sees every charge tells of.
const UNSEEN_BYTES: u64 = 16 << 20;

/// Loading takes a good part of a CPU for a moment: what is lost again at once has to wait.
const SOONEST: Duration = Duration::from_secs(10);

/// A rung that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendFailure {
    /// Of which source.
    pub(crate) source: &'static str,
    pub(crate) rung: &'static str,
    /// How that showed.
    pub(crate) why: String,
}

impl BackendFailure {
    /// Of what this tells, for the reason that it gives.
    pub(crate) fn of(info: BackendInfo) -> Self {
        let BackendInfo { source, rung, reason: why, .. } = info;
        Self { source, rung, why }
    }
}

/// Watches over the rungs in use, and has others loaded on a thread of its own.
pub(crate) struct BackendFailover {
    options: LoadOptions,
    silence: Silence,
    loading: Option<Receiver<Result<Loaded, LoadError>>>,
    last_ns: Option<u64>,
}

impl BackendFailover {
    /// These were the options of what is loaded.
    pub(crate) fn new(options: LoadOptions) -> Self {
        Self { options, silence: Silence::default(), loading: None, last_ns: None }
    }

    /// Adds what of the kernel side is lost to what is known to be, once for each source, given the usage of each
    /// pod by the id of its cgroup.
    pub(crate) fn examine(
        &mut self,
        kernel: &BpfHandle,
        pods: impl Iterator<Item = (u64, u64)>,
        known: &mut Vec<BackendFailure>,
    ) {
        for detached in kernel.detached() {
            let why = chain(&detached);
            note(known, BackendFailure { source: detached.family.name(), rung: detached.rung, why });
        }
        let Some(info) = kernel.charge().filter(|info| info.sees_every_charge) else { return };
        let Ok(lost) = kernel.lost() else { return };
        if self.silence.is_broken(pods, lost.charges) {
            avoid_alike(&mut self.options, info.rung);
            let why = "it tells of no charge while a pod's usage grows";
            note(known, BackendFailure { source: info.source, rung: info.rung, why: why.to_owned() });
            for alike in kernel.sources().iter().filter(|other| are_kprobes(other.rung, info.rung)) {
                let why = format!("{} is silent, and the kernel disarms kprobes together", info.rung);
                note(known, BackendFailure { source: alike.source, rung: alike.rung, why });
            }
        }
    }

    /// Whether that rung was lost, and is not used again.
    pub(crate) fn is_given_up(&self, rung: &str) -> bool {
        self.options.choice.lost.iter().any(|lost| lost == rung)
    }

    /// Whether something is being loaded.
    pub(crate) fn is_loading(&self) -> bool {
        self.loading.is_some()
    }

    /// Has the kernel side loaded anew without those rungs; false if it is too soon for that.
    pub(crate) fn replace(&mut self, lost: &[BackendFailure], now_ns: u64) -> bool {
        let soon = |last: u64| u128::from(now_ns.saturating_sub(last)) < SOONEST.as_nanos();
        if self.is_loading() || self.last_ns.is_some_and(soon) {
            return false;
        }
        self.last_ns = Some(now_ns);
        self.silence = Silence::default();
        lost.iter().for_each(|lapse| avoid(&mut self.options, lapse));
        let (sender, receiver) = sync_channel(1);
        let options = self.options.clone();
        let thread = std::thread::Builder::new().name("bpf-reload".to_owned());
        match thread.spawn(move || drop(sender.send(load(&options)))) {
            Ok(_) => self.loading = Some(receiver),
            Err(error) => tracing::warn!(%error, "starting a thread to load the kernel side anew"),
        }
        self.is_loading()
    }

    /// What was loaded, once.
    pub(crate) fn loaded(&mut self) -> Option<Result<Loaded, LoadError>> {
        let loaded = match self.loading.as_ref()?.try_recv() {
            Ok(loaded) => loaded,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                let why = "loading the kernel side anew panicked".to_owned();
                Err(LoadError { why, missing: Vec::new() })
            }
        };
        self.loading = None;
        Some(loaded)
    }
}

/// Adds it, if nothing of that source is known yet.
pub(crate) fn note(known: &mut Vec<BackendFailure>, lapse: BackendFailure) {
    if !known.iter().any(|it| it.source == lapse.source) {
        known.push(lapse);
    }
}

/// Of charges, and of the hooks for a time, the next rung is used from now on, also if the lost one was asked for. Of
/// other families there is one rung a kernel: it is attached again.
fn avoid(options: &mut LoadOptions, lapse: &BackendFailure) {
    if [EventClass::Charge, EventClass::Near].map(EventClass::name).contains(&lapse.source) {
        give_up(options, lapse.rung);
    }
}

fn give_up(options: &mut LoadOptions, rung: &str) {
    options.choice.only.retain(|name| name != rung);
    if !options.choice.lost.iter().any(|name| name == rung) {
        options.choice.lost.push(rung.to_owned());
    }
}

/// Where one kprobe is silent, so are all: the kernel disarms them together (`kprobes/enabled` of debugfs), and
/// those that are registered then as well, without a word.
fn avoid_alike(options: &mut LoadOptions, silent: &str) {
    attach_methods::names().filter(|name| are_kprobes(name, silent)).for_each(|name| give_up(options, name));
}

fn are_kprobes(rung: &str, other: &str) -> bool {
    [rung, other].iter().all(|name| name.starts_with("kprobe "))
}

/// What was known when the last charge was told of.
#[derive(Debug, Default)]
struct Silence {
    charges: Option<u64>,
    usage: HashMap<u64, u64>,
}

impl Silence {
    /// Whether a pod's usage grew while no charge was counted.
    fn is_broken(&mut self, pods: impl Iterator<Item = (u64, u64)>, charges: u64) -> bool {
        if self.charges != Some(charges) {
            self.charges = Some(charges);
            self.usage.clear();
        }
        let mut broken = false;
        for (id, usage) in pods {
            // One that is new to us may have been there before.
            let least = self.usage.entry(id).or_insert(usage);
            *least = usage.min(*least);
            broken |= usage - *least > UNSEEN_BYTES;
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_node::backend_selection::BackendSelection;

    const MIB: u64 = 1 << 20;

    #[test]
    fn growth_without_a_charge_is_a_rung_that_is_dead() {
        let mut silence = Silence::default();
        for (usage, charges, expected) in [
            (100, 5, false),
            (200, 6, false),
            (200, 6, false),
            (210, 6, false),
            (217, 6, true),
            (217, 7, false),
            (150, 7, false),
            (160, 7, false),
            (170, 7, true),
        ] {
            let pods = [(1, usage * MIB), (2, 10 * MIB)];
            assert_eq!(
                silence.is_broken(pods.into_iter(), charges),
                expected,
                "{usage} MiB, {charges} charges"
            );
        }
        let new = [(2, 10 * MIB), (3, 500 * MIB)];
        assert!(!silence.is_broken(new.into_iter(), 7), "a pod that was not known before");
    }

    fn lapse(source: &'static str, rung: &'static str) -> BackendFailure {
        BackendFailure { source, rung, why: "detached".to_owned() }
    }

    #[test]
    fn a_lost_rung_for_charges_is_not_used_again_even_if_it_was_asked_for() {
        let choice =
            BackendSelection { only: vec!["a".to_owned(), "b".to_owned()], ..BackendSelection::default() };
        let mut options = LoadOptions { choice, ..LoadOptions::default() };
        avoid(&mut options, &lapse("charge", "a"));
        let BackendSelection { only, deny, lost } = &options.choice;
        assert_eq!(
            (only.as_slice(), deny.as_slice(), lost.as_slice()),
            (&["b".to_owned()][..], &[][..], &["a".to_owned()][..])
        );
        avoid(&mut options, &lapse("oom", "c"));
        assert_eq!(options.choice.lost, ["a"], "another is attached again");
        avoid(&mut options, &lapse("charge near", "d"));
        avoid(&mut options, &lapse("charge near", "d"));
        assert_eq!(options.choice.lost, ["a", "d"]);
    }

    #[test]
    fn where_one_kprobe_is_silent_none_is_used_again() {
        let mut options = LoadOptions::default();
        avoid_alike(&mut options, "fexit page_counter_try_charge");
        assert!(options.choice.lost.is_empty());
        avoid_alike(&mut options, "kprobe page_counter_try_charge");
        let lost = &options.choice.lost;
        assert!(lost.iter().any(|name| name == "kprobe oom_kill_process"), "{lost:?}");
        assert!(lost.iter().all(|name| name.starts_with("kprobe ")), "{lost:?}");
    }

    #[test]
    fn what_is_lost_again_at_once_has_to_wait() {
        let deny = eviction_bpf::attach_methods::names().map(str::to_owned).collect();
        let choice = BackendSelection { deny, ..BackendSelection::default() };
        let mut ladder = BackendFailover::new(LoadOptions { choice, ..LoadOptions::default() });
        let lost = lapse("charge", "a");
        let lost = [lost];
        assert!(ladder.replace(&lost, 0));
        assert!(!ladder.replace(&lost, u64::MAX), "one at a time");
        let refused = loop {
            match ladder.loaded() {
                Some(loaded) => break loaded.err().unwrap(),
                None => std::thread::yield_now(),
            }
        };
        assert!(refused.to_string().contains("disabled by --disable-backend"), "{refused}");
        assert!(!ladder.replace(&lost, 9_999_999_999));
        assert!(ladder.replace(&lost, 10_000_000_000));
    }
}
