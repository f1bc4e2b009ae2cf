//! A control loop that is stopped while everything else runs.

use std::fs;
use std::path::PathBuf;

use tests::skip;

use crate::fixture::{Fixture, node};

/// A group of the version 1 freezer, which can hold a single thread.
struct Freezer(PathBuf);

impl Freezer {
    /// Creates the group inside the one of this program.
    fn new() -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = own.lines().find_map(|line| line.split_once(":freezer:"))?.1;
        let folder = PathBuf::from("/sys/fs/cgroup/freezer")
            .join(path.trim_start_matches('/'))
            .join(format!("one-thread-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        Some(Self(folder))
    }

    fn add_thread(&self, thread: u32) {
        fs::write(self.0.join("tasks"), thread.to_string()).unwrap();
    }

    fn set_state(&self, state: &str) {
        fs::write(self.0.join("freezer.state"), state).unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.set_state("THAWED");
        // The thread leaves the group when the agent ends, or is moved back.
        let parent = self.0.parent().unwrap().join("tasks");
        for thread in fs::read_to_string(self.0.join("tasks")).unwrap().lines() {
            let _ = fs::write(&parent, thread);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

fn control_loop_thread(pid: u32) -> u32 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let named =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|it| it.trim() == "control-loop");
    let task = tasks.map(|task| task.unwrap().path()).find(named).unwrap();
    task.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

#[test]
fn a_stalled_control_loop_is_reported_until_it_runs_again() {
    let Some(node) = node("watchdog") else { skip!("no cgroups can be made here") };
    let fixture = Fixture::start(node);
    // Dropped before the agent: a failed test could not stop the agent while its thread is frozen.
    let Some(freezer) = Freezer::new() else {
        skip!("there is no version 1 freezer, which stops one thread")
    };
    freezer.add_thread(control_loop_thread(fixture.pid()));
    freezer.set_state("FROZEN");
    fixture.until("the stall is reported", || fixture.metric("eviction_agent_control_loop_stalled") == 1.0);
    let (status, why) = fixture.get("/healthz").unwrap();
    assert_eq!(status, 503, "{why}");
    assert!(why.contains("the control loop has not run for"), "{why}");
    assert_eq!(fixture.get("/readyz").unwrap().0, 503);
    freezer.set_state("THAWED");
    fixture.until("its end is reported", || fixture.metric("eviction_agent_control_loop_stalled") == 0.0);
    assert_eq!(fixture.get("/healthz").unwrap().0, 200);
    assert_eq!(fixture.metric("eviction_agent_control_loop_stalls_total"), 1.0);
    drop(freezer);
    fixture.stop();
}
