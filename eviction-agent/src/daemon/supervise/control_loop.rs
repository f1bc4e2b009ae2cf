//! The thread of the control loop, as the main thread starts and stops it.

use std::thread::JoinHandle;

use rustix::thread::Pid;
use tokio::sync::{mpsc, oneshot};

use super::STOP_TIMEOUT;
use crate::daemon::control_loop::Command;
use crate::daemon::startup::{self, Plan, Ready, TelemetryOutputs};
use crate::error::Failure;
use eviction_node::pod_index::PodIndex;

/// Commands that wait for the loop.
const COMMANDS: usize = 4;

/// The running thread.
pub(super) struct ControlLoopThread {
    thread: JoinHandle<Result<(), Failure>>,
    pub(super) id: Pid,
    pub(super) commands: mpsc::Sender<Command>,
}

impl ControlLoopThread {
    /// Starts the thread and waits until its loop runs.
    ///
    /// # Errors
    /// Why the loop could not start.
    pub(super) async fn start(
        plan: Plan,
        pods: PodIndex,
        outputs: TelemetryOutputs,
    ) -> Result<(Self, Ready), Failure> {
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let (ready_sender, ready) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("control-loop".to_owned())
            .spawn(move || startup::react(plan, pods, outputs, receiver, ready_sender))
            .map_err(|error| Failure::because("start the control loop", &error))?;
        match ready.await {
            Ok(ready) => Ok((Self { thread, id: ready.thread, commands }, ready)),
            Err(_) => {
                joined(thread)?;
                Err(Failure::failed("start: the control loop ended at once"))
            }
        }
    }

    /// Ends the loop and waits for the thread.
    pub(super) async fn stop(self) -> Result<(), Failure> {
        let Self { thread, id: _, commands } = self;
        // A full queue means that the thread is busy; dropping the sender ends it as well.
        drop(commands.try_send(Command::Stop));
        drop(commands);
        let join = tokio::task::spawn_blocking(move || joined(thread));
        match tokio::time::timeout(STOP_TIMEOUT, join).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(Failure::failed("stop: the control loop did not end in time")),
        }
    }
}

fn joined(thread: JoinHandle<Result<(), Failure>>) -> Result<(), Failure> {
    thread.join().unwrap_or_else(|_| Err(Failure::failed("run: the control loop panicked")))
}
