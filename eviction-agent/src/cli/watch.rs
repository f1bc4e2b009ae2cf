//! `watch`: follows the events of a running agent.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use eviction_core::time::Timestamp;
use eviction_core::units::GoDuration;
use jiff::SignedDuration;
use rustix::event::PollFlags;
use serde_json::Value;

use super::client::SocketArgs;
use super::output::{Out, StreamFormat, VerbError, poll_stdout, write_stderr};
use crate::telemetry::live::EventCursor;

/// The interval of requests to the agent.
const INTERVAL: Duration = Duration::from_millis(500);

/// Follow the events of a running agent: thresholds, evictions, OOM kills and all else that it reports
#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Show the events of this time only, for example 10m [default: all that the agent still has]
    #[arg(long, value_name = "DURATION", value_parser = GoDuration::parse)]
    since: Option<GoDuration>,
    /// Show events of this kind only, for example eviction_decision (repeatable)
    #[arg(long, value_name = "EVENT")]
    event: Vec<String>,
    /// Show events of one pod only
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    pod: Option<String>,
    /// End after the first event of this kind
    #[arg(long, value_name = "EVENT")]
    exit_on: Option<String>,
    /// Print the events so far, and do not wait for others
    #[arg(long)]
    once: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = StreamFormat::Table, help_heading = "Output")]
    output: StreamFormat,
}

/// Runs the verb until its reader closes standard output, or one of the options ends it.
pub(super) fn run(args: &WatchArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let mut cursor = EventCursor::default();
    let mut target = match args.since {
        Some(since) => {
            let since = SignedDuration::from_nanos(since.as_nanos());
            let begin = Timestamp::now().checked_sub(since).unwrap_or(Timestamp::MIN);
            format!("/v1/events?since={begin}")
        }
        None => cursor.target(),
    };
    let (mut has_answered, mut is_unreachable) = (false, false);
    loop {
        match args.socket.get(&target) {
            Ok(lines) => {
                (has_answered, is_unreachable) = (true, false);
                for line in lines.lines() {
                    let event: Value = serde_json::from_str(line).unwrap_or_default();
                    report_gap(cursor.advance(&event));
                    if args.wants(&event) {
                        args.print(line, &event, out)?;
                    }
                    if args.exit_on.as_deref().is_some_and(|kind| event["event"] == *kind) {
                        return Ok(ExitCode::SUCCESS);
                    }
                }
                if !lines.is_empty() {
                    target = cursor.target();
                }
            }
            Err(failure) if args.once || !has_answered => return Err(failure.into()),
            Err(_) => {
                if !std::mem::replace(&mut is_unreachable, true) {
                    write_stderr("warning: the agent does not answer; waiting for it\n");
                }
            }
        }
        out.flush()?;
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        // Without events, a closed pipe is detected here.
        if poll_stdout(PollFlags::empty(), Duration::ZERO).contains(PollFlags::ERR) {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Warns about events that the agent no longer had.
fn report_gap(missed: u64) {
    if missed > 0 {
        write_stderr(&format!("warning: {missed} events are missing: the agent no longer has them\n"));
    }
}

impl WatchArgs {
    fn wants(&self, event: &Value) -> bool {
        let is_of_kind = self.event.is_empty() || self.event.iter().any(|kind| event["event"] == **kind);
        let is_of_pod = self.pod.as_deref().is_none_or(|wanted| match wanted.split_once('/') {
            Some((namespace, name)) => event["namespace"] == *namespace && event["pod"] == *name,
            None => event["pod"] == *wanted,
        });
        is_of_kind && is_of_pod
    }

    fn print(&self, line: &str, event: &Value, out: &mut Out) -> std::io::Result<()> {
        match self.output {
            StreamFormat::Jsonl => writeln!(out, "{line}"),
            StreamFormat::Table => writeln!(out, "{}", text(event)),
        }
    }
}

/// Returns an event as a line of text, as `run` prints it.
pub(super) fn text(event: &Value) -> String {
    let field = |name: &str| event[name].as_str().unwrap_or_default();
    let at =
        field("at").parse::<Timestamp>().map_or_else(|_| field("at").to_owned(), |at| format!("{at:.3}"));
    // A terminal would interpret control characters.
    format!("{at} {}", field("message").replace(char::is_control, " "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_chosen_by_kind_and_pod() {
        let event = json!({"event": "oom_kill", "namespace": "shop", "pod": "img-9"});
        let wants = |events: &[&str], pod: Option<&str>| {
            let socket = SocketArgs::default();
            let event_kinds = events.iter().map(|it| (*it).to_owned()).collect();
            let pod = pod.map(str::to_owned);
            let output = StreamFormat::Table;
            let args =
                WatchArgs { socket, since: None, event: event_kinds, pod, exit_on: None, once: true, output };
            args.wants(&event)
        };
        assert!(
            wants(&[], None) && wants(&["pods", "oom_kill"], Some("img-9")) && wants(&[], Some("shop/img-9"))
        );
        assert!(!wants(&["pods"], None) && !wants(&[], Some("web/img-9")) && !wants(&[], Some("img")));
    }

    #[test]
    fn a_line_has_the_time_and_no_control_characters() {
        let event = json!({"at": "2026-01-05T08:00:00.1234Z", "message": "a\u{1b}[2Jb"});
        assert_eq!(text(&event), "2026-01-05T08:00:00.123Z a [2Jb");
    }
}
