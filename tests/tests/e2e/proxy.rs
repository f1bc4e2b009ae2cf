//! The proxy forwards everything, and breaks what it is set to break.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};
use tests::agent::GUARD;
use tests::cluster::proxy::{Fault, Proxy, Rewrite, When};
use tests::cluster::{Client, Cluster, Options, manifest};

use crate::fixture;

const PODS: &str = "/api/v1/namespaces/default/pods";
const WATCH: &str = "/api/v1/namespaces/default/pods?watch=true";

fn names(client: &Client) -> Vec<String> {
    let pods = client.get(PODS).unwrap().ok().unwrap();
    pods["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the names that a watch reports until it ends or is silent for this time.
fn reported(client: &Client, silence: Duration) -> Vec<String> {
    let mut watch = client.watch(WATCH).unwrap();
    let mut names = Vec::new();
    while let Ok(Some(event)) = watch.next(silence) {
        names.push(event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned());
    }
    names
}

fn client(cluster: &Cluster, proxy: &Proxy, token: &str) -> Client {
    cluster.client_at(token, proxy.port()).unwrap()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario, in the order of its steps")]
fn the_proxy_injects_the_configured_faults() {
    let Some(mut cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    for name in ["a", "b"] {
        cluster.run_pod(&manifest::pod(name, "n1")).unwrap();
    }
    let everything = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let token = cluster.account("user", &everything).unwrap().token;
    let proxy = Proxy::start(&cluster).unwrap();
    let through = client(&cluster, &proxy, &token);
    cluster.until("the rights are known", |_| Ok((through.get(PODS)?.status == 200).then_some(()))).unwrap();
    assert_eq!(names(&through), ["a", "b"]);
    assert_eq!(proxy.requests().last().unwrap().request, format!("GET {PODS}"));
    assert_eq!(proxy.requests().last().unwrap().status, Some(200));

    // Responses that the server never sent, for those requests alone, and so many times.
    let throttled = vec![("retry-after", "3".to_owned())];
    let evictions = When::any().method(Method::POST).path("/eviction").times(2);
    proxy.on(evictions, Fault::Answer(429, throttled, json!({"reason": "TooManyRequests"})));
    let evict =
        || through.post(&format!("{PODS}/a/eviction"), &manifest::eviction("a", &json!({"dryRun": ["All"]})));
    for _ in 0..2 {
        let answer = evict().unwrap();
        assert_eq!((answer.status, answer.reason()), (429, "TooManyRequests"));
        assert_eq!(answer.headers["retry-after"], "3");
    }
    assert_eq!(evict().unwrap().status, 201);

    // Lost before the server, and after it: the client cannot distinguish the two.
    let create_pod = |name: &str| through.post(PODS, &manifest::pod(name, "n1"));
    proxy.on(When::any().method(Method::POST).times(1), Fault::DropRequest);
    create_pod("lost").unwrap_err();
    proxy.on(When::any().method(Method::POST).times(1), Fault::Reset(0));
    create_pod("unknown").unwrap_err();
    assert_eq!(names(&through), ["a", "b", "unknown"]);
    let requests = proxy.requests();
    assert_eq!(
        requests.iter().filter(|it| it.request == format!("POST {PODS}") && it.status.is_none()).count(),
        2
    );

    // Faults in the middle of a response.
    proxy.on(When::any().times(1), Fault::Reset(100));
    through.get(PODS).unwrap_err();
    proxy.on(When::any().times(1), Fault::Truncate(100));
    let Value::String(half) = through.get(PODS).unwrap().body else { panic!("whole JSON") };
    assert_eq!(half.len(), 100);
    assert_eq!(names(&through), ["a", "b", "unknown"]);

    // Responses that are late.
    for fault in
        [Fault::DelayRequest(Duration::from_millis(300)), Fault::DelayResponse(Duration::from_millis(300))]
    {
        proxy.on(When::any().times(1), fault);
        let start = Instant::now();
        assert_eq!(names(&through).len(), 3);
        assert!(start.elapsed() >= Duration::from_millis(300), "it cannot come before");
    }

    // Watches: closed, rewritten, repeated and out of order.
    assert_eq!(reported(&through, Duration::from_secs(1)), ["a", "b", "unknown"]);
    proxy.on(When::any().watch(true).times(1), Fault::Close(Duration::from_secs(1)));
    let mut watch = through.watch(WATCH).unwrap();
    while watch.next(GUARD).unwrap().is_some() {}
    let held = Mutex::new(None::<Value>);
    let swap = move |event: Value| {
        let mut held = held.lock().unwrap();
        let Some(first) = held.take() else {
            *held = Some(event);
            return Vec::new();
        };
        vec![event.clone(), first, event]
    };
    proxy.on(When::any().watch(true), Fault::Rewrite(Rewrite::new(swap)));
    assert_eq!(reported(&through, Duration::from_secs(1)), ["b", "a", "b"]);
    proxy.heal();
    proxy.on(
        When::any().watch(false),
        Fault::Rewrite(Rewrite::new(|mut list| {
            list["items"][1]["metadata"]["name"] = json!("ünïcode");
            vec![list]
        })),
    );
    assert_eq!(names(&through), ["a", "ünïcode", "unknown"]);
    proxy.heal();

    // Faults of the connection itself.
    let mut open = through.watch(WATCH).unwrap();
    while open.next(Duration::from_millis(500)).unwrap().is_some() {}
    proxy.hang();
    cluster.run_pod(&manifest::pod("meanwhile", "n1")).unwrap();
    assert_eq!(open.next(Duration::from_secs(1)).unwrap(), None, "silent, and not ended");
    proxy.heal();
    assert_eq!(open.next(GUARD).unwrap().unwrap()["object"]["metadata"]["name"], "meanwhile");
    proxy.refuse();
    while open.next(GUARD).is_ok_and(|event| event.is_some()) {}
    // The first request may still use the connection that is cut.
    let refused =
        |_: &Cluster| Ok(format!("{:#}", through.get(PODS).unwrap_err()).contains("refused").then_some(()));
    cluster.until("no process listens", refused).unwrap();
    proxy.heal();
    cluster.until("the proxy listens again", |_| Ok(through.get(PODS).ok())).unwrap();
    proxy.use_untrusted_certificate().unwrap();
    let refused = format!("{:#}", client(&cluster, &proxy, &token).get(PODS).unwrap_err());
    assert!(refused.contains("UnknownIssuer"), "{refused}");
}
