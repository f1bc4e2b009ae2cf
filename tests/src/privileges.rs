//! Drops privileges: becomes an ordinary user with a few capabilities.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use crate::folder;

/// The user `nobody`.
const NOBODY: u32 = 65534;

/// Returns the capability of that name, without `CAP_`.
fn capability(name: &str) -> Result<CapabilitySet> {
    CapabilitySet::from_name(name).with_context(|| format!("there is no capability {name}"))
}

/// Returns whether this process has the capability, so that it can pass it on.
///
/// # Errors
/// If there is no such capability, or capabilities cannot be read.
pub fn has(name: &str) -> Result<bool> {
    Ok(capabilities(None).context("read capabilities")?.permitted.contains(capability(name)?))
}

/// Turns this thread into that of an ordinary user with exactly these capabilities, which the programs that it
/// executes inherit.
///
/// # Errors
/// If this process does not have them, or may not change its user.
pub fn keep_only(names: &[&str]) -> Result<()> {
    let mut kept = CapabilitySet::empty();
    for name in names {
        if !has(name)? {
            bail!("this process has no capability {name} to pass on");
        }
        kept |= capability(name)?;
    }
    for (name, capability) in CapabilitySet::all().iter_names() {
        // A capability that the kernel does not support cannot be removed, and one that is missing need not be.
        if !kept.contains(capability) && has(name)? {
            remove_capability_from_bounding_set(capability).with_context(|| format!("give up {name}"))?;
        }
    }
    set_keep_capabilities(true).context("keep capabilities")?;
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    set_thread_groups(&[]).context("leave all groups")?;
    set_thread_res_gid(group, group, group).context("change the group")?;
    set_thread_res_uid(user, user, user).context("change the user")?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: kept };
    set_capabilities(None, sets).context("set capabilities")?;
    for (name, capability) in kept.iter_names() {
        configure_capability_in_ambient_set(capability, true)
            .with_context(|| format!("add {name} to the ambient set"))?;
    }
    Ok(())
}

/// Writes a script that runs `program` as such a user, with the arguments of the script.
///
/// # Errors
/// If it cannot be written, or the launcher is not beside this program.
pub fn write_script(file: &Path, program: &Path, names: &[&str]) -> Result<PathBuf> {
    let launcher = crate::binary::find("unprivileged")?;
    let text = format!(
        "#!/bin/sh\nexec {} --capabilities '{}' -- {} \"$@\"\n",
        launcher.display(),
        names.join(","),
        program.display()
    );
    folder::write_executable(file, &text)?;
    Ok(file.to_owned())
}
