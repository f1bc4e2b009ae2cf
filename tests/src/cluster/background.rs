//! A thread that runs asynchronous tasks, so that tests can be written synchronously.

use std::future::Future;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// The thread. It ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Background(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub(super) fn start() -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().context("start a runtime")?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("cluster".to_owned())
            .spawn(move || {
                // An error means that the last clone was dropped, which ends the thread as well.
                let _ = runtime.block_on(stopped);
            })
            .context("start a thread")?;
        Ok(Self(Arc::new(Inner { handle, stop: Some(stop), thread: Some(thread) })))
    }

    /// Runs a future to its end.
    pub(super) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.handle.block_on(future)
    }

    /// Returns the handle on which tasks are started.
    pub(super) fn handle(&self) -> &Handle {
        &self.0.handle
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}
