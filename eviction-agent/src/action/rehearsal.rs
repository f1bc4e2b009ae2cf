//! A kill on a stage, before there is need of one.
//!
//! What ends a pod would else run for the first time when the node is short of memory: the worst time to have
//! the kernel read code from the disk. So it runs once at leisure, in a folder with the files of a pod's cgroup
//! and the id of a process that there cannot be. Nothing outside that folder is opened, no signal is sent, and
//! nothing is told of it.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::boundary::Boundary;
use super::clock::now_ns;
use super::hold::Log;
use super::job::{Job, Tools};
use super::members::Members;
use super::target::{GroupDirs, KillTarget, PodName};
use crate::core::signal::Resource;
use crate::core::time::nanos;

/// The kernel gives no process an id from PID_MAX_LIMIT on (include/linux/threads.h).
pub(super) const NOBODY: u32 = 4 << 20;

/// What the hand opens in a pod's cgroup, as version 2 has it.
const FILES: [(&str, &str); 5] = [
    ("cgroup.events", "populated 0\nfrozen 1\n"),
    ("cgroup.freeze", "0\n"),
    ("cgroup.kill", ""),
    ("pids.current", "1\n"),
    ("pids.max", "7\n"),
];

/// Of the gentle kill; it ends early, since time on the stage is as it likes.
const GRACE: Duration = Duration::from_secs(1);

/// The folder, which is removed with this.
#[derive(Debug)]
pub(super) struct Stage {
    folder: PathBuf,
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Stage {
    /// In the folder of an agent that acts on the node with this id.
    pub(super) fn new(run_dir: &Path, id: u64) -> Self {
        Self { folder: run_dir.join(format!("stage-{id}")) }
    }

    /// Kills twice: gently, and at once. What was left of an earlier stage is removed.
    pub(super) fn rehearse(&self, members: &mut Members) -> Result<(), String> {
        drop(fs::remove_dir_all(&self.folder));
        let (node, pod) = (self.folder.join("node"), self.folder.join("node/pod"));
        let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", self.folder.display());
        fs::create_dir_all(&pod).map_err(|error| fail(&error))?;
        let write = |name: &str, text: &str| fs::write(pod.join(name), text).map_err(|error| fail(&error));
        FILES.iter().try_for_each(|(name, text)| write(name, text))?;
        let (log, _) = Log::open(&self.folder.join("holds")).map_err(|error| fail(&error))?;
        let log = Arc::new(log);
        let boundary = Boundary::open(&group(&node)).map_err(|error| fail(&error))?;
        for grace in [GRACE, Duration::ZERO] {
            write("cgroup.procs", &format!("{NOBODY}\n"))?;
            let target = target(&pod, grace);
            let pinned = target.groups.iter().map(|dirs| boundary.pin(dirs)).collect::<Result<_, _>>();
            let pinned = pinned.map_err(|error| fail(&error))?;
            let mut job = Job::new(&target, pinned, GRACE, false, Arc::clone(&log));
            let mut tools = Tools { members, report: &mut |_| {}, now_ns: now_ns() };
            job.strike(&mut tools);
            // Still there; out of time; still there; and gone.
            job.step(&mut tools);
            tools.now_ns = tools.now_ns.saturating_add(nanos(grace));
            job.step(&mut tools);
            job.step(&mut tools);
            write("cgroup.procs", "")?;
            job.step(&mut tools);
            if !job.is_over() {
                return Err(fail(&"what nobody is in is not empty"));
            }
        }
        Ok(())
    }
}

/// The same folder in every hierarchy.
fn group(path: &Path) -> GroupDirs {
    let path = Some(path.to_owned());
    GroupDirs { id: None, memory: path.clone(), pids: path.clone(), freezer: path.clone(), unified: path }
}

fn target(pod: &Path, grace: Duration) -> KillTarget {
    KillTarget {
        decision: 0,
        at_ns: now_ns(),
        pod: Arc::new(PodName { uid: "".into(), namespace: "".into(), name: "".into() }),
        groups: vec![group(pod)],
        grace,
        resource: Resource::Memory,
        hard: grace.is_zero(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_played_to_its_end_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let stage = Stage::new(folder.path(), 7);
        fs::create_dir_all(stage.folder.join("node/pod/cgroup.procs")).unwrap();
        stage.rehearse(&mut Members::new()).unwrap();
        let said = |name: &str| fs::read_to_string(stage.folder.join("node/pod").join(name)).unwrap();
        assert_eq!(said("cgroup.kill"), "1", "it came as far as the kill");
        assert!(said("pids.max").starts_with('7'), "forks go on: {}", said("pids.max"));
        assert!(said("cgroup.freeze").starts_with('0'), "and all else: {}", said("cgroup.freeze"));
        drop(stage);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn without_a_folder_it_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let why = Stage::new(&file, 7).rehearse(&mut Members::new()).unwrap_err();
        assert!(why.contains("file/stage-7: "), "{why}");
    }
}
