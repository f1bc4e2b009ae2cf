//! Which rungs may be used, as `run` and `check` are told.

use clap::Args;

use crate::agent;

#[derive(Debug, Args)]
pub(super) struct RungArgs {
    /// Of the ladder that this rung is on use no other, for instance "kprobe
    /// page_counter_try_charge"; may be repeated.
    #[arg(long, value_name = "NAME", value_parser = known)]
    rung: Vec<String>,
    /// Do not use this rung; may be repeated.
    #[arg(long, value_name = "NAME", value_parser = deniable)]
    deny_rung: Vec<String>,
}

impl From<RungArgs> for agent::Choice {
    fn from(args: RungArgs) -> Self {
        let RungArgs { rung, deny_rung } = args;
        Self { only: rung, deny: deny_rung, lost: Vec::new() }
    }
}

fn known(name: &str) -> Result<String, String> {
    match agent::rung_names().any(|known| known == name) {
        true => Ok(name.to_owned()),
        false => {
            let names: Vec<_> = agent::rung_names().map(|name| format!("`{name}`")).collect();
            Err(format!("there is no such rung; there are {}", names.join(", ")))
        }
    }
}

fn deniable(name: &str) -> Result<String, String> {
    match known(name)? {
        name if name == agent::TIMER => Err("the timer is what every other rung falls back on".to_owned()),
        name => Ok(name),
    }
}
