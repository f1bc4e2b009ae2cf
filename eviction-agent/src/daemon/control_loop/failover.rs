//! A rung of the kernel side was lost: said, counted, and another one taken.

use crate::telemetry::metrics::{BackendLabels, Metrics};
use eviction_bpf::BackendInfo;

use super::super::failover::BackendFailure;
use super::super::monitor::{BackendChanged, BpfMonitor};
use super::super::startup::source_event;
use super::ControlLoop;
use crate::telemetry::event_log::Event;
use crate::telemetry::queue::TelemetryEvent;

impl ControlLoop {
    /// Finds out whether the kernel side still tells what it should.
    pub(super) fn examine_rungs(&mut self, now_ns: u64) {
        let pods = self.eyes.sampler.last_pods().iter();
        let usage = pods.filter_map(|pod| Some((pod.memory.cgroup_id, pod.memory.usage.known()?)));
        self.hook.examine(usage, now_ns).for_each(|lapse| tell(lapse, &self.metrics));
    }

    pub(super) fn tell_lapse(&self, lapse: &BackendFailure) {
        tell(lapse, &self.metrics);
    }

    /// What stood beside the hook for charges tells nothing any more.
    pub(super) fn give_up(&mut self, lapse: &BackendFailure) {
        self.tell_lapse(lapse);
        self.tell_sources(vec![BackendInfo::plain(lapse.source, "", &*lapse.why)]);
    }

    /// Takes the rungs that were loaded in place of lost ones. True if the old ones told something last at which
    /// there is to be a look.
    pub(super) fn move_on(&mut self) -> bool {
        let Some(BackendChanged { told, sources }) = self.hook.move_on(&self.metrics) else { return false };
        let is_carried_out = told.kernel_kill.is_some();
        let crossed = self.take_told(told);
        // Nothing is armed there yet, and nobody has told what came and went in between.
        self.state.look_anew();
        self.tell_sources(sources);
        is_carried_out || crossed.is_some()
    }

    /// Nothing of the kernel side is left, for now.
    pub(super) fn tell_nothing(&mut self, why: &str) {
        self.tell_sources(BpfMonitor::none(why));
    }

    fn tell_sources(&mut self, sources: Vec<BackendInfo>) {
        for info in sources {
            self.notes
                .send(TelemetryEvent::Event(Box::new(Event::Backend(source_event(info))), self.clock.now()));
        }
    }
}

fn tell(lapse: &BackendFailure, metrics: &Metrics) {
    let BackendFailure { source, rung, why } = lapse;
    tracing::warn!(source, rung, why, "a rung is lost: another one takes its place, and the timer goes on");
    let labels = BackendLabels::new(source, rung);
    metrics.backend_failures.get_or_create(&labels).inc();
}
