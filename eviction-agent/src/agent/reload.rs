//! The configuration, read anew when the agent is told to (SIGHUP), and remembered once it is in
//! force.

use tokio::signal::unix::Signal;
use tokio::task::JoinHandle;

use super::configuration::{Configuration, ConfigurationFiles};
use super::failure::{Failure, chain};
use super::remembered::{Kept, Remembered};
use crate::core::policy::Policy;

/// What a start brings along beside the configuration in force.
#[derive(Debug, Default)]
pub(crate) struct Change {
    remembered: Option<Remembered>,
    /// The files say something else than what was in force when the agent ended.
    proposed: Option<Configuration>,
}

impl Change {
    /// The configuration to start with, and the change that the files are since the agent ended.
    /// Where nothing is remembered, there is nothing to hold them against.
    pub(crate) fn since(
        remembered: Option<Remembered>,
        configured: Configuration,
        files: &ConfigurationFiles,
        accept: bool,
    ) -> (Configuration, Self) {
        let Some(memory) = remembered else {
            return (configured, Self::default());
        };
        let former = match memory.load() {
            Some(Ok(former)) if !accept => Some(former),
            Some(Ok(_)) | None => None,
            Some(Err(failure)) => {
                for cause in failure.into_causes() {
                    tracing::warn!(
                        cause,
                        "the remembered configuration cannot be used; the files count at once"
                    );
                }
                None
            }
        };
        if former.is_none() {
            remember(&memory, files, &configured);
        }
        let remembered = Some(memory);
        match former.filter(|former| former.policy != configured.policy) {
            Some(former) => {
                tracing::warn!(
                    "the configuration was changed since the agent ended; it is held against the present"
                );
                (former, Self { remembered, proposed: Some(configured) })
            }
            None => (configured, Self { remembered, proposed: None }),
        }
    }
}

/// Reads the files again at each signal, on a thread for blocking work.
pub(crate) struct Reload {
    files: ConfigurationFiles,
    hangup: Signal,
    reading: Option<JoinHandle<Result<Configuration, Failure>>>,
    remembered: Option<Remembered>,
    /// Proposed and not said yet.
    unsaid: Option<Configuration>,
    /// What was proposed last.
    proposed: Option<Configuration>,
}

impl Reload {
    pub(crate) fn new(files: ConfigurationFiles, hangup: Signal, change: Change) -> Self {
        let Change { remembered, proposed: unsaid } = change;
        Self { files, hangup, reading: None, remembered, unsaid, proposed: None }
    }

    /// Waits for the next change; what the files say then, or everything that is wrong with them.
    pub(crate) async fn changed(&mut self) -> Result<Policy, Vec<String>> {
        loop {
            if let Some(configuration) = self.unsaid.take() {
                return Ok(self.propose(configuration));
            }
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
                Ok(Ok(configuration)) => Ok(self.propose(configuration)),
                Ok(Err(failure)) => Err(failure.into_causes()),
                Err(error) => Err(vec![format!("read the configuration: {error}")]),
            };
        }
    }

    /// What was proposed last is in force.
    pub(crate) fn remember(&mut self) {
        if let (Some(memory), Some(in_force)) = (self.remembered.clone(), self.proposed.take()) {
            let files = self.files.clone();
            tokio::task::spawn_blocking(move || remember(&memory, &files, &in_force));
        }
    }

    fn propose(&mut self, configuration: Configuration) -> Policy {
        configuration.log();
        let policy = configuration.policy.clone();
        self.proposed = Some(configuration);
        policy
    }
}

fn remember(memory: &Remembered, files: &ConfigurationFiles, in_force: &Configuration) {
    match memory.keep(files, in_force) {
        Ok(Kept::Yes) => {}
        Ok(Kept::ChangedSince) => {
            tracing::warn!("the configuration files were changed again; what they said is not remembered");
        }
        Err(error) => {
            tracing::warn!(
                error = chain(&error),
                "the configuration in force cannot be remembered over a restart"
            );
        }
    }
}
