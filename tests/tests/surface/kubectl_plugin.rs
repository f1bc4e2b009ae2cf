//! The kubectl plugin, with a kubectl that answers from files and records its arguments.

use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;
use tests::folder::{repository, write_executable};

/// Answers `get pods` and `get node` from the files of these names, with exit code 1 where there is none.
const KUBECTL: &str = r#"#!/bin/sh
cd "${0%/*}"
for word; do printf '<%s>' "$word" >> calls; done
echo >> calls
case " $* " in
*' get pods '*) cat pods ;;
*' get node '*) cat node ;;
*' exec '*) exit 7 ;;
esac
"#;

/// A folder with that kubectl in it.
struct Kubectl(TempDir);

impl Kubectl {
    /// Creates a kubectl with these answers; `None` is a refused request.
    fn answering(pods: Option<&str>, node: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_executable(&folder.path().join("kubectl"), KUBECTL).unwrap();
        for (name, answer) in [("pods", pods), ("node", node)] {
            if let Some(answer) = answer {
                fs::write(folder.path().join(name), answer).unwrap();
            }
        }
        Self(folder)
    }

    fn plugin(&self, arguments: &[&str]) -> Output {
        let path = format!("{}:/usr/bin:/bin", self.0.path().display());
        let plugin = repository("deploy/kubectl-plugin/kubectl-eviction_agent");
        Command::new(plugin).args(arguments).env("PATH", path).output().unwrap()
    }

    /// Returns the plugin's calls of kubectl, one per line.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.0.path().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns exit code and standard error of a plugin that does not reach `kubectl exec`.
    fn refusal(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.plugin(arguments);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        assert!(!self.calls().iter().any(|line| line.contains("<exec>")), "{:?}", self.calls());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

const POD: &str = "ev agent-x7 Running\n";

#[test]
fn a_verb_is_run_in_the_agents_pod_on_the_node() {
    let kubectl = Kubectl::answering(Some(POD), None);
    let output = kubectl.plugin(&["explain", "worker-1.example", "shop/a b", "--signal", "memory.available"]);
    assert_eq!(output.status.code(), Some(7), "the exit code is that of `kubectl exec`: {output:?}");
    let [pods, exec] = &kubectl.calls()[..] else { panic!("{:?}", kubectl.calls()) };
    for part in [
        "<get><pods><--all-namespaces><--field-selector=spec.nodeName=worker-1.example>",
        "<--selector=app.kubernetes.io/part-of=eviction-agent,app.kubernetes.io/component=node-agent>",
    ] {
        assert!(pods.contains(part), "{pods}");
    }
    assert_eq!(
        exec,
        "<exec><--namespace=ev><agent-x7><--container=agent><--></eviction-agent><explain><shop/a b>\
         <--signal><memory.available>"
    );
}

#[test]
fn options_before_the_node_are_passed_to_kubectl() {
    let kubectl = Kubectl::answering(Some(POD), None);
    let arguments =
        ["--context", "my cluster", "top", "-n", "ev", "--kubeconfig=/home/x y/c", "worker-1", "--once"];
    kubectl.plugin(&arguments);
    let [pods, exec] = &kubectl.calls()[..] else { panic!("{:?}", kubectl.calls()) };
    assert!(
        pods.starts_with(
            "<--kubeconfig=/home/x y/c><--context=my cluster><get><pods><--namespace=ev><--field"
        ),
        "{pods}"
    );
    assert!(
        exec.starts_with("<--kubeconfig=/home/x y/c><--context=my cluster><exec><--namespace=ev>"),
        "{exec}"
    );
    assert!(exec.ends_with("<top><--once>"), "{exec}");
}

#[test]
fn check_and_config_use_the_configuration_of_the_agent() {
    for (arguments, expected) in [
        (&["check", "w"][..], "<check><--config=/etc/eviction-agent/agent.yaml>"),
        (&["config", "w", "-o", "yaml"], "<config><--config=/etc/eviction-agent/agent.yaml><-o><yaml>"),
        (&["config", "w", "--config", "/other"], "<config><--config></other>"),
        (&["check", "w", "--config=/other"], "<check><--config=/other>"),
    ] {
        let kubectl = Kubectl::answering(Some(POD), None);
        kubectl.plugin(arguments);
        let calls = kubectl.calls();
        assert!(calls[1].ends_with(&format!("</eviction-agent>{expected}")), "{calls:?}");
    }
}

#[test]
fn record_snapshot_and_report_are_passed_to_the_agent() {
    for (arguments, expected) in [
        (&["record", "w", "snapshot", "/r", "-"][..], "<record><snapshot></r><->"),
        (&["report", "w", "/r", "--last", "1h"], "<report></r><--last><1h>"),
    ] {
        let kubectl = Kubectl::answering(Some(POD), None);
        kubectl.plugin(arguments);
        let calls = kubectl.calls();
        assert!(calls[1].ends_with(&format!("</eviction-agent>{expected}")), "{calls:?}");
    }
}

#[test]
fn a_node_without_an_agent_is_reported() {
    let no_node = Kubectl::answering(Some(""), Some(""));
    let refused =
        (Some(1), "error: find the agent on w: there is no such node\nhelp: kubectl get nodes\n".to_owned());
    assert_eq!(no_node.refusal(&["top", "w"]), refused);
    let help = "help: see nodeSelector and tolerations of the DaemonSet\n";
    // Without the permission to read nodes, the plugin only knows that there is no pod.
    for node in [Some("node/w\n"), None] {
        let no_pod = Kubectl::answering(Some(""), node);
        let error = "error: find the agent on w: no pod of the agent in any namespace is on this node\n";
        assert_eq!(no_pod.refusal(&["top", "w"]), (Some(1), format!("{error}{help}")));
    }
    let elsewhere = Kubectl::answering(Some(""), Some("node/w\n"));
    let (_, error) = elsewhere.refusal(&["-n", "ev", "top", "w"]);
    assert!(error.contains("no pod of the agent in ev is on this node"), "{error}");
}

#[test]
fn an_unusable_agent_pod_is_reported() {
    let cases = [
        ("ev a Pending\n", "pod ev/a is Pending\nhelp: kubectl --namespace=ev describe pod a\n"),
        (
            "ev a Running CrashLoopBackOff\n",
            "pod ev/a is CrashLoopBackOff\nhelp: kubectl --namespace=ev describe pod a\n",
        ),
        (
            "ev a Running\nb c Running\n",
            "there are several: ev/a b/c\nhelp: name the namespace of one with -n\n",
        ),
    ];
    for (pods, error) in cases {
        let kubectl = Kubectl::answering(Some(pods), None);
        assert_eq!(kubectl.refusal(&["top", "w"]), (Some(1), format!("error: find the agent on w: {error}")));
    }
    let (code, error) = Kubectl::answering(None, None).refusal(&["top", "w"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("error: find the agent on w: the pods cannot be listed\n"), "{error}");
}

#[test]
fn wrong_usage_does_not_call_kubectl() {
    let cases: [(&[&str], &str); 9] = [
        (&[], "VERB and NODE are needed"),
        (&["top"], "VERB and NODE are needed"),
        (&["top", "--context"], "--context needs a value"),
        (&["top", "--once", "w"], "unknown option --once before NODE; options of the verb go after NODE"),
        (&["top", "w,metadata.name=x"], "\"w,metadata.name=x\" is not the name of a node"),
        (&["top", "Worker"], "\"Worker\" is not the name of a node"),
        (&["top", ""], "VERB and NODE are needed"),
        (&["run", "w"], "\"run\" would start a second agent beside the one on the node"),
        (
            &["record", "w", "/var/lib/recordings"],
            "\"record\" would start a second agent beside the one on the node; see \"recorder\" in its configuration",
        ),
    ];
    for (arguments, error) in cases {
        let kubectl = Kubectl::answering(Some(POD), None);
        let expected = format!("error: {error}\nhelp: kubectl eviction-agent --help\n");
        assert_eq!(kubectl.refusal(arguments), (Some(2), expected), "{arguments:?}");
        assert_eq!(kubectl.calls(), [""; 0], "{arguments:?}");
    }
    let help = Kubectl::answering(None, None).plugin(&["--help"]);
    assert!(help.status.success());
    assert!(String::from_utf8_lossy(&help.stdout).contains("Usage: kubectl eviction-agent"));
}
