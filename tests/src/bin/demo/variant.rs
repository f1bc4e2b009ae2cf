//! Changes of the machine while a story runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, bail};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use tests::cgroup::{Driver, Group, Qos, container_id, pod_uid};
use tests::node::Node;

use crate::testbed::{Skip, Testbed};

/// The pause between two pods that are created.
const PAUSE: Duration = Duration::from_millis(5);

/// A change of the machine, once the agent watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    None,
    /// The cgroups of unknown pods are created and removed.
    Churn,
    /// The second CPU is unplugged until the story ends.
    CpuUnplugged,
    /// The wall clock is set forward by an hour, and then back by a day.
    ClockSteps,
}

/// A change that was made.
pub(crate) enum ActiveVariant {
    None,
    Churn(Churn),
    Cpu(Unplugged),
}

impl Variant {
    pub(crate) fn begin(self, testbed: &mut Testbed<'_>, node: &Node) -> Result<ActiveVariant> {
        match self {
            Self::None => Ok(ActiveVariant::None),
            Self::Churn => Ok(ActiveVariant::Churn(Churn::begin(node.root().clone()))),
            Self::CpuUnplugged => Ok(ActiveVariant::Cpu(Unplugged::new()?)),
            Self::ClockSteps => {
                step_clock(3600)?;
                testbed.interrupt.sleep(Duration::from_millis(300))?;
                step_clock(-86_400)?;
                testbed.printer.line("clock", "an hour forth, then a day back");
                Ok(ActiveVariant::None)
            }
        }
    }
}

impl ActiveVariant {
    /// Ends the change, and checks its result.
    pub(crate) fn end(self, testbed: &mut Testbed<'_>) -> Result<()> {
        match self {
            Self::None => {}
            Self::Churn(churn) => {
                let made = churn.end()?;
                testbed.value("cgroups_made", made);
                testbed.check(
                    "cgroups were made and removed all the while",
                    made > 0,
                    format_args!("{made}"),
                );
            }
            Self::Cpu(unplugged) => {
                let is_offline =
                    fs::read_to_string(&unplugged.0).context("read the state of the CPU")?.trim() == "0";
                testbed.check("the CPU was away until the end", is_offline, "it was there");
            }
        }
        Ok(())
    }
}

fn step_clock(seconds: i64) -> Result<()> {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Realtime);
    clock_settime(ClockId::Realtime, Timespec { tv_sec: tv_sec + seconds, tv_nsec }).context("set the clock")
}

/// A CPU that is offline until this is dropped.
pub(crate) struct Unplugged(PathBuf);

impl Unplugged {
    fn new() -> Result<Self> {
        let file = Path::new("/sys/devices/system/cpu/cpu1/online");
        if !file.exists() {
            return Err(Error::new(Skip("no CPU can be unplugged here".to_owned())));
        }
        fs::write(file, "0").context("unplug a CPU")?;
        Ok(Self(file.to_owned()))
    }
}

impl Drop for Unplugged {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.0, "1") {
            eprintln!("plug the CPU in again: {error}");
        }
    }
}

/// A thread that creates and removes the cgroups of pods and containers.
pub(crate) struct Churn {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Churn {
    fn begin(root: Group) -> Self {
        let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (flag, count) = (Arc::clone(&stop), Arc::clone(&made));
        let thread = std::thread::spawn(move || {
            // No pod of the node has these serial numbers.
            for serial in 1_000_000.. {
                if flag.load(Ordering::Relaxed) {
                    break;
                }
                let pod = root.group(Driver::Cgroupfs.pod(Qos::Burstable, &pod_uid(serial)))?;
                pod.group(Driver::Cgroupfs.container(&container_id(serial)))?;
                pod.destroy()?;
                count.fetch_add(2, Ordering::Relaxed);
                // The story needs the processor too.
                std::thread::sleep(PAUSE);
            }
            Ok(())
        });
        Self { stop, made, thread: Some(thread) }
    }

    /// Ends the thread, and returns how many cgroups it created.
    fn end(mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended?,
            _ => bail!("the thread that makes cgroups has panicked"),
        }
        Ok(self.made.load(Ordering::Relaxed))
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Otherwise it would create cgroups while the subtree is removed.
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            eprintln!("cgroups that come and go: {error:#}");
        }
    }
}
