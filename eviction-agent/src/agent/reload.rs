//! The configuration, read anew when the agent is told to (SIGHUP).

use tokio::signal::unix::Signal;
use tokio::task::JoinHandle;

use super::configuration::{Configuration, ConfigurationFiles};
use super::failure::Failure;

/// Reads the files again at each signal, on a thread for blocking work.
pub(crate) struct Reload {
    files: ConfigurationFiles,
    hangup: Signal,
    reading: Option<JoinHandle<Result<Configuration, Failure>>>,
}

impl Reload {
    pub(crate) fn new(files: ConfigurationFiles, hangup: Signal) -> Self {
        Self { files, hangup, reading: None }
    }

    /// Waits for the next signal; what the files say then, or everything that is wrong with them.
    pub(crate) async fn changed(&mut self) -> Result<Configuration, Vec<String>> {
        loop {
            let Some(reading) = &mut self.reading else {
                if self.hangup.recv().await.is_none() {
                    return std::future::pending().await;
                }
                let files = self.files.clone();
                self.reading = Some(tokio::task::spawn_blocking(move || files.load()));
                continue;
            };
            let read = reading.await;
            self.reading = None;
            return match read {
                Ok(loaded) => loaded.map_err(Failure::into_causes),
                Err(error) => Err(vec![format!("read the configuration: {error}")]),
            };
        }
    }
}
