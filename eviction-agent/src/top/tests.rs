use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use eviction_core::fixture::at;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::scenario::playback::Playback;
use crate::scenario::recording_tests::golden_recording;
use crate::telemetry::live::state::{ContainerState, MemoryPressure, SignalState, ThresholdState};

const MI: i64 = 1 << 20;
const GI: i64 = 1 << 30;

fn threshold(threshold: &str, value: i64) -> ThresholdState {
    ThresholdState { threshold: threshold.into(), source: "agent".into(), value, ..ThresholdState::default() }
}

fn signal(name: &str, available: i64, capacity: i64, thresholds: Vec<ThresholdState>) -> SignalState {
    SignalState { signal: name.into(), available: Some(available), capacity: Some(capacity), thresholds }
}

fn pod(rank: Option<usize>, name: &str, usage: i64, request: i64, forecast: &str) -> PodState {
    let (namespace, name) = name.split_once('/').unwrap();
    let container = |container: &str, part| ContainerState {
        container: container.into(),
        usage: Some(u64::try_from(usage / part).unwrap()),
        disk_usage: Some(7 << 20),
    };
    PodState {
        rank,
        namespace: namespace.into(),
        pod: name.into(),
        pod_uid: format!("uid-{namespace}-{name}"),
        owner: Some(format!("ReplicaSet/{name}")),
        qos: "Burstable".into(),
        priority: if rank.is_some() { 0 } else { 2_000_001_000 },
        usage: Some(usage),
        request,
        limit: Some(2 * request).filter(|limit| *limit > 0),
        over_request: Some(usage - request),
        usage_per_second: Some(18.0 * MI as f64),
        reclaim_stall_ratio: Some(0.31),
        limit_eta_seconds: Some(2400.0),
        disk_usage: Some(14 << 20),
        forecast: forecast.into(),
        containers: vec![container("main", 2), container("sidecar", 2)],
    }
}

fn calm() -> NodeState {
    let pods = vec![
        pod(Some(1), "batch/report-7f9c", 4900 * MI, 100 * MI, "evicted next"),
        pod(Some(2), "shop/checkout-5f6d8-2", 458 * MI, 400 * MI, "needs +4.74Gi"),
        pod(Some(3), "web/api-5d7c9-x2", 610 * MI, 500 * MI, "needs priority 0"),
        pod(None, "kube-system/etcd-worker-1", 48 * MI, 16 * MI, "never: critical"),
    ];
    NodeState {
        schema_version: 1,
        at: "2026-01-05T22:10:27Z".parse().unwrap(),
        version: "0.1.0".into(),
        node: Some("worker-1".into()),
        action: "evict".into(),
        dry_run: "none".into(),
        profile: "kubelet".into(),
        signals: vec![
            signal(
                "memory.available",
                5 * GI,
                8 * GI,
                vec![threshold("soft", 1200 * MI), threshold("hard", 512 * MI)],
            ),
            signal("nodefs.available", 60 * GI, 100 * GI, vec![threshold("hard", 10 * GI)]),
            signal("nodefs.inodesFree", 6_000_000, 6_553_600, vec![threshold("hard", 327_680)]),
            signal("pid.available", 31_564, 32_768, vec![]),
        ],
        memory_pressure: Some(MemoryPressure { some_avg10: 0.0, full_avg10: 0.0 }),
        pods_at: Some("2026-01-05T22:10:24Z".parse().unwrap()),
        pods,
        ..NodeState::default()
    }
}

/// Returns a state in which the soft threshold is met and the hard one is near.
fn soft() -> NodeState {
    let mut state = calm();
    let memory = &mut state.signals[0];
    memory.available = Some(712 * MI);
    memory.thresholds[0].met = true;
    memory.thresholds[0].met_seconds = Some(24.0);
    memory.thresholds[0].grace_seconds = Some(30.0);
    memory.thresholds[1].eta_seconds = Some(11.0);
    state.conditions = vec!["MemoryPressure".into()];
    state.memory_pressure = Some(MemoryPressure { some_avg10: 14.2, full_avg10: 3.1 });
    state
}

fn screen_of(state: NodeState) -> Screen {
    let mut screen = Screen::new(Sort::Rank, false);
    screen.update(state);
    screen
        .event("2026-01-05T22:10:05.001Z threshold memory.available soft 1.2Gi met: 1.19Gi available".into());
    screen.event(
        "2026-01-05T22:10:21.310Z oom_kill shop/img-9 (convert, pid 4711): container limit 256Mi".into(),
    );
    screen.explanation = vec![
        "batch/report-7f9c is evicted first for memory.available: rank 1 of 3".into(),
        "uses 4.79Gi and requests 100Mi: it is 4.69Gi above its request".into(),
        "goes before shop/checkout-5f6d8-2: it is 4.69Gi above its request, the other is 58Mi above its request".into(),
        "would stay, and shop/checkout-5f6d8-2 would be evicted, with 4.63Gi less used or more requested, or a priority of 1".into(),
    ];
    screen
}

fn drawn(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().to_string()
}

fn press(screen: &mut Screen, keys: &str) {
    keys.chars().for_each(|key| screen.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE)));
}

fn press_code(screen: &mut Screen, code: KeyCode) {
    screen.key(KeyEvent::new(code, KeyModifiers::NONE));
}

#[test]
fn a_small_terminal_shows_pods_events_and_the_explanation() {
    insta::assert_snapshot!("calm_80x24", drawn(&screen_of(calm()), 80, 24));
    insta::assert_snapshot!("soft_80x24", drawn(&screen_of(soft()), 80, 24));
}

#[test]
fn a_large_terminal_shows_all_columns() {
    insta::assert_snapshot!("soft_160x50", drawn(&screen_of(soft()), 160, 50));
}

#[test]
fn a_terminal_below_the_minimum_size_shows_a_message() {
    insta::assert_snapshot!("tiny_40x10", drawn(&screen_of(soft()), 40, 10));
}

#[test]
fn each_view_fills_the_screen() {
    let mut screen = screen_of(soft());
    for (key, name) in [('c', "containers"), ('d', "disks"), ('?', "help")] {
        press(&mut screen, &key.to_string());
        insta::assert_snapshot!(format!("{name}_80x24"), drawn(&screen, 80, 24));
    }
}

#[test]
fn screen_has_only_ascii_characters_in_ascii_mode() {
    let mut state = soft();
    state.pods[0].pod = "名前-1".into();
    let mut screen = screen_of(state);
    screen.is_ascii = true;
    for key in ["1", "2", "3", "c", "d", "?"] {
        press(&mut screen, key);
        assert!(drawn(&screen, 80, 24).is_ascii(), "{key}");
    }
    press(&mut screen, "1");
    insta::assert_snapshot!("ascii_80x24", drawn(&screen, 80, 24));
}

#[test]
fn columns_stay_aligned_with_wide_characters_and_long_names() {
    let mut state = calm();
    state.pods[0].pod = "名前空間のとても長い名前-1".into();
    state.pods[1].pod = "x".repeat(253);
    state.pods[2].pod = "a\u{1b}[2Jb".into();
    insta::assert_snapshot!("names_80x24", drawn(&screen_of(state), 80, 24));
}

fn thousand_pods() -> NodeState {
    let pods = (1..=1000)
        .map(|rank| pod(Some(rank), &format!("shop/pod-{rank:04}"), (2000 - rank as i64) * MI, MI, ""));
    NodeState { pods: pods.collect(), pods_omitted: 7, ..calm() }
}

#[test]
fn selected_pod_is_visible_among_a_thousand_pods() {
    let mut screen = screen_of(thousand_pods());
    press(&mut screen, "G");
    assert!(drawn(&screen, 80, 24).contains(">1000 shop/pod-1000"));
    press_code(&mut screen, KeyCode::PageUp);
    assert!(drawn(&screen, 80, 24).contains("> 990 shop/pod-0990"));
    press(&mut screen, "/0500");
    press_code(&mut screen, KeyCode::Enter);
    let text = drawn(&screen, 80, 24);
    assert!(text.contains("> 500 shop/pod-0500") && text.contains("of 1007 pods, by rank"), "{text}");
    press(&mut screen, "/nothing");
    press_code(&mut screen, KeyCode::Enter);
    assert_eq!(screen.selected().unwrap().pod, "pod-0500", "nothing was found");
    press(&mut screen, "gor");
    let text = drawn(&screen, 80, 24);
    assert!(text.contains("by usage, reverse"), "{text}");
}

#[test]
fn selection_follows_its_pod_until_the_pod_is_removed() {
    let mut screen = screen_of(calm());
    press(&mut screen, "jj");
    assert_eq!(screen.selected().unwrap().pod, "api-5d7c9-x2");
    let mut state = calm();
    state.pods.swap(0, 2);
    state.pods[0].rank = Some(1);
    state.pods[2].rank = Some(3);
    screen.update(state.clone());
    assert_eq!(screen.selected().unwrap().pod, "api-5d7c9-x2");
    state.pods.remove(0);
    screen.update(state);
    assert_eq!(screen.selected().unwrap().rank, Some(2), "the first of the others");
    screen.update(NodeState { pods: Vec::new(), ..calm() });
    press(&mut screen, "jkGg/x");
    press_code(&mut screen, KeyCode::Enter);
    assert_eq!(screen.selected(), None);
}

#[test]
fn drawing_does_not_panic_at_any_size_or_after_any_key() {
    let mut empty = Screen::new(Sort::Rank, false);
    empty.update(NodeState::default());
    let mut wide = thousand_pods();
    wide.pods.truncate(40);
    wide.pods.iter_mut().for_each(|pod| pod.pod = "名前空間のとても長い名前".repeat(8));
    wide.signals = vec![wide.signals[0].clone(); 9];
    let mut full = screen_of(wide);
    for view in ["1", "2", "3", "c", "d", "?"] {
        press(&mut empty, view);
        press(&mut full, view);
        for width in (1..300).step_by(23) {
            for height in [1, 2, 5, 11, 12, 13, 15, 20, 24, 60, 100] {
                drawn(&empty, width, height);
                drawn(&full, width, height);
            }
        }
    }
    for code_of in
        [KeyCode::Tab, KeyCode::BackTab, KeyCode::Delete, KeyCode::F(1), KeyCode::Esc, KeyCode::Left]
    {
        press_code(&mut full, code_of);
        drawn(&full, 80, 24);
    }
}

#[test]
fn keys_scroll_events_containers_and_disks() {
    let mut screen = screen_of(thousand_pods());
    (0..50).for_each(|number| screen.event(format!("event-{number:02}.")));
    press(&mut screen, "e");
    let mut shown = |keys: &str, text: &str| {
        press(&mut screen, keys);
        drawn(&screen, 80, 24).contains(text)
    };
    assert!(shown("", "event-49."));
    assert!(!shown("k", "event-49.") && shown("", "event-48."));
    assert!(shown("j", "event-49.") && shown("jjj", "event-49.") && !shown("k", "event-49."));
    assert!(shown("g", "threshold memory.available") && !shown("j", "threshold memory.available"));
    assert!(shown("G", "event-49.") && !shown("k", "event-49."));
    assert!(shown("c", "shop/pod-0001") && shown("G", "shop/pod-1000"));
    assert!(!shown("kkk", "shop/pod-1000"));
    assert!(shown("d", "shop/pod-0001") && shown("G", "shop/pod-1000") && !shown("k", "shop/pod-1000"));
}

#[test]
fn request_error_is_shown_until_the_next_state() {
    let mut screen = screen_of(calm());
    screen.error =
        Some("error: ask the agent at /run/eviction-agent/agent.sock: No such file or directory".into());
    assert!(drawn(&screen, 80, 24).contains("error: ask the agent"));
    screen.update(calm());
    assert!(drawn(&screen, 80, 24).contains("q quit"));
}

#[test]
fn keys_quit_or_pause_the_screen() {
    let mut screen = screen_of(calm());
    press(&mut screen, " ");
    assert!(screen.is_paused && drawn(&screen, 80, 24).contains("paused"));
    press(&mut screen, "/q");
    assert!(!screen.is_ended, "a letter that is searched for");
    screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert!(screen.is_ended);
    let mut screen = screen_of(calm());
    press(&mut screen, "q");
    assert!(screen.is_ended);
}

/// Opens the golden recording with a screen.
fn recording() -> (tempfile::TempDir, Playback, Screen) {
    let folder = golden_recording();
    let (playback, samples) = Playback::open(folder.path()).unwrap();
    let (events, _) = crate::report::recording::events(folder.path()).unwrap();
    let timeline = Timeline { name: "/var/lib/eviction-agent/recordings".into(), samples, events };
    let mut screen = Screen::new(Sort::Rank, false).of_recording(timeline);
    screen.update(NodeState { at: at(0), ..NodeState::default() });
    (folder, playback, screen)
}

/// Updates the screen like `top` after each key.
fn seek_playback(playback: &mut Playback, screen: &mut Screen) {
    let to = screen.target.take().unwrap();
    playback.seek(to);
    screen.update(playback.state());
    screen.explanation = screen.selected().map_or_else(Vec::new, |pod| playback.explain(&pod.pod_uid));
}

#[test]
fn a_recording_is_shown_at_any_time() {
    let (_folder, mut playback, mut screen) = recording();
    let mut go = |keys: &str| {
        press(&mut screen, keys);
        if keys.starts_with(':') {
            press_code(&mut screen, KeyCode::Enter);
        }
        seek_playback(&mut playback, &mut screen);
        screen.state.clone()
    };
    let end = go("F");
    assert_eq!(end.at, at(8));
    let evicts = go(":08:00:05");
    assert_eq!(evicts.signals[0].available, Some(90));
    assert!(evicts.signals[0].thresholds[0].met && evicts.conditions == ["MemoryPressure"], "{evicts:?}");
    assert_eq!(go("T").at, at(4));
    assert_eq!(go(":-2s").signals[0].available, Some(500));
    assert_eq!(go("]").at, evicts.at, "the first event");
    // The state at a time is the same whether playback reads forward or goes back to it.
    assert_eq!(go(":1s").at, at(6));
    assert_eq!(go(":08:00:05"), evicts);
    assert_eq!(go("F"), end);
    go(":-1h");
    press(&mut screen, ":noon");
    press_code(&mut screen, KeyCode::Enter);
    assert_eq!(screen.target.take(), None);
    assert!(drawn(&screen, 80, 24).contains("no time: noon"));
}

#[test]
fn a_recording_has_a_slider_and_its_own_keys() {
    let (_folder, mut playback, mut screen) = recording();
    press(&mut screen, ":08:00:05");
    press_code(&mut screen, KeyCode::Enter);
    seek_playback(&mut playback, &mut screen);
    insta::assert_snapshot!("recording_80x24", drawn(&screen, 80, 24));
    insta::assert_snapshot!("recording_160x50", drawn(&screen, 160, 50));
    screen.is_ascii = true;
    assert!(drawn(&screen, 80, 24).is_ascii());
}

#[test]
fn a_recording_plays_to_its_end() {
    let (_folder, mut playback, mut screen) = recording();
    press(&mut screen, ":-1h");
    press_code(&mut screen, KeyCode::Enter);
    seek_playback(&mut playback, &mut screen);
    screen.play(jiff::SignedDuration::from_secs(3));
    assert_eq!(screen.target.take(), None, "it is paused");
    press(&mut screen, " ");
    let mut times = 0;
    while !screen.is_paused {
        screen.play(jiff::SignedDuration::from_secs(3));
        seek_playback(&mut playback, &mut screen);
        times += 1;
    }
    assert_eq!((times, screen.state.at), (3, at(8)));
}

#[test]
fn filter_selects_pods_and_persists_across_updates() {
    let mut screen = screen_of(calm());
    let mut filtered = |text: &str| {
        press(&mut screen, "f");
        (0..20).for_each(|_| press_code(&mut screen, KeyCode::Backspace));
        press(&mut screen, text);
        press_code(&mut screen, KeyCode::Enter);
        screen.visible_pods().iter().map(|pod| pod.pod.clone()).collect::<Vec<_>>()
    };
    assert_eq!(filtered("shop/"), ["checkout-5f6d8-2"]);
    assert_eq!(filtered("burstable api"), ["api-5d7c9-x2"]);
    assert_eq!(filtered("guaranteed"), [""; 0]);
    assert_eq!(filtered(">request").len(), 4);
    assert_eq!(filtered("e>").len(), 0);
    assert_eq!(filtered("etcd"), ["etcd-worker-1"]);
    screen.update(calm());
    let text = drawn(&screen, 80, 24);
    assert!(text.contains("1 of 4 pods, by rank, with etcd"), "{text}");
    assert_eq!(screen.selected().unwrap().pod, "etcd-worker-1");
}
