//! Readers that do not read.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::Stdio;

use tests::skip;

use crate::fixture::{Fixture, full_pipe, node};

/// Starts a scraper that sends requests without end and never reads a response.
fn stuck_scraper(fixture: &Fixture) -> TcpStream {
    let mut stream = TcpStream::connect(fixture.address).unwrap();
    stream.set_nonblocking(true).unwrap();
    let requests = b"GET /metrics HTTP/1.1\r\nHost: agent\r\n\r\n".repeat(100);
    for _ in 0..100 {
        if stream.write(&requests).is_err() {
            break;
        }
        std::thread::yield_now();
    }
    stream
}

#[test]
fn stuck_readers_do_not_delay_decisions() {
    let Some(node) = node("stuck") else { skip!("no cgroups can be made here") };
    let (_out, stdout) = full_pipe();
    let (_log, stderr) = full_pipe();
    let fixture = Fixture::start_with(node, stdout, stderr, "trace");
    let _scrapers = [stuck_scraper(&fixture), stuck_scraper(&fixture)];
    fixture.assert_hog_is_evicted("230M", "400M");
    assert_eq!(fixture.metric("eviction_agent_eviction_decisions_total"), 1.0);
    // Each request is logged, and no process reads the log.
    fixture.until("what is lost is counted", || fixture.dropped("log") > 0.0);
    assert_eq!(fixture.get("/healthz").unwrap().0, 200);
    // Unread output is left behind.
    fixture.stop();
}

#[test]
fn event_lines_are_kept_for_a_late_reader() {
    let Some(node) = node("late") else { skip!("no cgroups can be made here") };
    let (out, stdout) = full_pipe();
    let fixture = Fixture::start_with(node, stdout, Stdio::null(), "info");
    let mut hog = fixture.node.run(0, &["grow", "--size", "230M", "--rate", "400M"]).unwrap();
    fixture.until("the hog is killed", || !hog.process().is_running().unwrap());
    fixture.until("the eviction is reported", || fixture.metric("eviction_agent_evictions_total") == 1.0);
    let reader = std::thread::spawn(move || std::io::read_to_string(std::fs::File::from(out)).unwrap());
    assert_eq!(fixture.dropped("output"), 0.0);
    fixture.stop();
    let text = reader.join().unwrap();
    for event in ["started", "eviction_decision", "eviction_progress", "stopped"] {
        let named = format!("\"event\":\"{event}\"");
        assert!(text.lines().any(|line| line.contains(&named)), "{event} in {text}");
    }
}
