//! `top` on a terminal: without an agent it samples the node itself. However it ends, the terminal and the machine
//! are as before.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use rustix::termios::{Termios, tcgetattr};
use serde_json::json;
use tests::agent::{self, GUARD, Options};
use tests::node::{MIB, Node, PodSpec};
use tests::process;
use tests::skip;
use tests::terminal::{Terminal, resize};

const READ_TIMEOUT: Duration = Duration::from_millis(20);

/// `top` on a terminal of its own.
struct Screen {
    child: Child,
    /// The other end of the terminal.
    master: Option<File>,
    terminal: OwnedFd,
    before: Termios,
    output: String,
}

impl Screen {
    fn start(node: &Node) -> Self {
        let terminal = Terminal::new(80, 24).unwrap();
        let before = tcgetattr(&terminal.terminal).unwrap();
        let kubelet = json!({"evictionHard": {"memory.available": "64Mi"}});
        let options = Options::new(node, &kubelet).unwrap();
        let mut command = terminal.command(&options.binary).unwrap();
        command.args(["top", "--delay", "250ms", "--"]);
        command.arg("--kubelet-config").arg(&options.kubelet_config);
        command.arg("--pods-file").arg(options.pods.unwrap()).args(["--cgroup-root", &options.cgroup_root]);
        command.args(["--memory-capacity", &options.memory_capacity.to_string()]);
        let child = command.spawn().unwrap();
        let Terminal { master, terminal } = terminal;
        Self { child, master: Some(master), terminal, before, output: String::new() }
    }

    /// Reads the output of the terminal for up to [`READ_TIMEOUT`].
    fn read(&mut self) {
        let Some(master) = &mut self.master else { return std::thread::sleep(READ_TIMEOUT) };
        let mut fds = [PollFd::new(master, PollFlags::IN)];
        let timeout = Timespec::try_from(READ_TIMEOUT).unwrap();
        if poll(&mut fds, Some(&timeout)).unwrap() > 0 {
            let mut bytes = [0; 4096];
            let read = master.read(&mut bytes).unwrap_or(0);
            self.output.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }

    /// Waits until the terminal has shown this text since the last wait.
    fn wait_for(&mut self, text: &str) {
        let begin = Instant::now();
        while !without_escape_sequences(&self.output).contains(text) {
            assert!(begin.elapsed() < GUARD, "no {text} in {}", without_escape_sequences(&self.output));
            self.read();
        }
        self.output.clear();
    }

    fn press(&mut self, keys: &str) {
        self.master.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end of `top`, and asserts that it left nothing behind.
    fn end(mut self) -> ExitStatus {
        let begin = Instant::now();
        let pid = self.child.id();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                begin.elapsed() < GUARD,
                "it does not end after {}",
                without_escape_sequences(&self.output)
            );
            self.read();
        };
        assert!(!std::env::temp_dir().join(format!("eviction-agent-top-{pid}")).exists());
        if self.master.is_some() {
            let after = tcgetattr(&self.terminal).unwrap();
            let modes = |it: &Termios| (it.local_modes, it.input_modes, it.output_modes);
            assert_eq!(modes(&after), modes(&self.before), "the terminal is as before");
            // The previous screen is shown again, and the cursor.
            self.read();
            assert!(self.output.contains("\u{1b}[?1049l"), "{:?}", self.output);
        }
        status
    }
}

/// Returns a text without the sequences that move the cursor, each of which ends in a letter.
fn without_escape_sequences(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let begin = parts.next().unwrap_or_default().to_owned();
    let ends = |c: char| c.is_ascii_alphabetic();
    let rest = |part: &str| part.find(ends).map_or(String::new(), |at| part[at + 1..].to_owned());
    parts.map(rest).filter(|it| !it.is_empty()).fold(begin, |all, it| format!("{} {}", all.trim_end(), it))
}

fn node(label: &str) -> Option<Node> {
    let mut node = Node::new(label, 256 * MIB, 400).ok()?;
    node.add(PodSpec::new("shop", "cart", &["main"], 8)).unwrap();
    Some(node)
}

#[test]
fn top_samples_the_node_without_an_agent_until_q_is_pressed() {
    let Some(node) = node("top") else { skip!("no cgroups can be made here") };
    let mut screen = Screen::start(&node);
    screen.wait_for("shop/cart");
    screen.press("?");
    screen.wait_for("help");
    resize(&screen.terminal, 40, 10).unwrap();
    screen.wait_for("top needs 60x12, this is 40x10");
    resize(&screen.terminal, 160, 50).unwrap();
    screen.press("1");
    screen.wait_for("FORECAST");
    screen.press("q");
    assert!(screen.end().success());
}

#[test]
fn a_key_pressed_during_a_resize_is_not_lost() {
    let Some(node) = node("top-resize") else { skip!("no cgroups can be made here") };
    let mut screen = Screen::start(&node);
    screen.wait_for("shop/cart");
    for step in 0..20 {
        // A new size is drawn within a few milliseconds: the key comes before, in between and after.
        screen.press("?");
        screen.wait_for("help");
        resize(&screen.terminal, 150 + step, 50).unwrap();
        std::thread::sleep(Duration::from_micros(500) * u32::from(step));
        screen.press("1");
        screen.wait_for("FORECAST");
    }
    screen.press("q");
    assert!(screen.end().success());
}

#[test]
fn top_cleans_up_after_a_signal_or_terminal_hangup() {
    let Some(node) = node("top-ends") else { skip!("no cgroups can be made here") };
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut screen = Screen::start(&node);
        screen.wait_for("shop/cart");
        process::signal(screen.child.id(), signal).unwrap();
        assert!(screen.end().success(), "{signal:?}");
    }
    let mut screen = Screen::start(&node);
    screen.wait_for("shop/cart");
    screen.master = None;
    let status = screen.end();
    assert_eq!(status.signal(), None, "{status}");
}

#[test]
fn top_reports_why_its_agent_cannot_start() {
    let output = Command::new(agent::binary().unwrap())
        .args(["top", "--once", "--", "--pods-file", "/nowhere"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && error.contains("/nowhere"), "{error}");
}
