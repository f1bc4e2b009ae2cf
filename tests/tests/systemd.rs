//! The unit of deploy/systemd, checked by systemd itself; and an agent that is started with the unit's command line
//! and notifies a socket as under systemd.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tests::agent::{self, GUARD};
use tests::folder::repository;
use tests::node::{MIB, Node};
use tests::skip;

/// The highest exposure that `systemd-analyze security` may report, in tenths: 100 is a service without any limits.
const MAX_EXPOSURE: &str = "40";

fn deploy(name: &str) -> PathBuf {
    repository("deploy/systemd").join(name)
}

fn unit() -> String {
    fs::read_to_string(deploy("eviction-agent.service")).unwrap()
}

/// Returns the value of a key of the unit.
fn value(key: &str) -> String {
    unit().lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap().to_owned()
}

#[test]
fn systemd_analyze_reports_no_problem_in_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("eviction-agent.service");
    fs::write(&file, unit().replace("ExecStart=/usr/bin/eviction-agent", "ExecStart=/bin/true")).unwrap();
    let analyze = |arguments: &[&str]| {
        let output = Command::new("systemd-analyze").args(arguments).arg(&file).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        Some((output.status.success(), String::from_utf8(text).unwrap()))
    };
    let Some(verified) = analyze(&["verify", "--man=no"]) else { skip!("there is no systemd-analyze") };
    assert_eq!(verified, (true, String::new()));
    let threshold = format!("--threshold={MAX_EXPOSURE}");
    let (is_safe, text) = analyze(&["security", "--offline=true", "--no-pager", &threshold]).unwrap();
    assert!(is_safe && text.contains("Overall exposure level"), "{text}");
}

/// An agent that is killed when the test ends.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_agent_with_the_command_line_of_the_unit_notifies_systemd() {
    let Ok(node) = Node::new("systemd", 512 * MIB, 400) else { skip!("no cgroups can be made here") };
    let path = node.file("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(GUARD)).unwrap();
    let receive = || {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    fs::create_dir(node.file("state")).unwrap();
    let more = format!("--cgroup-root={} --listen-address=127.0.0.1:0", node.cgroup_root());
    let line = value("ExecStart")
        .replace("/usr/bin/eviction-agent", agent::binary().unwrap().to_str().unwrap())
        .replace("/etc/eviction-agent/agent.yaml", deploy("agent.yaml").to_str().unwrap())
        .replace("/run/eviction-agent", node.file("state").to_str().unwrap())
        .replace("$EVICTION_AGENT_ARGS", &more);
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words).env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "1000000");
    let mut agent = Agent(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    assert_eq!(receive(), "READY=1");
    for _ in 0..3 {
        assert_eq!(receive(), "WATCHDOG=1");
    }
    let pid = rustix::process::Pid::from_child(&agent.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let last = std::iter::repeat_with(receive).find(|text| text != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
    assert!(agent.0.wait().unwrap().success());
}
