//! Writes the state file from the main thread, always the latest state.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::{Document, LoopState, StateFile};
use crate::error::{Failure, chain};
use crate::spsc::{Receiver, Sender, channel};
use crate::telemetry::metrics::Metrics;
use eviction_node::clock::Clock;

/// The capacity of the channel for states while a write is slow: only the latest counts.
const CAPACITY: usize = 16;

/// How long a request to the API server waits for a write: a disk that hangs must not stop evictions.
const WAIT_TIMEOUT: Duration = Duration::from_secs(1);

/// After which time a failed write is tried again, if no new state comes before.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Writes the states of the control loop.
#[derive(Debug)]
pub(crate) struct StateWriter {
    receiver: Receiver<LoopState>,
    file: StateFile,
    /// The document that is written next, or was written last.
    document: Document,
    /// The number of the last state that was written or failed to be written: there is no more to wait for.
    written: watch::Sender<u64>,
    retry_interval: Duration,
    metrics: Arc<Metrics>,
}

/// Lets requests wait until a state is on the disk.
#[derive(Clone, Debug)]
pub(crate) struct DurableRevision {
    progress: watch::Receiver<u64>,
    /// The last number when a wait timed out: until there is another one no wait is repeated.
    timed_out_at: Option<u64>,
    metrics: Arc<Metrics>,
}

impl StateWriter {
    /// Returns the sender for the control loop, and the writer.
    ///
    /// # Errors
    /// If the channel cannot be created.
    pub(super) fn new(
        file: StateFile,
        document: Document,
        metrics: &Arc<Metrics>,
    ) -> Result<(Sender<LoopState>, Self), Failure> {
        let (sender, receiver) = channel(CAPACITY)
            .map_err(|error| Failure::because("make the channel to the state writer", &error))?;
        let (written, metrics) = (watch::Sender::new(0), Arc::clone(metrics));
        let retry_interval = RETRY_INTERVAL;
        Ok((sender, Self { receiver, file, document, written, retry_interval, metrics }))
    }

    /// Returns what requests wait for.
    pub(crate) fn durable_revision(&self) -> DurableRevision {
        let (progress, metrics) = (self.written.subscribe(), Arc::clone(&self.metrics));
        DurableRevision { progress, timed_out_at: None, metrics }
    }

    /// Writes until the control loop has ended. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the channel cannot be watched.
    pub(crate) async fn run(mut self) -> Result<(), Failure> {
        let failed =
            |error: std::io::Error| Failure::because("watch the channel to the state writer", &error);
        let wakeups = self.receiver.wakeups().map_err(failed)?;
        let mut works = true;
        loop {
            let next = self.receiver.recv(&wakeups);
            let next = if works { Ok(next.await) } else { timeout(self.retry_interval, next).await };
            match next {
                Ok(state) => match state.map_err(failed)? {
                    Some(state) => self.document.state = state,
                    None => return Ok(()),
                },
                // The state that could not be written is written again.
                Err(_elapsed) => {}
            }
            // Only the latest state counts.
            while let Ok(state) = self.receiver.try_recv() {
                self.document.state = state;
            }
            let result = self.write().await;
            let name = if result.is_ok() { "written" } else { "failed" };
            self.metrics.state_writes.with([name]).inc();
            self.log_result(&result, works);
            works = result.is_ok();
            self.written.send_replace(self.document.state.number);
        }
    }

    async fn write(&mut self) -> Result<(), String> {
        self.document.clock = Clock::start();
        self.document.written = self.document.clock.now().wall;
        let content = serde_json::to_vec(&self.document).map_err(|error| chain(&error))?;
        let file = self.file.clone();
        let written = tokio::task::spawn_blocking(move || file.write(&content)).await;
        written.map_err(|error| chain(&error))?.map_err(|error| chain(&error))
    }

    /// Logs a result that differs from the previous one.
    fn log_result(&self, result: &Result<(), String>, worked: bool) {
        let file = self.file.path.display();
        match result {
            Ok(()) if !worked => tracing::info!(%file, "the state can be written again"),
            Err(why) if worked => tracing::warn!(
                %file, why,
                "the state cannot be written: decisions go on, but a restarted agent will not know them"
            ),
            _ => {}
        }
    }
}

impl DurableRevision {
    /// Waits until the state of this number was written, failed to be written, or takes too long.
    pub(crate) async fn wait_for(&mut self, number: u64) {
        let now = *self.progress.borrow();
        if self.timed_out_at == Some(now) || now >= number {
            return;
        }
        let is_done = |written: &u64| *written >= number;
        let is_late = timeout(WAIT_TIMEOUT, self.progress.wait_for(is_done)).await.is_err();
        if is_late {
            self.timed_out_at = Some(*self.progress.borrow());
            self.metrics.state_writes.with(["late"]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::super::Identity;
    use super::*;
    use crate::telemetry::queue::DecisionIds;

    fn writer(path: PathBuf) -> (Sender<LoopState>, StateWriter, DurableRevision) {
        let identity =
            Identity { boot_id: "b".into(), node: None, cgroup_root: "/".into(), action: "evict".into() };
        let document = Document::new(identity, DecisionIds::of_this_start());
        let metrics = Arc::new(Metrics::new("0", "0"));
        let (sender, writer) = StateWriter::new(StateFile::at(path), document, &metrics).unwrap();
        let written = writer.durable_revision();
        (sender, writer, written)
    }

    fn numbered(number: u64) -> LoopState {
        LoopState { number, decisions: number, ..LoopState::default() }
    }

    fn decisions(path: &Path) -> u64 {
        let value: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        value["state"]["decisions"].as_u64().unwrap()
    }

    #[tokio::test]
    async fn a_wait_ends_when_the_state_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let (mut sender, writer, mut written) = writer(path.clone());
        let work = tokio::spawn(writer.run());
        for number in 1..20 {
            sender.send(numbered(number)).unwrap();
            written.wait_for(number).await;
            assert_eq!(decisions(&path), number);
        }
        // A state that is still in the channel is written before the end.
        sender.send(numbered(20)).unwrap();
        drop(sender);
        work.await.unwrap().unwrap();
        assert_eq!(decisions(&path), 20);
        assert_eq!(written.metrics.state_writes.with(["late"]).get(), 0);
    }

    #[tokio::test]
    async fn a_wait_ends_when_the_write_fails() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        let (mut sender, writer, mut written) = writer(folder.path().join("file/state.json"));
        let work = tokio::spawn(writer.run());
        sender.send(numbered(1)).unwrap();
        written.wait_for(1).await;
        let of = |result| written.metrics.state_writes.with([result]).get();
        assert_eq!((of("failed"), of("late")), (1, 0));
        drop(sender);
        work.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_failed_write_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let in_the_way = folder.path().join("file");
        std::fs::write(&in_the_way, "").unwrap();
        let path = in_the_way.join("state.json");
        let (mut sender, mut writer, mut written) = writer(path.clone());
        writer.retry_interval = Duration::from_millis(1);
        let work = tokio::spawn(writer.run());
        sender.send(numbered(1)).unwrap();
        written.wait_for(1).await;
        std::fs::remove_file(&in_the_way).unwrap();
        while written.metrics.state_writes.with(["written"]).get() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(decisions(&path), 1);
        drop(sender);
        work.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_hanging_write_delays_only_the_first_wait() {
        // The writer does not run.
        let (_sender, _writer, mut written) = writer(PathBuf::from("/nowhere"));
        for number in 1..10 {
            written.wait_for(number).await;
        }
        assert_eq!(written.metrics.state_writes.with(["late"]).get(), 1);
    }
}
