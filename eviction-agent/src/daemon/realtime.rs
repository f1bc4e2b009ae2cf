//! Real-time priority, locked memory and OOM protection for the control loop, so that it runs while the node is
//! short of CPU time or memory.
//!
//! Each of them may be refused. The result is reported like the backend of a source.

use std::io;
use std::path::Path;

use procfs::process::{MMPermissions, MMapPath, Process};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};
use rustix::thread::{Pid, gettid};

use eviction_node::backend::BackendInfo;
use eviction_node::backend::BackendSelection;
use eviction_node::thread::touch_stack;

/// Above every ordinary thread, below every other real-time thread.
const FIFO_PRIORITY: libc::c_int = 1;

/// A real-time thread that runs away would take a CPU from the node. After this time without a wait the kernel
/// sends SIGXCPU (RLIMIT_RTTIME), and the thread becomes an ordinary one. A sample of 50,000 cgroups takes a
/// good part of it.
const MAX_RUN_US: u64 = 1_000_000;

/// As much of the stack as an iteration uses.
const STACK: usize = 256 << 10;

/// The value that the kubelet sets for itself.
const OOM_SCORE_ADJ: &str = "-999";

/// Backends of the control loop thread, the best first.
const FIFO: &str = "SCHED_FIFO";
const NICE: &str = "nice -20";
/// The names of both backends.
pub(crate) const BACKENDS: [&str; 2] = [FIFO, NICE];

/// Drops programs or triggers on an ordinary thread: the kernel waits until no CPU uses them any more, for tenths
/// of a second at worst (`synchronize_rcu`), and the control loop must not wait.
pub(crate) fn drop_on_thread(of: impl Send + 'static) {
    let thread = std::thread::Builder::new().name("detach".to_owned());
    if let Err(error) = thread.spawn(move || drop(of)) {
        tracing::debug!(%error, "cannot start a thread: programs are detached in the control loop");
    }
}

/// Requests all of them for the calling thread and its process, with the backends that may be used. Threads
/// that it spawns are ordinary ones.
pub(crate) fn prepare(choice: &BackendSelection) -> [BackendInfo; 3] {
    let mut memory_lock = lock_memory();
    if let Err(error) = touch_code() {
        memory_lock.reason += &format!("; code is read from the disk as it runs: /proc/self/maps: {error}");
    }
    touch_stack::<STACK>();
    [schedule(choice), memory_lock, set_oom_score()]
}

/// Touches each page of the program's code. Code that decides and kills may run for the first time when the node is
/// short of memory, the worst time to read it from the disk.
fn touch_code() -> procfs::ProcResult<()> {
    for map in Process::myself()?.maps()? {
        let is_code = map.perms.contains(MMPermissions::READ | MMPermissions::EXECUTE);
        if !is_code || !matches!(map.pathname, MMapPath::Path(_)) {
            continue;
        }
        for address in (map.address.0..map.address.1).step_by(rustix::param::page_size()) {
            let Ok(address) = usize::try_from(address) else { continue };
            // SAFETY: a file of this program is mapped there as readable code, which stays as long as it runs.
            unsafe { std::ptr::with_exposed_provenance::<u8>(address).read_volatile() };
        }
    }
    Ok(())
}

/// Takes real-time priority from a thread of this process that ran too long. The thread stays ahead of ordinary
/// ones, if that is allowed.
pub(crate) fn drop_real_time_priority(thread: Pid) -> BackendInfo {
    let why = "it ran too long without waiting".to_owned();
    match set_scheduler(thread, libc::SCHED_OTHER, 0) {
        Ok(()) => set_nice(thread, why, None),
        Err(error) => BackendInfo::plain(SOURCE, FIFO, format!("{why}, but cannot be stepped down: {error}")),
    }
}

const SOURCE: &str = "control loop thread";

fn schedule(choice: &BackendSelection) -> BackendInfo {
    let denied = |backend| choice.refusal(backend, BACKENDS);
    let fifo = match denied(FIFO) {
        Some(why) => Err(why.to_owned()),
        None => set_limit()
            .and_then(|()| set_scheduler(gettid(), libc::SCHED_FIFO, FIFO_PRIORITY))
            .map_err(|error| format!("{error}{}", refusal(&error))),
    };
    match fifo {
        Ok(()) => BackendInfo::plain(SOURCE, FIFO, "runs before every thread without real-time priority"),
        Err(why) => set_nice(gettid(), format!("{FIFO}: {why}"), denied(NICE)),
    }
}

/// Applies the next backend without real-time priority.
fn set_nice(thread: Pid, refused: String, denied: Option<&str>) -> BackendInfo {
    if let Some(why) = denied {
        return BackendInfo::plain(SOURCE, "", format!("{refused}; {NICE}: {why}"));
    }
    // Niceness counts among ordinary threads, and the agent may have been started with another scheduling class. If
    // that cannot be changed, the next call has no effect.
    let _ = set_scheduler(thread, libc::SCHED_OTHER, 0);
    // Linux sets the priority of one thread where POSIX means the process.
    match setpriority_process(Some(thread), -20) {
        Ok(()) => BackendInfo::plain(SOURCE, NICE, refused),
        Err(error) => BackendInfo::plain(SOURCE, "", format!("{refused}; {NICE}: {error}")),
    }
}

/// Returns the reason of a refusal. With RT_GROUP_SCHED a cgroup of the v1 cpu controller has no real-time
/// budget unless it is configured, and pods have none.
fn refusal(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) if group_has_no_real_time() => {
            ": the agent's cpu cgroup has no real time to give (cpu.rt_runtime_us is 0)"
        }
        Some(libc::EPERM) => ": CAP_SYS_NICE allows it",
        _ => "",
    }
}

fn group_has_no_real_time() -> bool {
    let Ok(text) = std::fs::read_to_string("/proc/thread-self/cgroup") else { return false };
    let group = text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == "cpu").then_some(path)
    });
    let Some(group) = group else { return false };
    // In a container the path may be one that only the host has; then the container's own root is the cgroup.
    [group.trim_start_matches('/'), ""].iter().any(|group| {
        ["cpu", "cpu,cpuacct"].iter().any(|mount| {
            let file = Path::new("/sys/fs/cgroup").join(mount).join(group).join("cpu.rt_runtime_us");
            std::fs::read_to_string(file).is_ok_and(|text| text.trim() == "0")
        })
    })
}

fn set_limit() -> io::Result<()> {
    let Rlimit { current: _, maximum } = getrlimit(Resource::Rttime);
    let current = maximum.map_or(MAX_RUN_US, |maximum| maximum.min(MAX_RUN_US));
    Ok(setrlimit(Resource::Rttime, Rlimit { current: Some(current), maximum })?)
}

fn set_scheduler(thread: Pid, policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    // Threads for blocking work are created by this one, and must not inherit its policy.
    let policy = policy | libc::SCHED_RESET_ON_FORK;
    // By its number: musl's function of that name refuses to work, and its structure is longer than the
    // kernel's `sched_param`, which is this one number.
    // SAFETY: the kernel reads an int, which outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            thread.as_raw_nonzero().get(),
            policy,
            &raw const priority,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Keeps the program's pages from being written out or dropped, once they are touched: whole stacks would be
/// locked otherwise.
fn lock_memory() -> BackendInfo {
    let source = "memory lock";
    match mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT) {
        Ok(()) => {
            BackendInfo::plain(source, "mlockall on fault", "pages of the agent stay when the node reclaims")
        }
        Err(error) => BackendInfo::plain(source, "", format!("mlockall: {error}; CAP_IPC_LOCK allows it")),
    }
}

fn set_oom_score() -> BackendInfo {
    let source = "oom protection";
    match std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ) {
        Ok(()) => BackendInfo::plain(source, "oom_score_adj -999", "the kernel kills it last"),
        Err(error) => {
            BackendInfo::plain(source, "", format!("set oom_score_adj: {error}; CAP_SYS_RESOURCE allows it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_settings_have_reasons_and_spawned_threads_are_ordinary() {
        let infos = std::thread::spawn(|| {
            let infos = prepare(&BackendSelection::default());
            let child = std::thread::spawn(|| policy(gettid())).join().unwrap();
            assert_eq!(child, libc::SCHED_OTHER, "a thread that it spawns");
            let down = drop_real_time_priority(gettid());
            assert_eq!(policy(gettid()) & !libc::SCHED_RESET_ON_FORK, libc::SCHED_OTHER);
            assert!(down.reason.starts_with("it ran too long"), "{down:?}");
            infos
        });
        for info in infos.join().unwrap() {
            assert!(!info.reason.is_empty(), "{info:?}");
        }
    }

    #[test]
    fn backends_can_be_disabled() {
        let schedule_without = |deny: &[&str]| {
            let deny = deny.iter().map(|&name| name.to_owned()).collect();
            let choice = BackendSelection { deny, ..BackendSelection::default() };
            let run = move || (schedule(&choice), policy(gettid()) & !libc::SCHED_RESET_ON_FORK);
            std::thread::spawn(run).join().unwrap()
        };
        let (info, class) = schedule_without(&[FIFO, NICE]);
        assert_eq!((info.backend, class), ("", policy(gettid())), "left as it was: {info:?}");
        let (info, class) = schedule_without(&[FIFO]);
        assert_ne!(class, libc::SCHED_FIFO);
        assert!(info.reason.starts_with("SCHED_FIFO: disabled by --disable-backend"), "{info:?}");
        // Without CAP_SYS_NICE there is no other backend.
        assert!(info.backend == NICE || info.reason.contains("; nice -20: "), "{info:?}");
    }

    #[test]
    fn a_cgroup_without_real_time_budget_is_named() {
        let group = Path::new("/sys/fs/cgroup/cpu").join(format!("no-real-time-{}", std::process::id()));
        if std::fs::create_dir(&group).is_err() || !group.join("cpu.rt_runtime_us").exists() {
            drop(std::fs::remove_dir(&group));
            ::tests::skip!("no cpu controller with RT_GROUP_SCHED");
        }
        let tasks = group.join("tasks");
        let info = std::thread::spawn(move || {
            std::fs::write(tasks, gettid().as_raw_nonzero().to_string()).unwrap();
            schedule(&BackendSelection::default())
        });
        let info = info.join().unwrap();
        while std::fs::remove_dir(&group).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {}
        assert_eq!(info.backend, NICE, "{info:?}");
        assert!(info.reason.contains("cpu.rt_runtime_us is 0"), "{info:?}");
    }

    fn policy(thread: Pid) -> libc::c_int {
        // SAFETY: takes and gives numbers.
        unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread.as_raw_nonzero().get()) as libc::c_int }
    }
}
