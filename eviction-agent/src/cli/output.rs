//! How what was found is written.

use clap::ValueEnum;
use serde::Serialize;

use crate::agent::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Table,
    Json,
    Yaml,
}

impl Format {
    /// Writes `what`, named `name` should that fail, to standard output; `table` is for people.
    pub(super) fn print<T: Serialize>(
        self,
        name: &str,
        what: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let failed = |error: &dyn std::error::Error| Failure::because(format!("write {name}"), error);
        match self {
            Self::Table => print!("{}", table(what)),
            Self::Json => {
                println!("{}", serde_json::to_string_pretty(what).map_err(|error| failed(&error))?);
            }
            Self::Yaml => print!("{}", serde_yaml_ng::to_string(what).map_err(|error| failed(&error))?),
        }
        Ok(())
    }
}
