//! Writes the state file from the main thread, always the latest state.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{Document, LoopState, StateFile};
use crate::error::{Failure, chain};
use crate::spsc::{Next, Receiver, Sender, channel};
use crate::telemetry::metrics::Metrics;
use eviction_node::async_fd::{register, take_count};
use eviction_node::clock::Clock;

/// States that wait while a write takes its time: only the latest counts.
const ROOM: usize = 16;

/// How long a request to the API server waits for a write: a disk that hangs is no reason to do nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes the states of the control loop.
#[derive(Debug)]
pub(crate) struct StateWriter {
    receiver: Receiver<LoopState>,
    file: StateFile,
    /// What is written next, or was written last.
    document: Document,
    /// The number of what was written last, or could not be: there is nothing more to wait for.
    written: watch::Sender<u64>,
}

/// For those that wait until something is on the disk.
#[derive(Clone, Debug)]
pub(crate) struct DurableRevision {
    progress: watch::Receiver<u64>,
    /// The last number when a wait timed out: until there is another one nothing waits again.
    given_up: Option<u64>,
    metrics: Arc<Metrics>,
}

impl StateWriter {
    /// The sender of the control loop, the writer, and what requests wait for.
    ///
    /// # Errors
    /// If there can be no channel.
    pub(super) fn new(
        file: StateFile,
        document: Document,
        metrics: &Arc<Metrics>,
    ) -> Result<(Sender<LoopState>, Self, DurableRevision), Failure> {
        let (sender, receiver) = channel(ROOM)
            .map_err(|error| Failure::because("make the channel to the state writer", &error))?;
        let (written, progress) = watch::channel(0);
        let writer = Self { receiver, file, document, written };
        Ok((sender, writer, DurableRevision { progress, given_up: None, metrics: Arc::clone(metrics) }))
    }

    /// Writes until the control loop has ended. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the channel cannot be watched.
    pub(crate) async fn run(mut self, metrics: Arc<Metrics>) -> Result<(), Failure> {
        let failed =
            |error: std::io::Error| Failure::because("watch the channel to the state writer", &error);
        let eventfd = self.receiver.eventfd().and_then(register).map_err(failed)?;
        let (mut done, mut works) = (0, true);
        loop {
            let ended = loop {
                match self.receiver.next() {
                    Next::Value(state) => self.document.state = state,
                    Next::Empty => break false,
                    Next::Ended => break true,
                }
            };
            if self.document.state.number != done {
                let result = self.write().await;
                let name = if result.is_ok() { "written" } else { "failed" };
                metrics.state_writes.with([name]).inc();
                self.say(&result, works);
                works = result.is_ok();
                done = self.document.state.number;
                self.written.send_replace(done);
                continue;
            }
            if ended {
                return Ok(());
            }
            take_count(&eventfd).await.map_err(failed)?;
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

    /// Logs a result that differs from the one before.
    fn say(&self, result: &Result<(), String>, worked: bool) {
        let file = self.file.path().display();
        match result {
            Ok(()) if !worked => tracing::info!(%file, "the state can be written again"),
            Err(why) if worked => tracing::warn!(
                %file, why,
                "the state cannot be written: decisions go on, but an agent that is started anew knows nothing of them"
            ),
            _ => {}
        }
    }
}

impl DurableRevision {
    /// Waits until the state of this number was written, or cannot be, or takes too long.
    pub(crate) async fn wait_for(&mut self, number: u64) {
        let now = *self.progress.borrow();
        if self.given_up == Some(now) || now >= number {
            return;
        }
        let is_done = |written: &u64| *written >= number;
        let is_late = tokio::time::timeout(PATIENCE, self.progress.wait_for(is_done)).await.is_err();
        if is_late {
            self.given_up = Some(*self.progress.borrow());
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

    fn writer(path: PathBuf, metrics: &Arc<Metrics>) -> (Sender<LoopState>, StateWriter, DurableRevision) {
        let identity =
            Identity { boot_id: "b".into(), node: None, cgroup_root: "/".into(), act: "evict".into() };
        let document = Document::new(identity, DecisionIds::of_this_start());
        StateWriter::new(StateFile::at(path), document, metrics).unwrap()
    }

    fn kept(number: u64) -> LoopState {
        LoopState { number, decisions: number, ..LoopState::default() }
    }

    fn decisions(path: &Path) -> u64 {
        let value: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        value["state"]["decisions"].as_u64().unwrap()
    }

    fn with_runtime(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn who_waits_goes_on_when_it_is_on_the_disk() {
        with_runtime(async {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("state.json");
            let metrics = Arc::new(Metrics::new("0", "0"));
            let (mut sender, keeper, mut written) = self::writer(path.clone(), &metrics);
            let work = tokio::spawn(keeper.run(Arc::clone(&metrics)));
            for number in 1..20 {
                sender.send(kept(number)).unwrap();
                written.wait_for(number).await;
                assert_eq!(decisions(&path), number);
            }
            // Whatever is left is written before the end.
            sender.send(kept(20)).unwrap();
            drop(sender);
            work.await.unwrap().unwrap();
            assert_eq!(decisions(&path), 20);
            assert_eq!(metrics.state_writes.with(["late"]).get(), 0);
        });
    }

    #[test]
    fn nobody_waits_for_what_cannot_be_written() {
        with_runtime(async {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("file"), "").unwrap();
            let metrics = Arc::new(Metrics::new("0", "0"));
            let path = folder.path().join("file/state.json");
            let (mut sender, keeper, mut written) = self::writer(path.clone(), &metrics);
            let work = tokio::spawn(keeper.run(Arc::clone(&metrics)));
            sender.send(kept(1)).unwrap();
            written.wait_for(1).await;
            let of = |result| metrics.state_writes.with([result]).get();
            assert_eq!((of("failed"), of("late")), (1, 0));
            drop(sender);
            work.await.unwrap().unwrap();
        });
    }

    #[test]
    fn a_disk_that_hangs_is_waited_for_once() {
        with_runtime(async {
            let metrics = Arc::new(Metrics::new("0", "0"));
            // Nobody writes.
            let (_lane, _keeper, mut written) = writer(PathBuf::from("/nowhere"), &metrics);
            for number in 1..10 {
                written.wait_for(number).await;
            }
            assert_eq!(metrics.state_writes.with(["late"]).get(), 1);
        });
    }
}
