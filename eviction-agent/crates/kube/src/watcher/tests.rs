use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::fake_server::{AfterResponse, RequestHeads, ended_watch, json, open_watch, serve};
use crate::metrics::{MetricEvent, Observer};
use tokio::time::sleep;

/// A timeout for a watcher that hangs.
const GUARD: Duration = Duration::from_secs(60);

const LIST: &str = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"10"},"items":[
    {"metadata":{"namespace":"a","name":"one","uid":"1","resourceVersion":"5"}},
    {"metadata":"x"},
    {"metadata":{"namespace":"a","name":"odd","uid":"2","resourceVersion":"6"},"spec":5}]}"#;

struct Fixture {
    view: watch::Receiver<Arc<StoreView<String>>>,
    counts: Arc<Mutex<BTreeMap<WatchEvent, u64>>>,
    seen: RequestHeads,
}

fn decode(json: &[u8]) -> Result<String, String> {
    let pod: serde_json::Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    match pod.get("spec") {
        Some(serde_json::Value::Number(_)) => Err("spec: a number".to_owned()),
        _ => Ok(pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()),
    }
}

/// Starts a watcher with a server that responds to each list with [`LIST`], and to watches with the elements
/// of `watches` in order; the last one is repeated.
async fn fixture(watches: Vec<(Vec<u8>, AfterResponse)>) -> Fixture {
    let next = AtomicUsize::new(0);
    fixture_of(move |head| match head.contains("watch=true") {
        true => {
            let nth = next.fetch_add(1, Ordering::Relaxed).min(watches.len() - 1);
            watches[nth].clone()
        }
        false => json(200, LIST),
    })
    .await
}

async fn fixture_of(respond: impl Fn(&str) -> (Vec<u8>, AfterResponse) + Send + Sync + 'static) -> Fixture {
    let (server, seen) = serve(respond).await;
    let counts = Arc::new(Mutex::new(BTreeMap::new()));
    let observer = Observer::new({
        let counts = Arc::clone(&counts);
        move |event| {
            if let MetricEvent::Watch("pods", event) = event {
                *counts.lock().unwrap().entry(event).or_insert(0) += 1;
            }
        }
    });
    let resource = WatchedResource {
        kind: ("Pod", "pods"),
        field_selector: "spec.nodeName=n1".to_owned(),
        decode: Box::new(decode),
        is_finished: |_| false,
    };
    let (watcher, view) = Watcher::new(Client::observed(server, observer).unwrap(), resource);
    tokio::spawn(watcher.run());
    Fixture { view, counts, seen }
}

impl Fixture {
    async fn wait_for(&mut self, what: impl Fn(&StoreView<String>) -> bool) -> Arc<StoreView<String>> {
        let view = tokio::time::timeout(GUARD, self.view.wait_for(|view| what(view))).await;
        Arc::clone(&view.unwrap().unwrap())
    }

    async fn wait_for_count(&self, event: WatchEvent, least: u64) {
        let reached = async {
            while self.count(event) < least {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(GUARD, reached).await.unwrap();
    }

    fn count(&self, event: WatchEvent) -> u64 {
        self.counts.lock().unwrap().get(&event).copied().unwrap_or(0)
    }

    fn lists(&self) -> usize {
        self.seen.lock().unwrap().iter().filter(|head| !head.contains("watch=true")).count()
    }
}

fn names(view: &StoreView<String>) -> Vec<&str> {
    view.objects.iter().map(|name| name.as_str()).collect()
}

const TWO: &str = r#"{"type":"ADDED","object":{"metadata":{"namespace":"a","name":"two","uid":"3","resourceVersion":"11"}}}"#;

#[tokio::test]
async fn undecodable_object_does_not_affect_other_objects() {
    let watch = open_watch(&[
        r#"{"type":"NEW","object":{}}"#,
        "no JSON",
        r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"10"}}}"#,
        TWO,
        TWO,
        r#"{"type":"DELETED","object":{"metadata":{"namespace":"a","name":"one","uid":"1","resourceVersion":"12"}}}"#,
    ]);
    let mut fixture = fixture(vec![watch]).await;
    let view = fixture.wait_for(|view| names(view) == ["two"]).await;
    assert_eq!(view.unreadable, ["a/odd: spec: a number"]);
    assert_eq!(view.error, None);
    let count = |event| fixture.count(event);
    assert_eq!((count(WatchEvent::Unreadable), count(WatchEvent::Repeated)), (4, 1));
    assert_eq!((count(WatchEvent::Bookmark), count(WatchEvent::Failed)), (1, 0));
    let seen = fixture.seen.lock().unwrap();
    assert!(
        seen[0].contains("limit=50") && seen[0].contains("fieldSelector=spec.nodeName%3Dn1"),
        "{}",
        seen[0]
    );
    assert!(
        seen[1].contains("resourceVersion=10") && seen[1].contains("allowWatchBookmarks=true"),
        "{}",
        seen[1]
    );
}

#[tokio::test]
async fn invalid_metadata_in_a_watch_causes_a_new_list() {
    let odd = r#"{"type":"ADDED","object":{"metadata":"x"}}"#;
    let mut fixture = fixture(vec![open_watch(&[odd]), open_watch(&[TWO])]).await;
    let view = fixture.wait_for(|view| view.error.is_some()).await;
    assert_eq!(view.error.as_deref(), Some("watch pods: an object without a resourceVersion"));
    let view = fixture.wait_for(|view| names(view) == ["one", "two"]).await;
    assert_eq!((fixture.lists(), &view.error), (2, &None));
    // Two objects of each list are unreadable.
    assert_eq!((fixture.count(WatchEvent::Failed), fixture.count(WatchEvent::Unreadable)), (1, 4));
}

/// A server with the feature gate `WatchList` off responds with 422 to such a watch.
#[tokio::test]
async fn objects_are_listed_without_watch_list() {
    let mut fixture = fixture_of(|head| {
        let is_watch_list = head.contains("sendInitialEvents");
        match (is_watch_list, head.contains("watch=true")) {
            (true, _) => json(422, r#"{"kind":"Status","code":422,"reason":"Invalid"}"#),
            (false, true) => open_watch(&[TWO]),
            (false, false) => json(200, LIST),
        }
    })
    .await;
    let view = fixture.wait_for(|view| names(view) == ["one", "two"]).await;
    assert_eq!((&view.error, fixture.count(WatchEvent::Failed)), (&None, 0));
    let seen = fixture.seen.lock().unwrap();
    assert!(seen.len() == 2 && !seen.concat().contains("sendInitialEvents"), "{seen:?}");
}

#[tokio::test]
async fn retry_after_of_a_list_or_watch_is_respected() {
    let throttled = b"HTTP/1.1 429 X\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n".to_vec();
    let times = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&times);
    let mut fixture = fixture_of(move |head| {
        let mut times = log.lock().unwrap();
        times.push(Instant::now());
        match (times.len(), head.contains("watch=true")) {
            (1, false) | (3, true) => (throttled.clone(), AfterResponse::Close),
            (_, true) => open_watch(&[TWO]),
            (_, false) => json(200, LIST),
        }
    })
    .await;
    fixture.wait_for(|view| names(view) == ["one", "two"]).await;
    let times = times.lock().unwrap();
    assert_eq!((times.len(), fixture.lists(), fixture.count(WatchEvent::Failed)), (4, 2, 2));
    // The pauses after a first and a second error are shorter.
    for response in [0, 2] {
        assert!(times[response + 1] - times[response] >= Duration::from_secs(1), "{times:?}");
    }
}

#[tokio::test]
async fn unknown_resource_version_causes_a_new_list() {
    let gone =
        json(410, r#"{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"}"#);
    let ahead =
        json(504, r#"{"kind":"Status","code":504,"message":"Too large resource version: 12, current: 3"}"#);
    let in_watch =
        open_watch(&[r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}"#]);
    let ahead_in_watch = ended_watch(&[
        r#"{"type":"ERROR","object":{"kind":"Status","code":504,"message":"Too large resource version: 12, current: 3"}}"#,
    ]);
    // After the last of these watches there is a new list.
    let rows = [
        (vec![gone], WatchEvent::Expired),
        (vec![in_watch], WatchEvent::Expired),
        (vec![ahead; 3], WatchEvent::Failed),
        (vec![ahead_in_watch; 3], WatchEvent::Failed),
    ];
    futures::future::join_all(rows.map(async |(mut watches, event)| {
        let errors = watches.len() as u64;
        watches.push(open_watch(&[TWO]));
        let mut fixture = fixture(watches).await;
        let view = fixture.wait_for(|view| names(view) == ["one", "two"]).await;
        assert_eq!((fixture.lists(), &view.error), (2, &None), "{event:?}");
        assert_eq!(fixture.count(event), errors, "{event:?}");
    }))
    .await;
}

#[tokio::test]
async fn ended_watches_resume_where_they_ended_after_a_pause() {
    let (mut with_trailers, _) = open_watch(&[TWO]);
    with_trailers.extend_from_slice(b"0\r\nx: y\r\n\r\n");
    for watch in [ended_watch(&[TWO]), (with_trailers, AfterResponse::Close)] {
        let fixture = fixture(vec![watch]).await;
        fixture.wait_for_count(WatchEvent::Closed, 4).await;
        assert_eq!((fixture.lists(), fixture.count(WatchEvent::Failed)), (1, 0));
        let times: Vec<_> =
            fixture.seen.lock().unwrap().iter().filter(|head| head.contains("watch=true")).cloned().collect();
        assert!(times.last().unwrap().contains("resourceVersion=11"), "each goes on where the last ended");
        // Without pauses there would be hundreds.
        sleep(Duration::from_millis(500)).await;
        assert!(fixture.count(WatchEvent::Watched) < 20);
    }
}

#[tokio::test]
async fn redirected_watch_is_reported_and_retried() {
    let mut fixture = fixture(vec![json(302, ""), open_watch(&[TWO])]).await;
    let view = fixture.wait_for(|view| view.error.is_some()).await;
    assert_eq!(view.error.as_deref(), Some("watch pods: the server answers 302"));
    fixture.wait_for(|view| names(view) == ["one", "two"] && view.error.is_none()).await;
    assert_eq!(fixture.lists(), 1);
}

#[tokio::test]
async fn overlong_line_is_skipped() {
    let long = format!(r#"{{"type":"ADDED","object":{{"metadata":{{"name":"{}"}}}}}}"#, "x".repeat(9 << 20));
    let mut fixture = fixture(vec![open_watch(&[&long, TWO])]).await;
    fixture.wait_for(|view| names(view) == ["one", "two"]).await;
    let count = |event| fixture.count(event);
    assert_eq!((count(WatchEvent::TooLong), count(WatchEvent::Failed)), (1, 0));
}

#[tokio::test]
async fn broken_watch_is_reported_until_the_next_one_starts() {
    let (cut, _) = open_watch(&[]);
    let mut fixture = fixture(vec![(cut, AfterResponse::Close), open_watch(&[])]).await;
    let view = fixture.wait_for(|view| view.error.is_some()).await;
    assert_eq!(view.error.as_deref(), Some("watch pods: the connection broke"));
    assert_eq!(names(&view), ["one"]);
    fixture.wait_for(|view| view.error.is_none()).await;
    assert_eq!(fixture.lists(), 1);
}

#[tokio::test]
async fn failed_list_is_reported_and_retried() {
    let too_large = format!(
        r#"{{"kind":"PodList","metadata":{{"resourceVersion":"1"}},"items":["{}"]}}"#,
        "x".repeat(64 << 20)
    );
    let responses = Mutex::new(vec![
        json(200, LIST),
        json(200, &too_large),
        json(200, "<html>"),
        json(500, "<html>"),
        json(403, r#"{"kind":"Status","code":403,"message":"pods is forbidden"}"#),
    ]);
    let mut fixture = fixture_of(move |head| match head.contains("watch=true") {
        true => open_watch(&[]),
        false => responses.lock().unwrap().pop().unwrap(),
    })
    .await;
    for expected in [
        "list pods: the server answers 403: pods is forbidden",
        "list pods: the server answers 500",
        "list pods: not a list: ",
        "list pods: the response is longer than 33554432 bytes",
    ] {
        let view =
            fixture.wait_for(|view| view.error.as_ref().is_some_and(|it| it.starts_with(expected))).await;
        assert!(!view.synced && view.objects.is_empty());
    }
    fixture.wait_for(|view| view.synced && view.error.is_none()).await;
    assert_eq!(fixture.count(WatchEvent::Failed), 4);
}
