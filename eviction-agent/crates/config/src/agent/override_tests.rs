//! Values that are given on the command line.

use serde_json::json;

use super::*;

#[test]
fn command_line_profile_changes_no_other_setting() {
    let object = json!({"profile": "Enhanced", "policy": {"maxEvictionsPerSync": 7}});
    let file = Path::new("agent.yaml");
    let configuration = resolve(object.as_object().unwrap().clone(), Some(file)).unwrap();
    assert_eq!(configuration.notes, []);
    let with_profile = |mut configuration: AgentConfiguration, profile: Profile| {
        configuration.override_setting("profile", json!(profile)).unwrap();
        configuration
    };
    let kubelet = with_profile(configuration.clone(), Profile::Kubelet);
    assert_eq!((kubelet.profile, kubelet.policy.max_evictions_per_sync), (Profile::Kubelet, 7));
    assert_eq!(kubelet.settings[0].to_string(), "profile = Kubelet (command line)");
    assert_eq!(kubelet.settings.len(), configuration.settings.len());
    assert_eq!(kubelet.notes[0].to_string(), "agent.yaml: policy: is not used: the profile is `Kubelet`");
    let again = with_profile(kubelet, Profile::Enhanced);
    assert_eq!((again.policy, again.notes), (configuration.policy, vec![]));
}

#[test]
fn command_line_values_change_no_other_field() {
    let object = json!({
        "thresholds": {"source": "Inline", "inline": {"evictionHard": {"pid.available": "7.5%"}}},
        "thresholdMargin": {"value": "12.34%", "perSignal": [{"signal": "pid.available", "value": "1e3"}]},
        "eviction": {"killOnGrowth": "0", "freezeTimeout": "1m0.5s"},
        "policy": {
            "signals": [{"signal": "memory.available", "hard": "1000Ki", "soft": "1e9", "gracePeriod": "90s"}],
            "memory": {"psi": {"trigger": {"stall": "150ms", "window": "1s"}}, "swapUsedAtLeast": "7.1%"},
            "protection": [{
                "namespaces": ["a"], "order": "Last",
                "selector": {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]},
            }],
            "rateLimits": [{"scope": "Owner", "maxEvictions": 3, "window": "10m"}],
            "soft": {"gracePeriodCap": "1m"},
        },
        "probes": {"nearThresholdPercent": 0.7},
        "reclaim": {"criSocket": "/run/cri.sock", "keepImages": ["a/*"]},
        "recorder": {"maxSize": "0.1Gi"},
    });
    let before = resolve(object.as_object().unwrap().clone(), None).unwrap();
    let mut changed = before.clone();
    changed.override_setting("recorder.directory", json!("/recordings")).unwrap();
    assert_eq!(
        changed.settings.last().unwrap().to_string(),
        "recorder.directory = /recordings (command line)"
    );
    let recorder = RecorderSettings { directory: Some("/recordings".into()), ..before.recorder.clone() };
    let settings = changed.settings.clone();
    assert_eq!(changed, AgentConfiguration { recorder, settings, ..before });
    let error = |path: &str| changed.clone().override_setting(path, json!("x")).unwrap_err().to_string();
    assert!(error("action.name").starts_with("action.name: is not known here"));
    assert!(error("server.port").starts_with("server.port: unknown field"));
}
