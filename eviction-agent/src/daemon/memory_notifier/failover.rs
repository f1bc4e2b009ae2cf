//! Failover of BPF programs that do not report any more. The agent detects them by asking the kernel and by
//! missing events, and loads all programs again, without the attach methods that failed.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use eviction_bpf::load::load;
use eviction_bpf::{
    BackendInfo, BpfHandle, Counter, EventClass, LoadError, LoadOptions, Loaded, attach_methods,
};

use super::super::realtime;
use super::log_failure;
use crate::telemetry::metrics::Metrics;

/// A method that sees every charge reports before this much is charged.
const UNREPORTED_BYTES: u64 = 16 << 20;

/// The minimum interval between two loads. Loading takes a good part of a CPU for a moment, so what fails again
/// at once has to wait.
const RELOAD_INTERVAL_NS: u64 = 10_000_000_000;

/// The number of loads in a row that restored nothing, after which there is no other.
const MAX_REFUSED: u32 = 5;

/// The classes of events that failed, and what is loaded to replace them.
#[derive(Default)]
pub(super) struct BpfFailover {
    options: LoadOptions,
    /// The number of counted charges at the last check.
    charges: Option<u64>,
    /// The least usage of each pod since the last charge was counted, by the id of the pod's cgroup.
    usage: HashMap<u64, u64>,
    loading: Option<Receiver<Result<Loaded, LoadError>>>,
    last_ns: Option<u64>,
    /// Failures that are not replaced yet, one for each source.
    failures: Vec<BackendInfo>,
    refused: u32,
}

impl BpfFailover {
    /// Creates the failover. `options` are those of the programs that are loaded.
    pub(super) fn new(options: LoadOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Records a failure, and reports the first one of each source.
    pub(super) fn fail(&mut self, failure: BackendInfo, metrics: &Metrics) {
        if !self.is_failed(failure.source) {
            log_failure(metrics, &failure);
            self.failures.push(failure);
            // A load that was refused may succeed without this one.
            self.refused = 0;
        }
    }

    pub(super) fn is_failed(&self, source: &str) -> bool {
        self.failures.iter().any(|failure| failure.source == source)
    }

    /// Checks whether the programs still report, given the usage of each pod by the id of its cgroup.
    pub(super) fn check(
        &mut self,
        handle: &BpfHandle,
        pods: impl Iterator<Item = (u64, u64)>,
        metrics: &Metrics,
    ) {
        for (class, backend, error) in handle.detached() {
            let why = format!("{backend} was detached: {error}");
            self.fail(BackendInfo::plain(class.name(), backend, why), metrics);
        }
        let Some(charge) = handle.charge().filter(|info| info.sees_every_charge) else { return };
        let Ok(counters) = handle.lost() else { return };
        if !self.are_charges_missed(pods, counters.get(Counter::Charges)) {
            return;
        }
        // The kernel disarms all kprobes together (`kprobes/enabled` of debugfs). Kprobes that are registered
        // then are disarmed too, without an error.
        exclude_kprobes_like(&mut self.options, charge.backend);
        let silent = handle.sources().iter().filter(|info| are_kprobes(info.backend, charge.backend));
        for info in std::iter::once(charge).chain(silent) {
            let why = format!("{} reports no charge while a pod's usage grows", charge.backend);
            self.fail(BackendInfo::plain(info.source, info.backend, why), metrics);
        }
    }

    /// Returns whether a pod's usage grew while no charge was counted.
    fn are_charges_missed(&mut self, pods: impl Iterator<Item = (u64, u64)>, charges: u64) -> bool {
        if self.charges != Some(charges) {
            self.charges = Some(charges);
            self.usage.clear();
        }
        let mut are_missed = false;
        for (id, usage) in pods {
            // A pod that is new to the agent may have existed before.
            let least = self.usage.entry(id).or_insert(usage);
            *least = usage.min(*least);
            are_missed |= usage - *least > UNREPORTED_BYTES;
        }
        are_missed
    }

    /// Loads all programs again on a thread, without what failed. Does nothing if nothing failed or it is too
    /// soon.
    pub(super) fn reload(&mut self, now_ns: u64) {
        let is_soon = |last: u64| now_ns.saturating_sub(last) < RELOAD_INTERVAL_NS;
        if self.failures.is_empty()
            || self.refused == MAX_REFUSED
            || self.is_loading()
            || self.last_ns.is_some_and(is_soon)
        {
            return;
        }
        self.last_ns = Some(now_ns);
        (self.charges, self.usage) = Default::default();
        self.failures.iter().for_each(|failure| exclude_failed(&mut self.options, failure));
        let (sender, receiver) = sync_channel(1);
        let options = self.options.clone();
        let thread = std::thread::Builder::new().name("bpf-reload".to_owned());
        match thread.spawn(move || drop(sender.send(load(&options)))) {
            Ok(_) => self.loading = Some(receiver),
            Err(error) => tracing::warn!(%error, "cannot start a thread to load the BPF programs again"),
        }
    }

    pub(super) fn is_loading(&self) -> bool {
        self.loading.is_some()
    }

    /// Takes the programs that were loaded to replace `present`, once they are loaded.
    ///
    /// # Errors
    /// The sources that are still without a backend, if nothing was loaded, or a working source would be lost.
    /// The load is tried again.
    pub(super) fn loaded(&mut self, present: Option<&BpfHandle>) -> Option<Result<Loaded, Vec<BackendInfo>>> {
        let result = self.loading.as_ref()?.try_recv();
        if matches!(result, Err(TryRecvError::Empty)) {
            return None;
        }
        self.loading = None;
        let (why, missing) = match result {
            Ok(Ok(loaded)) => {
                let Some(why) = present.and_then(|present| self.rejection_reason(present, &loaded)) else {
                    self.failures.clear();
                    self.refused = 0;
                    return Some(Ok(loaded));
                };
                realtime::drop_on_thread(loaded.kernel);
                (why, Vec::new())
            }
            Ok(Err(LoadError { why, missing })) => (why, missing),
            Err(_) => ("loading the BPF programs again panicked".to_owned(), Vec::new()),
        };
        self.refused += 1;
        tracing::warn!(why, "no BPF programs can be loaded in place of those that failed");
        // Without programs the sources have been reported already, but not the reasons.
        if present.is_none() {
            return Some(Err(missing));
        }
        let failed = self.failures.iter().map(|BackendInfo { source, reason: failed, .. }| {
            BackendInfo::plain(source, "", format!("{failed}; nothing can be loaded in its place: {why}"))
        });
        Some(Err(failed.collect()))
    }

    /// Returns why `new` must not replace `present`: a working source would be lost. The on-demand probes
    /// depend on the methods that they accompany.
    fn rejection_reason(&self, present: &BpfHandle, new: &Loaded) -> Option<String> {
        let classes = EventClass::ALL.into_iter().filter(|class| class.accompanied().is_none());
        let working = classes.filter(|class| !self.is_failed(class.name()));
        let has = |handle: &BpfHandle, class: EventClass| {
            handle.sources().iter().any(|info| info.source == class.name())
        };
        let mut lost = working.filter(|class| has(present, *class) && !has(&new.kernel, *class));
        lost.next().map(|class| format!("{class} would be missing"))
    }
}

/// Excludes a failed method for charges or for the on-demand probe, also if it was requested: the next method
/// is used from now on. Other classes have one method per kernel, which is attached again.
fn exclude_failed(options: &mut LoadOptions, failure: &BackendInfo) {
    if [EventClass::Charge, EventClass::ChargeNear].map(EventClass::name).contains(&failure.source) {
        exclude_method(options, failure.backend);
    }
}

fn exclude_method(options: &mut LoadOptions, method: &str) {
    options.choice.only.retain(|name| name != method);
    if !options.choice.failed.iter().any(|name| name == method) {
        options.choice.failed.push(method.to_owned());
    }
}

fn exclude_kprobes_like(options: &mut LoadOptions, silent: &str) {
    attach_methods::names()
        .filter(|name| are_kprobes(name, silent))
        .for_each(|name| exclude_method(options, name));
}

fn are_kprobes(method: &str, other: &str) -> bool {
    [method, other].iter().all(|name| name.starts_with("kprobe "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_node::backend::BackendSelection;

    const MIB: u64 = 1 << 20;

    #[test]
    fn growth_of_a_pod_without_a_charge_is_detected() {
        let mut failover = BpfFailover::default();
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
                failover.are_charges_missed(pods.into_iter(), charges),
                expected,
                "{usage} MiB, {charges} charges"
            );
        }
        let new = [(2, 10 * MIB), (3, 500 * MIB)];
        assert!(!failover.are_charges_missed(new.into_iter(), 7), "a pod that was not known before");
    }

    fn failure(source: &'static str, backend: &'static str) -> BackendInfo {
        BackendInfo::plain(source, backend, "detached")
    }

    #[test]
    fn a_failed_charge_method_is_not_used_again_even_if_requested() {
        let choice =
            BackendSelection { only: vec!["a".to_owned(), "b".to_owned()], ..BackendSelection::default() };
        let mut options = LoadOptions { choice, ..LoadOptions::default() };
        exclude_failed(&mut options, &failure("charge", "a"));
        let BackendSelection { only, deny, failed } = &options.choice;
        assert_eq!(
            (only.as_slice(), deny.as_slice(), failed.as_slice()),
            (&["b".to_owned()][..], &[][..], &["a".to_owned()][..])
        );
        exclude_failed(&mut options, &failure("oom", "c"));
        assert_eq!(options.choice.failed, ["a"], "another class is attached again");
        exclude_failed(&mut options, &failure("charge near", "d"));
        exclude_failed(&mut options, &failure("charge near", "d"));
        assert_eq!(options.choice.failed, ["a", "d"]);
    }

    #[test]
    fn no_kprobe_is_used_again_if_one_is_silent() {
        let mut options = LoadOptions::default();
        exclude_kprobes_like(&mut options, "fexit page_counter_try_charge");
        assert!(options.choice.failed.is_empty());
        exclude_kprobes_like(&mut options, "kprobe page_counter_try_charge");
        let failed = &options.choice.failed;
        assert!(failed.iter().any(|name| name == "kprobe oom_kill_process"), "{failed:?}");
        assert!(failed.iter().all(|name| name.starts_with("kprobe ")), "{failed:?}");
    }

    #[test]
    fn a_failure_is_reported_once_and_loading_is_not_tried_forever() {
        let deny = attach_methods::names().map(str::to_owned).collect();
        let choice = BackendSelection { deny, ..BackendSelection::default() };
        let mut failover = BpfFailover::new(LoadOptions { choice, ..LoadOptions::default() });
        let metrics = Metrics::new("", "");
        failover.reload(0);
        assert!(!failover.is_loading(), "nothing failed");
        for _ in 0..2 {
            failover.fail(failure("charge near", "x"), &metrics);
            failover.fail(failure("ring", ""), &metrics);
        }
        assert_eq!(failover.failures.len(), 2);
        let mut now_ns = 0;
        for refused in 1..=MAX_REFUSED {
            failover.reload(now_ns);
            assert!(failover.is_loading());
            failover.reload(u64::MAX);
            let failed = loop {
                match failover.loaded(None) {
                    Some(loaded) => break loaded.err().unwrap(),
                    None => std::thread::yield_now(),
                }
            };
            assert!(failed.iter().all(|info| info.backend.is_empty()), "{failed:?}");
            assert!(failed[0].reason.contains("disabled by --disable-backend"), "{failed:?}");
            assert_eq!(failover.refused, refused);
            failover.reload(now_ns + RELOAD_INTERVAL_NS - 1);
            assert!(!failover.is_loading(), "too soon");
            now_ns += RELOAD_INTERVAL_NS;
        }
        failover.reload(now_ns);
        assert!(!failover.is_loading(), "not forever");
        failover.fail(failure("oom", "y"), &metrics);
        failover.reload(now_ns);
        assert!(failover.is_loading(), "something else failed");
    }
}
