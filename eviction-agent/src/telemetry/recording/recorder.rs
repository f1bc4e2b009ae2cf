//! The recorder: the control loop's end of a recording, and the thread that writes it. No thread waits for it.
//!
//! The control loop's end is a bounded queue. Samples are copied into buffers that are returned, so that a sample
//! needs no allocation. An input that does not fit is lost and counted, and all later inputs as well until the next
//! [`Key`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TryRecvError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use eviction_core::input::{Event, Input};
use eviction_core::record::{DecisionRecord, PodSample};
use eviction_core::snapshot::Snapshot;
use eviction_node::clock::Clock;
use eviction_node::thread::{Priority, set_priority};
use prometheus_client::metrics::counter::Counter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::writer::{Limits, Writer};
use super::{Key, Recorded, SegmentHeader};
use crate::error::Failure;
use crate::spsc::{Receiver, Sender, channel};
use crate::telemetry::metrics::{MetricGroup, Metrics};

/// The maximum number of inputs that wait for the recorder.
const INPUTS: usize = 512;
/// The maximum number of samples among them.
const SAMPLES: usize = 32;

/// The queue for the inputs of the engine.
#[derive(Debug)]
pub(crate) struct RecordingQueue {
    queue: Sender<Recorded>,
    /// Buffers of samples that were written, for reuse.
    buffers: Receiver<Arc<Snapshot>>,
    /// Whether the recorder wants to begin a segment.
    wants_key: Arc<AtomicBool>,
    /// The number of inputs that were lost since the last key. `None` before the first key: that key has all state
    /// of earlier inputs.
    lost: Option<u64>,
    dropped: Counter,
    /// Whether the decisions of the engine are not carried out.
    dry_run: bool,
}

impl RecordingQueue {
    /// Returns whether to send a [`Key`] at the end of an iteration.
    pub(crate) fn wants_key(&self) -> bool {
        let is_due = self.wants_key.load(Ordering::Relaxed) || self.lost.is_some_and(|lost| lost > 0);
        is_due && !self.queue.is_full()
    }

    /// Begins a segment with this key.
    pub(crate) fn key(&mut self, key: Key) {
        let key = Key { lost: self.lost.unwrap_or_default(), dry_run: self.dry_run, ..key };
        if self.queue.send(Recorded::Key(Box::new(key))).is_ok() {
            self.wants_key.store(false, Ordering::Relaxed);
            self.lost = Some(0);
        }
    }

    /// Records an input.
    pub(crate) fn input(&mut self, input: &Input) {
        let event = match &input.event {
            Event::Sample(sample) => self.copy(sample).map(Event::Sample),
            Event::Reclaimed(Ok(sample)) => self.copy(sample).map(|copy| Event::Reclaimed(Ok(copy))),
            Event::Admission(_) => return,
            other => Some(other.clone()),
        };
        self.send(event.map(|event| Recorded::Input(Input { at: input.at, event })));
    }

    /// Records an entry, or loses and counts it.
    pub(crate) fn send(&mut self, recorded: Option<Recorded>) {
        let Some(lost) = &mut self.lost else { return };
        if *lost > 0 || recorded.is_none_or(|recorded| self.queue.send(recorded).is_err()) {
            *lost += 1;
            self.dropped.inc();
        }
    }

    /// Copies a sample into a buffer. Returns `None` if the copy would not be sent, because the buffer would not be
    /// returned.
    fn copy(&mut self, sample: &Snapshot) -> Option<Arc<Snapshot>> {
        if self.lost != Some(0) || self.queue.is_full() {
            return None;
        }
        let mut copy = self.buffers.try_recv().ok()?;
        Arc::get_mut(&mut copy)?.copy_from(sample);
        Some(copy)
    }
}

/// The queue for the reports of telemetry: decisions and the usage of pods. It owns the recorder's thread.
#[derive(Debug)]
pub(crate) struct ReportQueue {
    queue: Sender<Recorded>,
    dropped: Counter,
    thread: JoinHandle<()>,
}

impl ReportQueue {
    /// Records a decision.
    pub(crate) fn decision(&mut self, record: &DecisionRecord) {
        match serde_json::to_string(record) {
            Ok(json) => self.send(Recorded::Decision(json)),
            Err(error) => tracing::error!(%error, "a decision cannot be serialised"),
        }
    }

    /// Records the usage of pods.
    pub(crate) fn usage(&mut self, sample: &PodSample) {
        self.send(Recorded::Usage(sample.at, Arc::clone(&sample.snapshot)));
    }

    /// Waits until everything is written, after the other queue was dropped.
    pub(crate) fn finish(self) {
        drop(self.queue);
        drop(self.thread.join());
    }

    fn send(&mut self, recorded: Recorded) {
        if self.queue.send(recorded).is_err() {
            self.dropped.inc();
        }
    }
}

/// The maximum number of decisions and usage samples that wait.
const REPORTS: usize = 64;

/// The time after an error in which the recorder does not retry.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// The interval in which the limits are checked.
const LIMIT_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Starts the recorder's thread, and returns its two queues.
///
/// # Errors
/// If the directory cannot be used, or another agent records there.
pub(crate) fn start(
    limits: Limits,
    header: SegmentHeader,
    clock: Clock,
    dry_run: bool,
    metrics: &Arc<Metrics>,
) -> Result<(RecordingQueue, ReportQueue), Failure> {
    let directory = limits.directory.display().to_string();
    let failed = |error: io::Error| Failure::because(format!("record in {directory}"), &error);
    metrics.with(MetricGroup::Recorder);
    let writer = Writer::open(limits, header).map_err(failed)?;
    let (queue, inputs) = channel(INPUTS).map_err(failed)?;
    let (mut buffers, returned) = channel(SAMPLES).map_err(failed)?;
    let (report_queue, reports) = channel(REPORTS).map_err(failed)?;
    for _ in 0..SAMPLES {
        drop(buffers.send(Arc::new(Snapshot::default())));
    }
    let wants_key = Arc::new(AtomicBool::new(true));
    let recorder = Recorder {
        writer,
        inputs,
        reports,
        buffers,
        wants_key: Arc::clone(&wants_key),
        clock,
        metrics: Arc::clone(metrics),
        paused_until: None,
        next_limit_check: Instant::now(),
    };
    let thread = std::thread::Builder::new()
        .name("recorder".to_owned())
        .spawn(move || recorder.run())
        .map_err(|error| Failure::because("start the recorder", &error))?;
    let dropped = metrics.telemetry_dropped.with(["recorder"]);
    let inputs =
        RecordingQueue { queue, buffers: returned, wants_key, lost: None, dropped: dropped.clone(), dry_run };
    Ok((inputs, ReportQueue { queue: report_queue, dropped, thread }))
}

struct Recorder {
    writer: Writer,
    inputs: Receiver<Recorded>,
    reports: Receiver<Recorded>,
    buffers: Sender<Arc<Snapshot>>,
    wants_key: Arc<AtomicBool>,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// The end of the pause after an error.
    paused_until: Option<Instant>,
    next_limit_check: Instant,
}

impl Recorder {
    fn run(mut self) {
        // Only the I/O priority is idle: the thread needs little CPU time, and near a threshold it must keep up.
        set_priority(Priority::Idle);
        let mut is_busy = false;
        loop {
            let timeout = Timespec { tv_sec: i64::from(!is_busy), tv_nsec: 0 };
            let mut fds =
                [PollFd::new(&self.inputs, PollFlags::IN), PollFd::new(&self.reports, PollFlags::IN)];
            // The result of `poll` does not matter: both queues are read again.
            let _ = poll(&mut fds, Some(&timeout));
            self.inputs.clear();
            self.reports.clear();
            // Reports are read before inputs but written after them, so that the inputs of a decision precede it.
            let (reports, reports_ended) = waiting(&mut self.reports);
            let (inputs, inputs_ended) = waiting(&mut self.inputs);
            inputs.into_iter().chain(reports).for_each(|recorded| self.take(recorded));
            let flushed = self.writer.flush();
            self.check(flushed);
            if inputs_ended && reports_ended {
                return;
            }
            is_busy = self.maintain();
        }
    }

    fn take(&mut self, recorded: Recorded) {
        let taken = self.writer.take(&recorded, |at| self.clock.shown(at));
        self.check(taken);
        if let Recorded::Input(Input {
            event: Event::Sample(sample) | Event::Reclaimed(Ok(sample)), ..
        }) = recorded
        {
            // The queue has room for all buffers.
            drop(self.buffers.send(sample));
        }
    }

    /// Checks a result. After an error the recorder pauses and then begins a new segment.
    fn check(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.writer.abort();
            self.metrics.recorder_write_errors.inc();
            if self.paused_until.is_none() {
                tracing::warn!(%error, "the recorder cannot write; it tries again every {} s", RETRY_DELAY.as_secs());
            }
            self.paused_until = Some(Instant::now() + RETRY_DELAY);
        } else if self.writer.is_open() {
            self.paused_until = None;
        }
        self.metrics.recorder_up.set(i64::from(self.writer.is_open()));
    }

    /// Enforces the limits and compresses. Returns whether there is more to do.
    fn maintain(&mut self) -> bool {
        let now = Instant::now();
        if now >= self.next_limit_check {
            self.next_limit_check = now + LIMIT_CHECK_INTERVAL;
            match self.writer.enforce_limits() {
                Ok(bytes) => {
                    self.metrics.recorder_size.set(i64::try_from(bytes).unwrap_or(i64::MAX));
                }
                Err(error) => self.check(Err(error)),
            }
        }
        let is_paused = self.paused_until.is_some_and(|until| now < until);
        if self.writer.wants_key() && !is_paused {
            self.wants_key.store(true, Ordering::Relaxed);
        }
        match self.writer.compress() {
            Ok(more) => more,
            Err(error) => {
                self.metrics.recorder_write_errors.inc();
                tracing::warn!(%error, "a segment cannot be compressed; it stays as it is");
                false
            }
        }
    }
}

/// Returns the entries that wait in a queue, and whether the queue has ended.
fn waiting(queue: &mut Receiver<Recorded>) -> (Vec<Recorded>, bool) {
    let mut waiting = Vec::new();
    loop {
        match queue.try_recv() {
            Ok(recorded) => waiting.push(recorded),
            Err(end) => return (waiting, end == TryRecvError::Disconnected),
        }
    }
}

#[cfg(test)]
mod tests {
    use eviction_core::fixture::{at, hard, policy};
    use eviction_core::signal::Signal::MemoryAvailable;

    use super::*;
    use crate::telemetry::recording::tests::{key_of, sample};

    #[test]
    fn sample_that_does_not_fit_is_counted_and_takes_no_buffer() {
        let (queue, mut inputs) = channel(1).unwrap();
        let (mut buffers, returned) = channel(1).unwrap();
        buffers.send(Arc::new(Snapshot::default())).unwrap();
        let mut recorder = RecordingQueue {
            queue,
            buffers: returned,
            wants_key: Arc::new(AtomicBool::new(true)),
            lost: None,
            dropped: Counter::default(),
            dry_run: false,
        };
        recorder.key(key_of(policy(vec![hard(MemoryAvailable, "100")])));
        recorder.input(&Input { at: at(1), event: Event::Sample(sample(1, 2)) });
        assert_eq!((recorder.lost, recorder.dropped.get()), (Some(1), 1));
        assert!(!recorder.wants_key(), "a key does not fit either");
        assert!(matches!(inputs.try_recv(), Ok(Recorded::Key(_))));
        assert!(recorder.wants_key());
        assert!(recorder.buffers.try_recv().is_ok());
    }
}
