//! What is not killed, and why.

use std::time::Duration;

use eviction_core::progress::KillRejection;
use eviction_core::signal::Resource;
use eviction_kill::CgroupDirs;
use eviction_kill::KillMode;
use eviction_kill::KillStarted;
use eviction_kill::KillTarget;
use eviction_kill::RateLimitPolicy;
use tests::process::is_alive;

use crate::rig::{LONG, Rig, dirs_of, ended_by, soft, steps, stubborn, target};

#[test]
fn only_what_lies_below_the_nodes_root() {
    let rig = Rig::new("inside");
    let outside = Rig::new("outside");
    let (pod, container) = outside.pod(1);
    let bystander = stubborn(&container);
    let mut hand = rig.hand();
    let refused = |result: Result<KillStarted, KillRejection>| match result {
        Err(KillRejection::NotAPod { what }) => what,
        other => panic!("{other:?}"),
    };
    let said = refused(hand.begin(target(&pod)));
    assert!(said.contains("does not lie below the node's root"), "{said}");
    // Neither by a way around, nor the node itself.
    let around = |dirs: CgroupDirs| {
        let relative = format!("../../{}", pod.path().display());
        let join = |dir: Option<std::path::PathBuf>| dir.map(|dir| dir.join("kubepods").join(&relative));
        CgroupDirs { memory: join(dirs.memory), pids: None, freezer: None, unified: None, ..dirs }
    };
    rig.subtree.group("kubepods").unwrap();
    let roundabout = around(dirs_of(rig.subtree.root()));
    assert!(roundabout.memory.as_ref().unwrap().exists());
    refused(hand.begin(KillTarget { groups: vec![roundabout], ..target(&pod) }));
    refused(hand.begin(target(rig.subtree.root())));
    assert!(is_alive(bystander.pid()));
    drop(hand);
    rig.subtree.remove().unwrap();
    outside.subtree.remove().unwrap();
}

#[test]
fn not_a_group_that_took_the_place_of_another() {
    let rig = Rig::new("replaced");
    let (pod, _) = rig.pod(1);
    let id = |dirs: &CgroupDirs| {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(dirs.deciding().unwrap()).unwrap().ino()
    };
    let dirs = dirs_of(&pod);
    let dirs = CgroupDirs { id: Some(id(&dirs)), ..dirs };
    let decided = KillTarget { groups: vec![dirs], ..target(&pod) };
    pod.destroy().unwrap();
    let mut hand = rig.hand();
    assert_eq!(hand.begin(decided.clone()), Err(KillRejection::Empty));
    let (pod, container) = rig.pod(1);
    let bystander = stubborn(&container);
    let refused = hand.begin(decided.clone()).unwrap_err();
    assert!(refused.to_string().contains("another one than was decided on"), "{refused}");
    assert!(is_alive(bystander.pid()));
    let dirs = dirs_of(&pod);
    let dirs = CgroupDirs { id: Some(id(&dirs)), ..dirs };
    assert_eq!(steps(&hand.kill(KillTarget { groups: vec![dirs], ..decided })), ["kill", "gone"]);
    drop(hand);
    rig.subtree.remove().unwrap();
}

#[test]
fn not_a_pod_without_processes() {
    let rig = Rig::new("empty");
    let (pod, _) = rig.pod(1);
    let mut hand = rig.hand();
    assert_eq!(hand.begin(target(&pod)), Err(KillRejection::Empty));
    // That was no kill: nothing has to be waited for.
    assert_eq!(hand.begin(target(&pod)), Err(KillRejection::Empty));
    assert_eq!(hand.executor.in_flight(), []);
    drop(hand);
    rig.subtree.remove().unwrap();
}

#[test]
fn at_once_where_decisions_are_sized_and_hurried_one_by_one() {
    let rig = Rig::new("sized");
    let (first, first_container) = rig.pod(1);
    let (second, second_container) = rig.pod(2);
    let mut victims = [stubborn(&first_container), stubborn(&second_container)];
    let mut config = rig.config(KillMode::Kill);
    config.pacing.victim_wait = Duration::ZERO;
    let mut hand = rig.try_hand(config).unwrap();
    hand.begin(soft(&first, LONG)).unwrap();
    hand.begin(soft(&second, LONG)).unwrap();
    assert_eq!(hand.executor.in_flight().len(), 2);
    let hasten = KillTarget { grace: Duration::from_millis(300), ..target(&first) };
    assert_eq!(hand.begin(hasten), Ok(KillStarted::Hurried { decision: 1 }));
    assert_eq!(ended_by(&mut victims[0]), Some(9));
    assert!(hand.executor.in_flight().iter().any(|flight| flight.decision == 2 && !flight.hard));
    drop((victims, hand));
    rig.subtree.remove().unwrap();
}

#[test]
fn not_while_the_last_victim_has_time_to_go() {
    let rig = Rig::new("pace");
    let (first, first_container) = rig.pod(1);
    let (second, second_container) = rig.pod(2);
    let victims = [stubborn(&first_container), stubborn(&second_container)];
    let mut hand = rig.hand();
    hand.begin(soft(&first, LONG)).unwrap();
    assert!(matches!(hand.begin(soft(&second, LONG)), Err(KillRejection::VictimPending { decision: 1, .. })));
    let flights = hand.executor.in_flight();
    assert_eq!((flights.len(), flights[0].decision, flights[0].hard), (1, 1, false));
    // A hard threshold does not wait for a soft victim, nor one resource for another's.
    hand.begin(KillTarget { resource: Resource::Pids, ..soft(&second, LONG) }).unwrap();
    assert_eq!(hand.begin(target(&second)), Ok(KillStarted::Hurried { decision: 3 }));
    drop((victims, hand));
    rig.subtree.remove().unwrap();
}

#[test]
fn not_in_a_loop() {
    let rig = Rig::new("loop");
    let (pod, container) = rig.pod(1);
    let first = stubborn(&container);
    let mut hand = rig.hand();
    assert_eq!(steps(&hand.kill(target(&pod))), ["kill", "gone"]);
    // Something restarts it at once, in the same pod or in one of the same name.
    let again = stubborn(&container);
    let refused = hand.begin(target(&pod)).unwrap_err();
    assert!(matches!(refused, KillRejection::CoolDown { .. }), "{refused:?}");
    assert!(is_alive(again.pid()));
    drop((first, hand));
    // Another policy lets it be killed three times.
    let mut config = rig.config(eviction_kill::KillMode::Kill);
    config.pacing = RateLimitPolicy { cool_down: std::time::Duration::ZERO, ..RateLimitPolicy::default() };
    let mut hand = rig.try_hand(config).unwrap();
    let mut restarted = vec![again];
    for _ in 0..3 {
        assert_eq!(steps(&hand.kill(target(&pod))), ["kill", "gone"]);
        restarted.push(stubborn(&container));
    }
    let refused = hand.begin(target(&pod)).unwrap_err();
    assert!(matches!(refused, KillRejection::PodLimit { kills: 3, .. }), "{refused:?}");
    assert!(is_alive(restarted.last().unwrap().pid()));
    drop(hand);
    rig.subtree.remove().unwrap();
}
