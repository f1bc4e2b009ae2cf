//! `top`: a live screen of a running agent.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use eviction_core::units::GoDuration;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event};
use ratatui::text::Span;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::client::SocketArgs;
use super::output::{Ended, Out, columns};
use super::watch;
use crate::daemon::Failure;
use crate::telemetry::live::state::NodeState;
use crate::top::{Screen, Sort};

/// How soon a signal ends it.
const POLL: Duration = Duration::from_millis(200);

/// Show the node, its pods in the order of eviction and what happens, live from the running agent
#[derive(Debug, Args)]
pub(super) struct TopArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Time between two updates, from 250ms on
    #[arg(short, long, value_name = "DURATION", default_value = "1s", value_parser = delay)]
    delay: Duration,
    /// Sort the pods by this column
    #[arg(long, value_name = "COLUMN", default_value = "rank", value_parser = sort)]
    sort: Sort,
    /// Print the screen once, without colours, with all pods; so does a standard output that is no terminal
    #[arg(long)]
    once: bool,
}

fn delay(text: &str) -> Result<Duration, String> {
    let delay = GoDuration::parse(text).map_err(|error| error.to_string())?;
    let delay = Duration::from_nanos(u64::try_from(delay.as_nanos()).unwrap_or_default());
    // The agent makes a new answer no sooner.
    if delay < Duration::from_millis(250) { Err("must be at least 250ms".to_owned()) } else { Ok(delay) }
}

fn sort(name: &str) -> Result<Sort, String> {
    let found = Sort::ALL.iter().find(|(_, known)| *known == name).map(|(sort, _)| *sort);
    found.ok_or_else(|| format!("must be one of {}", Sort::ALL.map(|(_, name)| name).join(", ")))
}

/// Runs the verb until a key or a signal ends it.
pub(super) fn run(args: &TopArgs, out: &mut Out) -> Result<ExitCode, Ended> {
    let mut source = Source { socket: &args.socket, seq: 0 };
    let mut screen = Screen::new(args.sort, !is_utf8());
    // Without an agent there is nothing to show: said before the screen is taken.
    source.refresh(&mut screen)?;
    if args.once || !std::io::stdout().is_terminal() {
        return once(&screen, out);
    }
    let failed = |error: std::io::Error| Failure::because("draw on the terminal", &error);
    let is_stopped = stop_on_signals()?;
    // The lock of standard output is held by this thread, which may take it again.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let end = follow(&mut terminal, &mut screen, &mut source, args.delay, &is_stopped).map_err(failed);
    let restored = ratatui::try_restore().map_err(failed);
    end?;
    restored?;
    Ok(ExitCode::SUCCESS)
}

fn follow(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    source: &mut Source<'_>,
    delay: Duration,
    is_stopped: &AtomicBool,
) -> std::io::Result<()> {
    let mut asked = Instant::now();
    while !screen.is_ended() && !is_stopped.load(Ordering::Relaxed) {
        terminal.draw(|frame| screen.draw(frame))?;
        let left = delay.saturating_sub(asked.elapsed());
        if event::poll(left.min(POLL))? {
            if let Event::Key(key) = event::read()? {
                let before = screen.selected().map(|pod| pod.pod_uid.clone());
                screen.key(key);
                if screen.selected().map(|pod| pod.pod_uid.clone()) != before {
                    source.explain(screen);
                }
            }
            continue;
        }
        if asked.elapsed() < delay {
            continue;
        }
        asked = Instant::now();
        if !screen.is_paused()
            && let Err(failure) = source.refresh(screen)
        {
            screen.fail(failure.report().0.lines().next().unwrap_or_default().to_owned());
        }
    }
    Ok(())
}

/// The agent, and the last event line of it that was shown.
struct Source<'a> {
    socket: &'a SocketArgs,
    seq: u64,
}

impl Source<'_> {
    fn refresh(&mut self, screen: &mut Screen) -> Result<(), Failure> {
        screen.update(self.socket.get_json::<NodeState>("/v1/state")?);
        let lines = self.socket.get(&format!("/v1/events?since={}", self.seq))?;
        for line in lines.lines() {
            let event: Value = serde_json::from_str(line).unwrap_or_default();
            self.seq = event["seq"].as_u64().unwrap_or(self.seq);
            screen.event(watch::text(&event));
        }
        self.explain(screen);
        Ok(())
    }

    /// A pod may be gone by now.
    fn explain(&self, screen: &mut Screen) {
        let Some(pod) = screen.selected() else { return screen.explain(Vec::new()) };
        let answer = self.socket.get_json::<Value>(&format!("/v1/explain?pod={}/{}", pod.namespace, pod.pod));
        let lines = answer.map(|answer| answer["lines"].clone()).unwrap_or_default();
        let lines = lines.as_array().into_iter().flatten().filter_map(Value::as_str);
        screen.explain(lines.map(str::to_owned).collect());
    }
}

/// Prints a screen that is high enough for all pods.
fn once(screen: &Screen, out: &mut Out) -> Result<ExitCode, Ended> {
    let width = columns().unwrap_or(160).clamp(60, 500);
    let height = u16::try_from(screen.pods() * 2 + 40).unwrap_or(u16::MAX).min(3000);
    let mut terminal = Terminal::new(TestBackend::new(width, height)).map_err(std::io::Error::other)?;
    terminal.draw(|frame| screen.draw(frame)).map_err(std::io::Error::other)?;
    let buffer = terminal.backend().buffer();
    let mut was_empty = false;
    for y in 0..height {
        let (mut row, mut x) = (String::new(), 0);
        while x < width {
            let cell = buffer[(x, y)].symbol();
            row.push_str(cell);
            // A wide character hides the next cell.
            x += u16::try_from(Span::raw(cell).width()).unwrap_or(1).max(1);
        }
        let row = row.trim_end();
        if !(row.is_empty() && was_empty) {
            writeln!(out, "{row}")?;
        }
        was_empty = row.is_empty();
    }
    Ok(ExitCode::SUCCESS)
}

/// By the first of the variables that say so.
fn is_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    set.is_some_and(|locale| locale.to_uppercase().replace('-', "").contains("UTF8"))
}

/// Becomes true at a signal that ends it: the terminal is to be restored first.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let failed = |error: std::io::Error| Failure::because("watch for signals", &error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (mut terminate, mut hangup) = {
        let _within = runtime.enter();
        (signal(SignalKind::terminate()).map_err(failed)?, signal(SignalKind::hangup()).map_err(failed)?)
    };
    let is_stopped = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_stopped);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = terminate.recv() => {}, _ = hangup.recv() => {} }
        });
        seen.store(true, Ordering::Relaxed);
    });
    Ok(is_stopped)
}
