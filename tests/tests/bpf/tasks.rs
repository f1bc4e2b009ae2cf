//! Forks, execs and exits per cgroup, and alarms for too many of them.

use std::time::Duration;

use eviction_bpf::{Counter, EventClass, LoadOptions, NodePidThreshold, TaskStats, event::Alarm};
use eviction_common::PIDS_CACHE_NS;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::fixture::{Fixture, Stepper, need_bpf, need_some_bpf};
use crate::groups::Cgroup;

#[test]
fn forks_and_exits_are_counted_exactly() {
    need_some_bpf!();
    let (ours, other) = (Cgroup::new(), Cgroup::new());
    let mut process = Stepper::start(&ours);
    let bystander = Stepper::start(&other);
    process.step("forks 1");
    let fixture = Fixture::with_class(EventClass::Task, &LoadOptions::default());
    let before = fixture.task_count(ours.id());
    let all = fixture.kernel.host_tasks().unwrap();
    process.step("forks 200");
    process.step("threads 30");
    // A thread is joined before it has ended completely.
    process.end();

    let count = fixture.task_count(ours.id());
    assert_eq!(before, Default::default());
    assert_eq!(count.execs, 200, "each became another program");
    assert_eq!(count.forks, 230);
    assert_eq!(count.exits, 231, "the process itself ended, too");
    assert_eq!(fixture.task_count(other.id()), Default::default());
    let after = fixture.kernel.host_tasks().unwrap();
    assert!(after.forks - all.forks >= 230, "the whole machine counts them as well");
    assert!(after.exits - all.exits >= 231);
    drop(bystander);
}

/// Several processes in each cgroup fork at once, on all CPUs.
#[test]
fn counts_are_exact_when_many_fork_at_once_in_several_cgroups() {
    need_some_bpf!();
    const PROCESSES_PER_CGROUP: u64 = 3;
    let groups: Vec<_> = (0..5).map(|_| Cgroup::new()).collect();
    let mut processes: Vec<(u64, Stepper)> = Vec::new();
    for (place, group) in (0..).zip(&groups) {
        processes.extend((0..PROCESSES_PER_CGROUP).map(|_| (place, Stepper::start(group))));
    }
    // Each of them has executed the stepper and answered.
    processes.iter_mut().for_each(|(_, process)| process.step("threads 0"));
    let fixture = Fixture::with_class(EventClass::Task, &LoadOptions::default());
    let (forks, threads) = (|place: u64| 20 + 7 * place, |place: u64| 100 + 11 * place);
    for (place, process) in &mut processes {
        process.send(&format!("forks {}\nthreads {}", forks(*place), threads(*place)));
    }
    for (_, process) in &mut processes {
        assert_eq!((process.answer(), process.answer()), ("ok".into(), "ok".into()));
    }
    processes.into_iter().for_each(|(_, process)| process.end());
    let mut uncounted = 0;
    for (place, group) in (0..).zip(&groups) {
        let (forks, threads) = (PROCESSES_PER_CGROUP * forks(place), PROCESSES_PER_CGROUP * threads(place));
        let happened = [forks + threads, forks + threads + PROCESSES_PER_CGROUP, forks];
        let TaskStats { forks, exits, execs, .. } = fixture.task_count(group.id());
        let counted = [forks, exits, execs];
        let pairs = happened.into_iter().zip(counted);
        assert!(pairs.clone().all(|(happened, counted)| counted <= happened), "{happened:?}, {counted:?}");
        uncounted += pairs.map(|(happened, counted)| happened - counted).sum::<u64>();
    }
    // A preemptible kernel does not run a program while another task is in it. It counts the runs that it leaves out.
    let missed = fixture.kernel.runs_missed();
    let (_, missed) = missed.into_iter().find(|(class, _)| *class == EventClass::Task).unwrap();
    println!("{uncounted} short, {missed} runs missed");
    assert!(uncounted <= missed, "{uncounted} are missing, and {missed} runs are known to be");
}

#[test]
fn the_counts_of_a_removed_cgroup_are_deleted() {
    need_bpf!();
    let group = Cgroup::new();
    let id = group.id();
    let mut process = Stepper::start(&group);
    let fixture = Fixture::load();
    process.step("forks 3");
    assert_eq!(fixture.task_count(id).forks, 3);
    process.end();
    group.remove();
    assert_eq!(fixture.task_count(id), Default::default());
}

#[test]
fn a_cgroup_without_a_map_entry_is_not_counted_as_another_one() {
    need_bpf!();
    let groups: Vec<_> = (0..3).map(|_| Cgroup::new()).collect();
    let mut processes: Vec<_> = groups.iter().map(Stepper::start).collect();
    let mut fixture =
        Fixture::with(&LoadOptions { cgroups: Some(1), fork_storm: 1, ..LoadOptions::default() });
    let before = fixture.kernel.host_tasks().unwrap();
    for _ in 0..3 {
        processes.iter_mut().for_each(|process| process.step("threads 10"));
    }
    let counted = groups.iter().map(|group| fixture.task_count(group.id()).forks);
    let counted: Vec<_> = counted.filter(|forks| *forks != 0).collect();
    assert!(counted.is_empty() || counted == [30], "{counted:?}");
    let lost = fixture.kernel.lost().unwrap();
    assert!(lost.get(Counter::TaskStatsFull) > 0, "{lost:?}");
    assert!(fixture.kernel.host_tasks().unwrap().forks - before.forks >= 90, "the machine's are all counted");
    let reported: usize = groups.iter().map(|group| fixture.alarms(Alarm::ForkStorm, group.id()).len()).sum();
    assert_eq!(reported, counted.len(), "a storm is seen where there is room");
}

#[test]
fn a_fork_storm_is_reported_once_until_its_alarm_is_reset() {
    need_some_bpf!();
    let (stormy, calm) = (Cgroup::new(), Cgroup::new());
    let mut process = Stepper::start(&stormy);
    let mut bystander = Stepper::start(&calm);
    // The lowest bound, two forks within a tenth of a second: the machine may be slow.
    let mut fixture =
        Fixture::with_class(EventClass::Task, &LoadOptions { fork_storm: 1, ..LoadOptions::default() });
    bystander.step("threads 1");
    process.step("threads 2000");
    let reported = fixture.alarms(Alarm::ForkStorm, stormy.id());
    assert_eq!(reported.len(), 1);
    assert_eq!((reported[0].memcg_id, reported[0].tgid, reported[0].bound), (stormy.id(), process.pid(), 2));
    assert!(reported[0].tasks >= 2, "{reported:?}");
    process.step("threads 2000");
    assert_eq!(fixture.alarms(Alarm::ForkStorm, stormy.id()).len(), 1);
    // The machine may have booted a moment ago.
    fixture.kernel.reset_alarms(reported[0].ktime_ns.saturating_sub(10_000_000_000)).unwrap();
    process.step("threads 2000");
    assert_eq!(fixture.alarms(Alarm::ForkStorm, stormy.id()).len(), 1, "what is not older stays reported");
    fixture.kernel.reset_alarms(u64::MAX).unwrap();
    process.step("threads 2000");
    assert_eq!(fixture.alarms(Alarm::ForkStorm, stormy.id()).len(), 2);
    assert_eq!(fixture.alarms(Alarm::ForkStorm, calm.id()), []);
}

#[test]
fn no_fork_storm_is_reported_without_a_bound() {
    need_some_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    let mut fixture =
        Fixture::with_class(EventClass::Task, &LoadOptions { fork_storm: 0, ..LoadOptions::default() });
    process.step("threads 2000");
    assert_eq!(fixture.alarms(Alarm::ForkStorm, group.id()), []);
    assert_eq!(fixture.task_count(group.id()).forks, 2000);
}

#[test]
fn tasks_near_an_ancestors_pids_limit_are_reported_before_a_fork_fails() {
    need_bpf!();
    let pod = Cgroup::new();
    let container = pod.child("container");
    let mut process = Stepper::start(&container);
    let (pod_pids, container_pids) = (pod.of_pids(), container.of_pids());
    container_pids.add(&process);
    pod_pids.limit_pids(16);
    let mut fixture = Fixture::load();
    process.step("park 12");
    assert_eq!(pod_pids.pids(), 13);
    assert_eq!(fixture.alarms(Alarm::PidsLimit, pod_pids.id()), []);
    process.step("park 1");
    let reported = fixture.alarms(Alarm::PidsLimit, pod_pids.id());
    assert_eq!(reported.len(), 1);
    let alarm = reported[0];
    assert_eq!((alarm.tasks, alarm.bound), (14, 16));
    assert_eq!((alarm.memcg_id, alarm.tgid), (container.id(), process.pid()));
    process.step("park 1");
    assert_eq!(fixture.alarms(Alarm::PidsLimit, pod_pids.id()).len(), 1, "reported once");
    assert_eq!(fixture.alarms(Alarm::PidsLimit, container_pids.id()), [], "it has no limit of its own");
    fixture.kernel.reset_alarms(u64::MAX).unwrap();
    process.step("park 1");
    let reported = fixture.alarms(Alarm::PidsLimit, pod_pids.id());
    assert_eq!(reported.last().map(|alarm| (alarm.tasks, alarm.bound)), Some((16, 16)));
    process.end();
}

/// After a fork a CPU does not check the ancestors if by what it saw last no limit can be near; about other cgroups
/// it has seen nothing.
#[test]
fn the_pids_cache_of_a_cpu_hides_no_limit() {
    need_bpf!();
    let (far, near) = (Cgroup::new(), Cgroup::new());
    let (mut calm, mut process) = (Stepper::start(&far), Stepper::start(&near));
    let all = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
    for stepper in [&calm, &process] {
        sched_setaffinity(Pid::from_raw(stepper.pid().cast_signed()), &one).unwrap();
    }
    let (far_pids, near_pids) = (far.of_pids(), near.of_pids());
    far_pids.add(&calm);
    near_pids.add(&process);
    process.step("park 12");
    near_pids.limit_pids(16);
    let mut fixture = Fixture::load();
    let mut reported = |id: u64| {
        fixture.alarms(Alarm::PidsLimit, id).iter().map(|reported| reported.tasks).collect::<Vec<_>>()
    };
    calm.step("park 1");
    process.step("park 1");
    assert_eq!(reported(near_pids.id()), [14], "another group's limit");

    calm.step("park 3");
    far_pids.limit_pids(8);
    std::thread::sleep(Duration::from_nanos(2 * PIDS_CACHE_NS));
    calm.step("park 1");
    assert_eq!(reported(far_pids.id()), [0_i64; 0], "6 of 8");
    calm.step("park 1");
    assert_eq!(reported(far_pids.id()), [7], "a limit that was set meanwhile");
    calm.end();
    process.end();
}

#[test]
fn a_node_pid_threshold_is_reported_once_for_a_cgroup_or_the_machine() {
    need_bpf!();
    let node = Cgroup::new();
    let container = node.child("container");
    let mut process = Stepper::start(&container);
    let (node_pids, container_pids) = (node.of_pids(), container.of_pids());
    container_pids.add(&process);
    let mut fixture = Fixture::load();
    // Forks with no limit near, a moment before a threshold is near.
    process.step("park 1");
    let reported = |fixture: &mut Fixture| {
        fixture.drain();
        let ours = fixture.events.alarms.iter().filter(|reported| reported.alarm == Alarm::NodeTasks);
        ours.copied().collect::<Vec<_>>()
    };
    let threshold = NodePidThreshold::Group { id: node_pids.id(), tasks: 10 };
    fixture.kernel.set_pid_threshold(Some(threshold)).unwrap();
    process.step("park 7");
    assert_eq!(reported(&mut fixture), []);
    process.step("park 5");
    let first = reported(&mut fixture);
    assert_eq!(first.len(), 1);
    assert_eq!((first[0].tasks, first[0].bound, first[0].memcg_id), (10, 10, container.id()));

    // Other processes create and end tasks as well; a hundred that stay are more than they end meanwhile.
    let before = fixture.kernel.host_tasks().unwrap().net();
    fixture.kernel.set_pid_threshold(Some(NodePidThreshold::More(30))).unwrap();
    process.step("park 100");
    fixture.wait("the threshold of the whole machine", |reported| {
        reported.alarms.iter().filter(|reported| reported.alarm == Alarm::NodeTasks).count() == 2
    });
    let second = reported(&mut fixture)[1];
    assert!(second.tasks >= second.bound && second.key_id > first[0].key_id, "{second:?}, {before} before");

    fixture.kernel.set_pid_threshold(None).unwrap();
    process.step("park 100");
    assert_eq!(reported(&mut fixture).len(), 2, "cleared");
    process.end();
}
