//! What is done with the pods that are chosen for eviction.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::problem::Problem;

/// What is done with the chosen pods. A change takes effect when the agent is restarted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Action {
    /// Decisions are reported and nothing is done.
    #[default]
    None,
    /// The processes in the pod's cgroup are killed.
    Kill,
    /// The API server is asked to evict the pod.
    Evict,
}

/// How much of the action is left out. A change takes effect when the agent is restarted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DryRun {
    /// The action is carried out.
    #[default]
    None,
    /// The agent reports what it would do, and sends no request.
    Client,
    /// The API server gets the requests with `dryRun: All`: it checks them and changes nothing.
    /// For the action Evict only.
    Server,
}

/// The action together with its dry run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActionSettings {
    /// What is done.
    pub action: Action,
    /// How much of it is left out.
    pub dry_run: DryRun,
}

impl Action {
    /// The value as the command line and events have it.
    pub const fn lower_name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Kill => "kill",
            Self::Evict => "evict",
        }
    }
}

impl DryRun {
    /// The value as the command line and events have it.
    pub const fn lower_name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

impl ActionSettings {
    /// Checks that the dry run fits the action.
    ///
    /// # Errors
    /// A server dry run without anything that is asked of the API server.
    pub fn check(self) -> Result<(), Problem> {
        match self {
            Self { action: Action::Evict, .. } | Self { dry_run: DryRun::None | DryRun::Client, .. } => {
                Ok(())
            }
            Self { action, dry_run: DryRun::Server } => {
                let cause = format!(
                    "`Server` needs the action Evict, which asks the API server; the action is {action:?}"
                );
                Err(Problem::new("dryRun", cause))
            }
        }
    }

    /// Whether nothing on the node or in the cluster changes.
    pub fn is_dry(self) -> bool {
        self.action == Action::None || self.dry_run != DryRun::None
    }

    /// Whether evictions are requested from the API server, be it in a dry run of its own.
    pub fn asks_server(self) -> bool {
        self.action == Action::Evict && self.dry_run != DryRun::Client
    }

    /// Whether processes are killed as the action itself.
    pub fn kills(self) -> bool {
        self.action == Action::Kill && !self.is_dry()
    }
}

impl fmt::Display for ActionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, dry_run } = self;
        write!(f, "{}", action.lower_name())?;
        match dry_run {
            DryRun::None => Ok(()),
            DryRun::Client | DryRun::Server => write!(f, " (dry run: {})", dry_run.lower_name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_eviction_has_a_server_dry_run() {
        for (action, dry_run, is_valid) in [
            (Action::None, DryRun::Client, true),
            (Action::None, DryRun::Server, false),
            (Action::Kill, DryRun::Client, true),
            (Action::Kill, DryRun::Server, false),
            (Action::Evict, DryRun::Client, true),
            (Action::Evict, DryRun::Server, true),
        ] {
            let checked = ActionSettings { action, dry_run }.check();
            assert_eq!(checked.is_ok(), is_valid, "{action:?} {dry_run:?}");
            if let Err(problem) = checked {
                assert!(problem.to_string().contains(&format!("{action:?}")), "{problem}");
            }
        }
    }

    #[test]
    fn a_client_dry_run_asks_nobody_and_kills_nothing() {
        let settings = |action, dry_run| ActionSettings { action, dry_run };
        assert!(!settings(Action::Evict, DryRun::Client).asks_server());
        assert!(settings(Action::Evict, DryRun::Server).asks_server());
        assert!(settings(Action::Evict, DryRun::Server).is_dry());
        assert!(settings(Action::Kill, DryRun::Client).is_dry());
        assert!(!settings(Action::Kill, DryRun::Client).kills());
        assert!(settings(Action::Kill, DryRun::None).kills());
        assert!(ActionSettings::default().is_dry());
    }
}
