//! Values that Helm refuses, and its error messages.

use tests::helm::{Helm, chart};

use super::{NEWEST, ci_values, render};

/// Values, and a part of the error: the place in the schema, or else the fix.
const REFUSED: [(&str, &str); 34] = [
    // Unknown keys and wrong types, refused by the schema.
    ("nosuch=1", "additional properties 'nosuch' not allowed"),
    ("image.name=a", "at '/image': additional properties 'name' not allowed"),
    (
        "metrics.podMonitor.enable=true",
        "at '/metrics/podMonitor': additional properties 'enable' not allowed",
    ),
    ("metrics.port=web", "at '/metrics/port': got string, want integer"),
    ("metrics.port=70000", "at '/metrics/port': maximum: got 70,000, want 65,535"),
    ("hostPID=yes", "at '/hostPID': got string, want boolean"),
    ("image.digest=sha256:12", "at '/image/digest'"),
    ("image.pullPolicy=Sometimes", "at '/image/pullPolicy'"),
    ("updateStrategy.type=Recreate", "at '/updateStrategy/type'"),
    ("kubelet.configFile=config.yaml", "at '/kubelet/configFile'"),
    ("extraArgs={record}", "at '/extraArgs/0'"),
    ("nodeSelector.zone=1", "at '/nodeSelector/zone': got number, want string"),
    ("metrics.podMonitor.interval=15", "at '/metrics/podMonitor/interval'"),
    (
        "metrics.prometheusRule.severityOverrides.NodePodsEvicted=page",
        "at '/metrics/prometheusRule/severityOverrides/NodePodsEvicted'",
    ),
    ("imagePullSecrets={registry}", "at '/imagePullSecrets/0': got string, want object"),
    // The same, refused by the agent's own schema.
    ("config.dryrun=None", "at '/config': additional properties 'dryrun' not allowed"),
    ("config.action=evict", "at '/config/action': value must be 'Evict'"),
    ("config.apiVersion=v1", "at '/config/apiVersion'"),
    (
        "config.policy.maxEvictionsPerSync=0",
        "at '/config/policy/maxEvictionsPerSync': minimum: got 0, want 1",
    ),
    (
        "config.eviction.hardIgnoresPDB=never",
        "at '/config/eviction/hardIgnoresPDB': got string, want boolean",
    ),
    ("config.policy.signals[0].signal=memory.free", "at '/config/policy/signals/0/signal'"),
    ("config.thresholds.configz.port=0", "at '/config/thresholds/configz/port'"),
    // Contradictions: the message has the fix.
    (
        "config.action=Kill,config.dryRun=Client,hostPID=false",
        "config.action: Kill needs the PID namespace of the host: set hostPID: true",
    ),
    (
        "config.action=Kill,config.dryRun=None",
        "config.action: Kill needs the capability KILL: set capabilities.extra: [KILL]",
    ),
    (
        "config.dryRun=None,config.eviction.hardMode=EvictAndKill",
        "hardMode: EvictAndKill needs the capability KILL: set capabilities.extra: [KILL]",
    ),
    (
        "config.dryRun=None,config.eviction.whenAPIServerDown=Kill",
        "whenAPIServerDown: Kill needs the capability KILL: set",
    ),
    (
        "config.action=Kill",
        "config.dryRun: Server is for config.action: Evict, and this is Kill: set config.dryRun: Client or None",
    ),
    ("config.action=None", "config.dryRun: Server is for config.action: Evict, and this is None: set"),
    ("capabilities.extra={CAP_KILL}", "capabilities: Kubernetes names capabilities without CAP_: write KILL"),
    (
        "metrics.address=fd00::7",
        "metrics.address: an IPv6 address needs brackets: set metrics.address: '[fd00::7]'",
    ),
    (
        "config.server.listenAddress=0.0.0.0:9095",
        "config.server.listenAddress: set metrics.address and metrics.port",
    ),
    (
        "config.thresholds.source=Files",
        "Files needs the kubelet's file: set kubelet.configFile: /var/lib/kubelet/config.yaml",
    ),
    (
        "metrics.podMonitor.enabled=true,metrics.serviceMonitor.enabled=true",
        "would scrape each agent twice: enable one of them",
    ),
    (
        "metrics.prometheusRule.enabled=true,metrics.prometheusRule.disabled={NoSuchAlert}",
        "there is no alert NoSuchAlert; there are: ",
    ),
];

#[test]
fn wrong_values_are_refused_with_the_place_or_the_fix() {
    let Some(helm) = Helm::find() else { return };
    for (values, expected) in REFUSED {
        let error = render(&helm, NEWEST, &["--set", values]).expect_err(values);
        assert!(error.contains(expected), "{values}: {error}");
    }
    // The error comes from that value alone: the defaults render.
    render(&helm, NEWEST, &[]).unwrap();
}

#[test]
fn settings_that_old_kubernetes_versions_lack_are_refused() {
    let Some(helm) = Helm::find() else { return };
    for version in ["1.29.0", "1.32.9", "v1.32.9-gke.1200"] {
        let error = render(&helm, version, &[]).expect_err(version);
        assert!(error.contains("needs kubelets of Kubernetes 1.33 or later"), "{error}");
        assert!(error.contains("set config.thresholds.source: Files and kubelet.configFile: "), "{error}");
    }
    let profile = ["--set", "podSecurityContext.appArmorProfile.type=Unconfined"];
    let error = render(&helm, "1.29.0", &profile).unwrap_err();
    assert!(error.contains("set the annotation podAnnotations: {container.apparmor"), "{error}");
    for version in ["1.33.0", "v1.33.1-eks-5a1b"] {
        render(&helm, version, &[]).unwrap();
    }
    let error = render(&helm, "1.28.15", &[]).unwrap_err();
    assert!(error.contains("requires kubeVersion: >=1.29.0-0"), "{error}");
}

#[test]
fn helm_lint_reports_no_warning_and_no_error() {
    let Some(helm) = Helm::find() else { return };
    let chart = chart();
    for (name, path) in ci_values() {
        let arguments =
            ["lint", chart.to_str().unwrap(), "--strict", "--kube-version", NEWEST, "--values", &path];
        let text = helm.run(&arguments).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!text.contains("[WARNING]") && !text.contains("[ERROR]"), "{name}: {text}");
    }
}
