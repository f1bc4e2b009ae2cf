//! `top`: a screen of a running agent, of one that runs for it, or of a recording.

mod standalone;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::cursor::Show;
use crossterm::event::{self, Event};
use crossterm::execute;
use eviction_core::time::Timestamp;
use eviction_core::units::GoDuration;
use jiff::SignedDuration;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::text::Span;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::client::SocketArgs;
use super::output::{Ended, Out, columns, complain};
use super::watch;
use crate::daemon::Failure;
use crate::report;
use crate::scenario::playback::Playback;
use crate::telemetry::live::state::NodeState;
use crate::top::timeline::Timeline;
use crate::top::{Screen, Sort};
use standalone::Standalone;

/// How soon a signal ends it.
const POLL: Duration = Duration::from_millis(200);

/// How long a key that was pressed is waited for: crossterm reads none with no time at all.
const KEY: Duration = Duration::from_millis(1);

/// How long after a signal it ends in any case.
const STOP: Duration = Duration::from_secs(3);

/// How long the first sample of the pods may take for `--once`.
const FIRST_SAMPLE: Duration = Duration::from_secs(15);

/// Show the node, its pods in the order of eviction and what happens: live from the running agent, without
/// one by sampling the node, or from a recording
#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// Recording: a directory of `recorder.directory` or one of its segments
    #[arg(value_name = "FILE", conflicts_with = "socket")]
    file: Option<PathBuf>,
    #[command(flatten)]
    socket: SocketArgs,
    /// Time of the recording to begin at [default: its end]
    #[arg(long, value_name = "TIME", requires = "file")]
    at: Option<Timestamp>,
    /// Time between two updates, from 250ms on
    #[arg(short, long, value_name = "DURATION", default_value = "1s", value_parser = delay)]
    delay: Duration,
    /// Sort the pods by this column
    #[arg(long, value_name = "COLUMN", default_value = "rank", value_parser = sort)]
    sort: Sort,
    /// Print the screen once, without colours, with all pods; so does a standard output that is no terminal
    #[arg(long)]
    once: bool,
    /// Options of `run`, such as --pods-file: by these the node is sampled, whether an agent runs or not
    #[arg(value_name = "RUN_OPTION", last = true, conflicts_with_all = ["file", "socket"])]
    run: Vec<OsString>,
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
    let is_once = args.once || !std::io::stdout().is_terminal();
    let screen = Screen::new(args.sort, !is_utf8(|name| std::env::var(name).ok()));
    if let Some(file) = &args.file {
        let (source, screen) = recording(file, args.at, screen)?;
        return show(args, source, screen, is_once, out);
    }
    let socket = &args.socket;
    let is_alone = !args.run.is_empty() || (socket.is_default() && !socket.has_agent());
    let agent = is_alone.then(|| Standalone::start(&args.run)).transpose()?;
    let socket = agent.as_ref().map_or(socket, |(_, socket)| socket).clone();
    show(args, Source::Agent { socket, seq: 0, is_alone }, screen, is_once, out)
}

fn show(
    args: &TopArgs,
    mut source: Source,
    mut screen: Screen,
    is_once: bool,
    out: &mut Out,
) -> Result<ExitCode, Ended> {
    // Without an agent there is nothing to show: said before the screen is taken.
    source.refresh(&mut screen)?;
    let begin = Instant::now();
    while is_once && source.is_alone() && !screen.has_pods() && begin.elapsed() < FIRST_SAMPLE {
        std::thread::sleep(POLL);
        source.refresh(&mut screen)?;
    }
    if is_once {
        return once(&screen, out);
    }
    let failed = |error: std::io::Error| Failure::because("draw on the terminal", &error);
    let is_stopped = stop_on_signals()?;
    // The lock of standard output is held by this thread, which may take it again.
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let _unshown = execute!(std::io::stdout(), Show);
        before(panic);
    }));
    // At its end it would print an error, and panic, where the terminal is gone.
    let mut terminal = ManuallyDrop::new(ratatui::try_init().map_err(failed)?);
    let end = follow(&mut terminal, &mut screen, &mut source, args.delay, &is_stopped);
    let restored = terminal.show_cursor().and(ratatui::try_restore());
    end.and(restored).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn follow(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    source: &mut Source,
    delay: Duration,
    is_stopped: &AtomicBool,
) -> std::io::Result<()> {
    let mut asked = Instant::now();
    while !screen.is_ended() && !is_stopped.load(Ordering::Relaxed) {
        terminal.draw(|frame| screen.draw(frame))?;
        if !is_terminal_open(delay.saturating_sub(asked.elapsed()).min(POLL)) {
            break;
        }
        while event::poll(KEY)? {
            if let Event::Key(key) = event::read()? {
                let before = screen.selected().map(|pod| pod.pod_uid.clone());
                screen.key(key);
                source.seek(screen);
                if screen.selected().map(|pod| pod.pod_uid.clone()) != before {
                    source.explain(screen);
                }
            }
        }
        if asked.elapsed() < delay {
            continue;
        }
        asked = Instant::now();
        screen.play(SignedDuration::try_from(delay).unwrap_or_default());
        source.seek(screen);
        if !screen.is_paused()
            && let Err(failure) = source.refresh(screen)
        {
            screen.fail(failure.report().0.lines().next().unwrap_or_default().to_owned());
        }
    }
    Ok(())
}

/// Waits for a key. False if the terminal is gone, which crossterm would read for ever.
fn is_terminal_open(timeout: Duration) -> bool {
    let stdout = std::io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).unwrap_or_default();
    // A signal ends the wait: it is checked next.
    let _interrupted = poll(&mut fds, Some(&timeout));
    !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// What is shown.
enum Source {
    Agent {
        socket: SocketArgs,
        /// The last event line that was shown.
        seq: u64,
        /// It runs for this screen only.
        is_alone: bool,
    },
    Recording(Box<Playback>),
}

/// A recording at a time.
fn recording(file: &Path, at: Option<Timestamp>, screen: Screen) -> Result<(Source, Screen), Failure> {
    let failed = |error: String| Failure::failed(format!("top: {error}"));
    let (mut playback, samples) =
        Playback::open(file).map_err(|error| Failure::because(format!("read {}", file.display()), &error))?;
    let (events, warnings) = report::recording::events(file).map_err(failed)?;
    warnings.iter().for_each(|warning| complain(&format!("warning: {warning}\n")));
    let timeline = Timeline { name: file.display().to_string(), samples, events };
    let (first, last) = timeline.ends();
    playback.seek(at.unwrap_or(last).clamp(first, last));
    Ok((Source::Recording(Box::new(playback)), screen.of_recording(timeline)))
}

impl Source {
    fn refresh(&mut self, screen: &mut Screen) -> Result<(), Failure> {
        match self {
            Self::Agent { socket, seq, is_alone: _ } => {
                screen.update(socket.get_json::<NodeState>("/v1/state")?);
                let lines = socket.get(&format!("/v1/events?since={seq}"))?;
                for line in lines.lines() {
                    let event: Value = serde_json::from_str(line).unwrap_or_default();
                    *seq = event["seq"].as_u64().unwrap_or(*seq);
                    screen.event(watch::text(&event));
                }
            }
            Self::Recording(playback) => screen.update(playback.state()),
        }
        self.explain(screen);
        Ok(())
    }

    /// Goes to the requested time of the recording.
    fn seek(&mut self, screen: &mut Screen) {
        if let Self::Recording(playback) = self
            && let Some(at) = screen.take_target()
        {
            playback.seek(at);
            screen.update(playback.state());
            self.explain(screen);
        }
    }

    /// A pod may be gone by now.
    fn explain(&self, screen: &mut Screen) {
        let Some(pod) = screen.selected() else { return screen.explain(Vec::new()) };
        let lines = match self {
            Self::Agent { socket, .. } => {
                let name = format!("{}/{}", pod.namespace, pod.pod);
                let answer = socket.get_json::<Value>(&format!("/v1/explain?pod={name}"));
                let lines = answer.map(|answer| answer["lines"].clone()).unwrap_or_default();
                let lines = lines.as_array().into_iter().flatten().filter_map(Value::as_str);
                lines.map(str::to_owned).collect()
            }
            Self::Recording(playback) => playback.explain(&pod.pod_uid),
        };
        screen.explain(lines);
    }

    fn is_alone(&self) -> bool {
        matches!(self, Self::Agent { is_alone: true, .. })
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

/// By the first of the variables that say so (locale(7)).
fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| variable(name).filter(|value| !value.is_empty()));
    set.is_some_and(|locale| locale.to_uppercase().replace('-', "").contains("UTF8"))
}

/// Becomes true at a signal that ends it: the terminal is to be restored first.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let failed = |error: std::io::Error| Failure::because("watch for signals", &error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (mut terminate, mut hangup, mut interrupt) = {
        let _within = runtime.enter();
        let watch = |kind| signal(kind).map_err(failed);
        (watch(SignalKind::terminate())?, watch(SignalKind::hangup())?, watch(SignalKind::interrupt())?)
    };
    let is_stopped = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_stopped);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = terminate.recv() => {}, _ = hangup.recv() => {}, _ = interrupt.recv() => {} }
        });
        seen.store(true, Ordering::Relaxed);
        // An agent may take long to answer, and a terminal may be gone.
        std::thread::sleep(STOP);
        ratatui::restore();
        std::process::exit(1);
    });
    Ok(is_stopped)
}

#[cfg(test)]
mod tests {
    use super::is_utf8;

    #[test]
    fn the_first_variable_that_is_set_names_the_encoding() {
        let is_utf8 = |set: &[(&str, &str)]| {
            is_utf8(|name| set.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(is_utf8(&[("LANG", "en_US.UTF-8")]) && is_utf8(&[("LC_CTYPE", "C.utf8")]));
        assert!(is_utf8(&[("LC_ALL", ""), ("LANG", "de_DE.UTF-8")]));
        assert!(!is_utf8(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")]));
        assert!(!is_utf8(&[("LC_CTYPE", "de_DE.ISO-8859-1")]) && !is_utf8(&[]));
    }
}
