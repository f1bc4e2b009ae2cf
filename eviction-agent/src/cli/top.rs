//! `top`: the screen of a running agent, of an agent that is started for the screen, or of a recording.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, IsTerminal as _, Write as _};
use std::mem::ManuallyDrop;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
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
use rustix::event::PollFlags;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde_json::Value;
use tokio::signal::unix::SignalKind;

use super::client::SocketArgs;
use super::output::{Out, VerbError, columns, poll_stdout, write_stderr};
use super::watch;
use crate::daemon::{Failure, StopSignals, TIMER, backend_names, start_runtime, watch_signal};
use crate::report;
use crate::scenario::playback::Playback;
use crate::telemetry::live::EventCursor;
use crate::telemetry::live::state::NodeState;
use crate::top::timeline::Timeline;
use crate::top::{Screen, Sort};

/// The maximum time until a signal ends the verb.
const POLL: Duration = Duration::from_millis(200);

/// The timeout of the wait for a pressed key: crossterm reads no key with a timeout of zero.
const KEY_TIMEOUT: Duration = Duration::from_millis(1);

/// The time after a signal at which the process exits in any case.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The timeout of the first sample of the pods for `--once`.
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
    let delay = GoDuration::parse(text)?;
    let delay = Duration::from_nanos(u64::try_from(delay.as_nanos()).unwrap_or_default());
    // The agent caches a response for this time.
    if delay < Duration::from_millis(250) { Err("must be at least 250ms".to_owned()) } else { Ok(delay) }
}

fn sort(name: &str) -> Result<Sort, String> {
    let found = Sort::ALL.iter().find(|(_, known)| *known == name).map(|(sort, _)| *sort);
    found.ok_or_else(|| format!("must be one of {}", Sort::ALL.map(|(_, name)| name).join(", ")))
}

/// Runs the verb until a key or a signal ends it.
pub(super) fn run(args: &TopArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let is_once = args.once || !io::stdout().is_terminal();
    let screen = Screen::new(args.sort, !is_utf8(|name| std::env::var(name).ok()));
    if let Some(file) = &args.file {
        let (source, screen) = recording(file, args.at, screen)?;
        return show(args, source, screen, is_once, out);
    }
    let socket = &args.socket;
    let is_standalone = !args.run.is_empty() || (socket.is_default() && !socket.has_agent());
    let agent = is_standalone.then(|| Standalone::start(&args.run)).transpose()?;
    let socket = agent.as_ref().map_or(socket, |(_, socket)| socket).clone();
    show(args, Source::Agent { socket, cursor: EventCursor::default(), is_standalone }, screen, is_once, out)
}

fn show(
    args: &TopArgs,
    mut source: Source,
    mut screen: Screen,
    is_once: bool,
    out: &mut Out,
) -> Result<ExitCode, VerbError> {
    // Without an agent the verb fails here, before the screen is drawn.
    source.refresh(&mut screen)?;
    let begin = Instant::now();
    let waits_for_pods = is_once && matches!(source, Source::Agent { is_standalone: true, .. });
    while waits_for_pods && screen.state.pods_at.is_none() && begin.elapsed() < FIRST_SAMPLE {
        std::thread::sleep(POLL);
        source.refresh(&mut screen)?;
    }
    if is_once {
        return print_once(&screen, out);
    }
    let failed = |error: io::Error| Failure::because("draw on the terminal", &error);
    let is_stopped = stop_on_signals()?;
    // This thread holds the lock of standard output, and may take it again.
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let _unshown = execute!(io::stdout(), Show);
        before(panic);
    }));
    // Dropping the terminal would print an error, and panic, if the terminal was closed.
    let mut terminal = ManuallyDrop::new(ratatui::try_init().map_err(failed)?);
    let end = run_screen(&mut terminal, &mut screen, &mut source, args.delay, &is_stopped);
    let restored = terminal.show_cursor().and(ratatui::try_restore());
    end.and(restored).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn run_screen(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    source: &mut Source,
    delay: Duration,
    is_stopped: &AtomicBool,
) -> io::Result<()> {
    let mut refreshed_at = Instant::now();
    while !screen.is_ended && !is_stopped.load(Ordering::Relaxed) {
        terminal.draw(|frame| screen.draw(frame))?;
        // Waits for a key. A signal ends the wait. crossterm would read a terminal that was closed for ever.
        let timeout = delay.saturating_sub(refreshed_at.elapsed()).min(POLL);
        if poll_stdout(PollFlags::IN, timeout).intersects(PollFlags::HUP | PollFlags::ERR) {
            break;
        }
        while event::poll(KEY_TIMEOUT)? {
            if let Event::Key(key) = event::read()? {
                let before = screen.selected().map(|pod| pod.pod_uid.clone());
                screen.key(key);
                source.seek(screen);
                if screen.selected().map(|pod| pod.pod_uid.clone()) != before {
                    source.explain(screen);
                }
            }
        }
        if refreshed_at.elapsed() < delay {
            continue;
        }
        refreshed_at = Instant::now();
        screen.play(SignedDuration::try_from(delay).unwrap_or_default());
        source.seek(screen);
        if !screen.is_paused
            && let Err(failure) = source.refresh(screen)
        {
            screen.error = Some(failure.report().0.lines().next().unwrap_or_default().to_owned());
        }
    }
    Ok(())
}

/// The source of the shown state.
enum Source {
    Agent {
        socket: SocketArgs,
        /// The last event line that was shown.
        cursor: EventCursor,
        /// Whether the agent runs only for this screen.
        is_standalone: bool,
    },
    Recording(Box<Playback>),
}

/// Opens a recording at a time.
fn recording(file: &Path, at: Option<Timestamp>, screen: Screen) -> Result<(Source, Screen), Failure> {
    let failed = |error: String| Failure::failed(format!("top: {error}"));
    let (mut playback, samples) =
        Playback::open(file).map_err(|error| Failure::because(format!("read {}", file.display()), &error))?;
    let (events, warnings) = report::recording::events(file).map_err(failed)?;
    warnings.iter().for_each(|warning| write_stderr(&format!("warning: {warning}\n")));
    let timeline = Timeline { name: file.display().to_string(), samples, events };
    let (first, last) = timeline.ends();
    playback.seek(at.unwrap_or(last).clamp(first, last));
    Ok((Source::Recording(Box::new(playback)), screen.of_recording(timeline)))
}

impl Source {
    fn refresh(&mut self, screen: &mut Screen) -> Result<(), Failure> {
        match self {
            Self::Agent { socket, cursor, is_standalone: _ } => {
                screen.update(socket.get_json::<NodeState>("/v1/state")?);
                let lines = socket.get(&cursor.target())?;
                for line in lines.lines() {
                    let event: Value = serde_json::from_str(line).unwrap_or_default();
                    cursor.advance(&event);
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
            && let Some(at) = screen.target.take()
        {
            playback.seek(at);
            screen.update(playback.state());
            self.explain(screen);
        }
    }

    /// Shows the explanation of the selected pod, or nothing if the pod no longer exists.
    fn explain(&self, screen: &mut Screen) {
        screen.explanation = match (screen.selected(), self) {
            (None, _) => Vec::new(),
            (Some(pod), Self::Agent { socket, .. }) => {
                let name = format!("{}/{}", pod.namespace, pod.pod);
                let answer = socket.get_json::<Value>(&format!("/v1/explain?pod={name}"));
                let lines = answer.map(|answer| answer["lines"].clone()).unwrap_or_default();
                let lines = lines.as_array().into_iter().flatten().filter_map(Value::as_str);
                lines.map(str::to_owned).collect()
            }
            (Some(pod), Self::Recording(playback)) => playback.explain(&pod.pod_uid),
        };
    }
}

/// The interval in which an agent for this screen is checked, and the timeouts of its start and stop.
const AGENT_POLL: Duration = Duration::from_millis(50);
const AGENT_START_TIMEOUT: Duration = Duration::from_secs(30);
const AGENT_STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// An agent that runs while the screen is shown, for nodes without a running agent. It takes no action and attaches no
/// BPF program. Dropping this value ends it.
#[derive(Debug)]
struct Standalone {
    child: Child,
    directory: PathBuf,
}

impl Standalone {
    /// Starts the agent with these options of `run`, and waits until it answers.
    ///
    /// # Errors
    /// The errors that the agent reports, or if it cannot be started.
    fn start(options: &[OsString]) -> Result<(Self, SocketArgs), Failure> {
        let failed = |error: io::Error| Failure::because("start an agent for top", &error);
        let directory = std::env::temp_dir().join(format!("eviction-agent-top-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&directory).map_err(failed)?;
        let log = File::create(directory.join("log"));
        let started = log.and_then(|log| {
            let mut command = Command::new("/proc/self/exe");
            command.args(["run", "--action=none", "--dry-run=none", "--listen-address=127.0.0.1:0"]);
            command.arg("--socket").arg(directory.join("agent.sock"));
            for name in backend_names().filter(|name| *name != TIMER) {
                command.args(["--disable-backend", name]);
            }
            command.args(options).env("RUST_LOG", "error");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            let end_with_parent = || Ok(set_parent_process_death_signal(Some(Signal::TERM))?);
            // SAFETY: one system call, no allocation and no lock between fork and exec.
            unsafe { command.pre_exec(end_with_parent) };
            command.spawn()
        });
        let child = started.inspect_err(|_| drop(fs::remove_dir_all(&directory))).map_err(failed)?;
        let mut agent = Self { child, directory };
        let socket = SocketArgs { socket: agent.directory.join("agent.sock") };
        let begin = Instant::now();
        while !socket.has_agent() {
            let ended = agent.child.try_wait().map_err(failed)?;
            if ended.is_some() || begin.elapsed() > AGENT_START_TIMEOUT {
                return Err(agent.failure());
            }
            std::thread::sleep(AGENT_POLL);
        }
        Ok((agent, socket))
    }

    /// Returns the errors that the agent reports.
    fn failure(&self) -> Failure {
        let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        let errors = log.lines().filter_map(|line| line.strip_prefix("error: "));
        let causes: Vec<_> = errors.map(|why| format!("start an agent for top: {why}")).collect();
        if causes.is_empty() {
            return Failure::failed("start an agent for top: it does not answer");
        }
        Failure::all(causes)
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        // Each call fails only for a process that has ended.
        let _ended = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let begin = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            if begin.elapsed() > AGENT_STOP_TIMEOUT {
                drop(self.child.kill());
                drop(self.child.wait());
            }
            std::thread::sleep(AGENT_POLL);
        }
        drop(fs::remove_dir_all(&self.directory));
    }
}

/// Prints a screen that is high enough for all pods.
fn print_once(screen: &Screen, out: &mut Out) -> Result<ExitCode, VerbError> {
    let width = columns().unwrap_or(160).clamp(60, 500);
    let height = u16::try_from(screen.state.pods.len() * 2 + 40).unwrap_or(u16::MAX).min(3000);
    let mut terminal = Terminal::new(TestBackend::new(width, height)).map_err(io::Error::other)?;
    terminal.draw(|frame| screen.draw(frame)).map_err(io::Error::other)?;
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

/// Returns whether the locale uses UTF-8, by the first variable that is set (locale(7)).
fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| variable(name).filter(|value| !value.is_empty()));
    set.is_some_and(|locale| locale.to_uppercase().replace('-', "").contains("UTF8"))
}

/// Returns a flag that becomes true at a signal, so that the terminal is restored before the end.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let runtime = start_runtime()?;
    let (mut stop_signals, mut hangup) = {
        let _within = runtime.enter();
        (StopSignals::watch()?, watch_signal(SignalKind::hangup())?)
    };
    let is_stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_stopped);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = stop_signals.next() => {}, _ = hangup.recv() => {} }
        });
        flag.store(true, Ordering::Relaxed);
        // The agent may take long to answer, and the terminal may be closed.
        std::thread::sleep(STOP_TIMEOUT);
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
