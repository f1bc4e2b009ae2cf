//! OOM kills: which process was killed, and which cgroup had the limit.

use std::time::Duration;

use eviction_bpf::{Counter, LoadOptions, OomKill, OomLimitOwner};

use crate::fixture::{Fixture, MIB, Stepper, need_bpf};
use crate::groups::Cgroup;

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

fn owner_id(kill: &OomKill) -> (Option<u64>, bool) {
    match kill.owner {
        OomLimitOwner::Memcg(ancestor) => (Some(ancestor.id), kill.owner_inferred),
        OomLimitOwner::Global => (None, kill.owner_inferred),
        OomLimitOwner::Unknown => panic!("no chain: {kill:?}"),
    }
}

#[test]
fn an_oom_kill_at_a_containers_limit_is_attributed_to_the_container() {
    need_bpf!();
    let mut fixture = Fixture::load();
    let pod = Cgroup::new();
    let container = pod.child("container");
    container.limit(32 * MIB);
    let mut process = Stepper::start(&container);
    process.step("prefer");
    process.send("touch 256");
    assert_eq!(process.answer(), "", "it must be killed");

    let kill = fixture.wait_for_oom_kill(process.pid());
    assert_eq!(kill.pid, process.pid());
    assert_eq!(kill.comm_lossy().to_string(), "stepper");
    assert_eq!(kill.memcg_id(), Some(container.id()));
    assert_eq!(kill.oom_score_adj, Some(1000));
    assert_eq!(kill.trigger_tgid, process.pid());
    assert!(!kill.truncated && !kill.pid_only);
    assert!(kill.anon.is_some_and(|anon| (28 * MIB..=32 * MIB).contains(&anon)), "{kill:?}");
    assert!(kill.file.is_some_and(|file| file > 0), "{kill:?}");

    let ids: Vec<_> = kill.chain.iter().map(|ancestor| ancestor.id).collect();
    assert_eq!(ids[..2], [container.id(), pod.id()]);
    assert_eq!(ids.len(), 3, "up to the root: {ids:?}");
    assert_eq!(kill.chain[0].max, Some(32 * MIB));
    assert_eq!(kill.chain[1].max, None);
    assert!(kill.chain[0].usage <= 32 * MIB);
    assert!(kill.chain[0].usage > 31 * MIB, "{:?}", kill.chain[0]);
    assert_eq!(owner_id(&kill), (Some(container.id()), false));
    let own = kill.chain[0];
    assert_eq!((own.oom_before, own.oom_kill_before), (Some(0), Some(0)));
    assert_eq!(kill.trigger_comm_lossy().to_string(), "stepper");
    assert_eq!(kill.trigger_memcg, Some(container.id()));
    let root = kill.chain[2].id;
    let path = kill
        .path_below(root)
        .expect("the names")
        .iter()
        .fold(String::new(), |path, (_, name)| format!("{path}/{}", name.display()));
    assert_eq!(path, container.path());
    assert!(own.oom.is_some_and(|oom| oom >= 1) && own.oom_kill == Some(1), "{own:?}");
}

#[test]
fn an_oom_kill_of_a_child_is_attributed_to_the_limit_of_the_pod() {
    need_bpf!();
    let mut fixture = Fixture::load();
    let pod = Cgroup::new();
    pod.limit(48 * MIB);
    let (first, second) = (pod.child("first"), pod.child("second"));
    let mut bystander = Stepper::with_memory(&first, 8);
    let mut parent = Stepper::start(&second);
    parent.send("child 256");
    let child: u32 = parent.answer().strip_prefix("child ").unwrap().parse().unwrap();
    assert_eq!(parent.answer(), "ended 9");
    assert_eq!(parent.answer(), "ok", "the parent lives");
    bystander.step("touch 1");

    let kill = fixture.wait_for_oom_kill(child);
    assert_eq!(kill.memcg_id(), Some(second.id()));
    assert_eq!(owner_id(&kill), (Some(pod.id()), false));
}

#[test]
fn the_pods_limit_is_distinguished_from_an_equal_one_of_its_container() {
    need_bpf!();
    let mut fixture = Fixture::load();
    let pod = Cgroup::new();
    let container = pod.child("container");
    // The container's limit is above the pod's by less than usage can show.
    pod.limit(32 * MIB);
    container.limit(32 * MIB + 16 * page_size());
    let mut process = Stepper::start(&container);
    process.send("touch 256");
    assert_eq!(process.answer(), "");
    let kill = fixture.wait_for_oom_kill(process.pid());
    assert_eq!(owner_id(&kill), (Some(pod.id()), false));
}

#[test]
fn consecutive_oom_kills_are_each_attributed_to_their_owner() {
    need_bpf!();
    let mut fixture = Fixture::load();
    let pod = Cgroup::new();
    pod.limit(40 * MIB);
    let container = pod.child("container");
    for round in 0..20 {
        let owner = match round % 2 {
            0 => {
                container.limit(16 * MIB);
                container.id()
            }
            _ => {
                container.limit(1 << 40);
                pod.id()
            }
        };
        let mut process = Stepper::start(&container);
        process.send("touch 256");
        assert_eq!(process.answer(), "");
        let kill = fixture.wait_for_oom_kill(process.pid());
        assert_eq!(owner_id(&kill), (Some(owner), false), "round {round}: {kill:?}");
        assert_eq!(kill.was_killed(), Some(true), "round {round}: {kill:?}");
    }
    assert_eq!(container.oom_kills(), 20);
}

#[test]
fn a_lost_oom_kill_is_counted_and_the_next_one_is_right() {
    need_bpf!();
    let pod = Cgroup::new();
    pod.limit(24 * MIB);
    let container = pod.child("container");
    let mut fixture = Fixture::with(&LoadOptions { ring_bytes: 16 << 10, ..LoadOptions::default() });
    for round in 0..300 {
        pod.child(&format!("g{round}")).remove();
    }
    let kill_at_limit = |limit: u64| {
        container.limit(limit);
        let mut process = Stepper::start(&container);
        process.send("touch 256");
        assert_eq!(process.answer(), "");
        process.pid()
    };
    kill_at_limit(16 * MIB);
    assert!(fixture.kernel.lost().unwrap().get(Counter::LostOomKill) > 0);
    fixture.drain();
    let victim = kill_at_limit(1 << 40);
    assert_eq!(owner_id(&fixture.wait_for_oom_kill(victim)), (Some(pod.id()), false));
}

#[test]
fn exiting_processes_at_the_limit_are_not_reported_as_oom_kills() {
    need_bpf!();
    let mut fixture = Fixture::load();
    let group = Cgroup::new();
    group.limit(16 * MIB);
    for round in 0..90 {
        let mut process = Stepper::with_memory(&group, 12);
        process.send("touch 256");
        match round % 3 {
            0 => assert_eq!(process.answer(), "", "the kernel kills it"),
            _ => process.kill(),
        }
    }
    fixture.drain();
    let ours = |kill: &&OomKill| kill.memcg_id() == Some(group.id());
    let kills = fixture.events.kills.iter().filter(ours).count() as u64;
    assert!(kills >= 30, "{kills}");
    assert_eq!(kills, group.oom_kills());
    // How many of the others the kernel marked depends on the kernel.
    assert!(fixture.events.marks.iter().filter(ours).all(|mark| mark.was_killed() == Some(false)));
}

#[test]
fn earlier_oom_kills_of_a_cgroup_are_known_after_its_next_charge() {
    need_bpf!();
    let pod = Cgroup::new();
    let container = pod.child("container");
    container.limit(32 * MIB);
    let mut process = Stepper::start(&container);
    process.send("touch 256");
    assert_eq!(process.answer(), "", "a kill that no program saw");

    let mut fixture = Fixture::load();
    let mut process = Stepper::with_memory(&container, 8);
    // A count that was read a moment before a kill is not used for that kill.
    std::thread::sleep(Duration::from_millis(50));
    process.send("touch 256");
    assert_eq!(process.answer(), "");
    let kill = fixture.wait_for_oom_kill(process.pid());
    assert!(kill.chain[0].oom_before.is_some_and(|oom| oom >= 1), "{:?}", kill.chain[0]);
    assert_eq!(owner_id(&kill), (Some(container.id()), false));
}
