use eviction_core::disk_layout::DiskLayout;
use eviction_core::fixture::{at, container, limits, memory_of, pod, set, snapshot};
use eviction_core::pod::{Pod, Resources};
use eviction_core::record::PodSample;
use eviction_core::snapshot::NodeStats;

use super::*;
use crate::telemetry::live::state::{NodeState, PodState};

const MI: u64 = 1 << 20;

/// Returns a sample of pods with these names in the namespace `default`, usages in Mi and requests.
pub(crate) fn sample_of(seconds: i64, pods: &[(&str, u64, &str)]) -> PodSample {
    let usage: Vec<_> = pods.iter().map(|(name, used, _)| memory_of(name, used * MI)).collect();
    let limited = |memory: &str| Resources { limits: limits(&[("memory", "500Mi")]).limits, ..of(memory) };
    let pods = pods.iter().map(|(name, _, request)| Pod {
        containers: vec![container("main", limited(request))],
        ..pod(name, request)
    });
    let pods = set(pods.collect());
    let snapshot = snapshot(NodeStats::default(), &usage).indexed(&pods);
    let (layout, in_flight) = (DiskLayout::default(), Vec::new());
    PodSample { at: at(seconds), pods, snapshot, layout, in_flight, sized: false }
}

fn of(memory: &str) -> Resources {
    eviction_core::fixture::requests(&[("memory", memory)])
}

fn state(live: &Mutex<Live>, metrics: &Metrics) -> NodeState {
    lock(live).cached = None;
    serde_json::from_slice(&lock(live).state(metrics)).unwrap()
}

#[test]
fn pods_are_in_eviction_order_with_their_growth_rate() {
    let (live, metrics) = (Live::new(Some("worker-1".to_owned())), Metrics::new("0", "0"));
    assert_eq!(state(&live, &metrics).pods_at, None);
    lock(&live).pods.push(sample_of(0, &[("a", 100, "10Mi"), ("b", 200, "10Mi")]));
    assert_eq!(state(&live, &metrics).pods[0].usage_per_second, None, "one sample shows no growth");
    for second in 1..=12 {
        let used = 100 + 20 * u64::try_from(second).unwrap();
        lock(&live).pods.push(sample_of(second, &[("a", used, "10Mi"), ("b", 200, "10Mi"), ("c", 5, "9Mi")]));
    }
    let state = state(&live, &metrics);
    let names: Vec<_> = state.pods.iter().map(|pod| (&*pod.pod, pod.rank)).collect();
    assert_eq!(names, [("pod-a", Some(1)), ("pod-b", Some(2)), ("pod-c", Some(3))]);
    let PodState { usage_per_second, limit_eta_seconds, over_request, forecast, .. } = &state.pods[0];
    let grows = 20.0 * 1024.0 * 1024.0;
    assert!((usage_per_second.unwrap() - grows).abs() < 1.0, "{usage_per_second:?}");
    assert!((limit_eta_seconds.unwrap() - 8.0).abs() < 0.01, "340 of 500 Mi: {limit_eta_seconds:?}");
    assert_eq!((*over_request, &**forecast), (Some(330 << 20), "evicted next"));
    assert_eq!((state.pods[1].usage_per_second, state.pods[1].limit_eta_seconds), (Some(0.0), None));
    assert_eq!(state.pods[1].forecast, "needs +140Mi and more".split(" and").next().unwrap());
    assert_eq!(state.node.as_deref(), Some("worker-1"));
}

#[test]
fn at_most_1000_pods_are_listed() {
    let (live, metrics) = (Live::new(None), Metrics::new("0", "0"));
    let names: Vec<String> = (0..1200).map(|number| format!("{number:04}")).collect();
    let pods: Vec<_> = names.iter().map(|name| (&**name, 1, "1Mi")).collect();
    lock(&live).pods.push(sample_of(0, &pods));
    let state = state(&live, &metrics);
    assert_eq!((state.pods.len(), state.pods_omitted), (1000, 200));
}

#[test]
fn state_response_is_cached_between_requests() {
    let (live, metrics) = (Live::new(None), Metrics::new("0", "0"));
    let first = lock(&live).state(&metrics);
    lock(&live).pods.push(sample_of(0, &[("a", 1, "1Mi")]));
    let second = lock(&live).state(&metrics);
    assert_eq!(first.as_ptr(), second.as_ptr());
}

#[test]
fn explain_finds_a_pod_by_name_or_takes_the_first_one() {
    let live = Live::new(None);
    let explain = |pod| lock(&live).explain(pod, Signal::MemoryAvailable);
    assert_eq!(explain(None).unwrap_err().0, StatusCode::SERVICE_UNAVAILABLE);
    lock(&live).pods.push(sample_of(0, &[("a", 100, "10Mi"), ("b", 200, "10Mi")]));
    assert_eq!(
        explain(None).unwrap().lines[0],
        "default/pod-b is evicted first for memory.available: rank 1 of 2"
    );
    for name in ["pod-a", "default/pod-a"] {
        let explanation = explain(Some(name)).unwrap();
        assert_eq!((explanation.rank, explanation.pods), (Some(2), 2));
        assert!(
            explanation.lines.iter().any(|line| line.contains("100Mi more used")),
            "{:?}",
            explanation.lines
        );
    }
    let error = explain(Some("shop/pod-aa")).unwrap_err();
    assert_eq!(error, (StatusCode::NOT_FOUND, "no such pod; the nearest is default/pod-a".to_owned()));
}

#[test]
fn state_has_the_threshold_values_of_the_metrics() {
    let (live, metrics) = (Live::new(None), Metrics::new("0", "0"));
    let signal = "memory.available";
    metrics.signal_available_bytes.with([signal]).set(Some(700));
    metrics.threshold_bytes.with([signal, "hard", "agent"]).set(Some(500));
    metrics.threshold_bytes.with([signal, "hard", "kubelet"]).set(Some(400));
    let (met, eta) =
        (metrics.threshold_met.with([signal, "hard"]), metrics.threshold_eta.with([signal, "hard"]));
    eta.set(Some(12));
    let of_agent = |state: NodeState| {
        let signal = state.signals.into_iter().find(|it| it.signal == signal).unwrap();
        assert_eq!(signal.thresholds.len(), 2);
        signal.thresholds.into_iter().find(|it| it.source == "agent").unwrap()
    };
    let threshold = of_agent(state(&live, &metrics));
    assert_eq!((threshold.value, threshold.met, threshold.eta_seconds), (500, false, Some(12.0)));
    met.set(Some(1));
    eta.set_f64(Some(f64::INFINITY));
    let threshold = of_agent(state(&live, &metrics));
    assert_eq!((threshold.met, threshold.eta_seconds), (true, None));
}

#[test]
fn events_are_numbered_and_bounded() {
    let mut ring = EventRing::default();
    let at = |second| Timestamp::from_second(second).unwrap();
    for number in 1..=3 {
        ring.push(at(number), &format!("{{\"event\":\"e{number}\"}}"));
    }
    let line = |seq: u32| format!("{{\"seq\":{seq},\"agent_start\":0,\"event\":\"e{seq}\"}}\n");
    assert_eq!(ring.after(1), [2, 3].map(line).concat());
    assert_eq!(ring.after(3), "");
    assert_eq!(ring.after(500).lines().count(), 3, "the agent was restarted");
    assert_eq!(ring.since(at(3)).lines().count(), 1);
    (0..2 * EVENTS).for_each(|_| ring.push(at(4), "{\"a\":1}"));
    assert_eq!(ring.lines.len(), EVENTS);
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(EVENT_BYTES / 10));
    (0..20).for_each(|_| ring.push(at(5), &long));
    assert!(ring.bytes <= EVENT_BYTES && ring.lines.len() < 10, "{}", ring.bytes);
    ring.push(at(6), &format!("{{\"a\":\"{}\"}}", "x".repeat(2 * EVENT_BYTES)));
    assert_eq!(ring.lines.len(), 0, "a line longer than all of the room is not kept");
    assert_eq!(ring.bytes, 0);
}

#[test]
fn event_cursor_counts_missed_lines_of_one_agent_and_of_the_next() {
    let line = |seq: u64, agent_start: i64| serde_json::json!({"seq": seq, "agent_start": agent_start});
    let mut cursor = EventCursor::default();
    assert_eq!(cursor.advance(&line(5, 100)), 0, "a client may begin anywhere");
    assert_eq!(cursor.advance(&line(8, 100)), 2);
    assert_eq!(cursor.advance(&Value::Null), 0);
    assert_eq!(cursor.target(), "/v1/events?since=8&agent_start=100");
    assert_eq!(cursor.advance(&line(3, 200)), 2, "the next agent counts from 1");
}
