//! The options `--backend` and `--disable-backend`.

use clap::Args;

use crate::daemon;

#[derive(Debug, Args)]
#[command(next_help_heading = "Kernel")]
pub(super) struct BackendArgs {
    /// Use only this backend for its source, for example "kprobe page_counter_try_charge";
    /// repeatable. `check -o wide` lists the backends.
    #[arg(long = "backend", value_name = "NAME", value_parser = known)]
    only: Vec<String>,
    /// Do not use this backend; repeatable.
    #[arg(long = "disable-backend", value_name = "NAME", value_parser = can_be_disabled)]
    disabled: Vec<String>,
}

impl From<BackendArgs> for daemon::BackendSelection {
    fn from(args: BackendArgs) -> Self {
        let BackendArgs { only, disabled } = args;
        Self { only, deny: disabled, lost: Vec::new() }
    }
}

fn known(name: &str) -> Result<String, String> {
    match daemon::rung_names().any(|known| known == name) {
        true => Ok(name.to_owned()),
        false => {
            let names: Vec<_> = daemon::rung_names().map(|name| format!("`{name}`")).collect();
            Err(format!("no such backend; the backends are {}", names.join(", ")))
        }
    }
}

fn can_be_disabled(name: &str) -> Result<String, String> {
    match known(name)? {
        name if name == daemon::TIMER => {
            Err("the timer cannot be disabled: every other backend falls back to it".to_owned())
        }
        name => Ok(name),
    }
}
