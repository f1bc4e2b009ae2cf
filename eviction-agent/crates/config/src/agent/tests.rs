use super::*;

/// `UPDATE_SCHEMA=1 cargo test -p eviction-config schema` updates the file.
#[test]
fn shipped_schema_matches_the_types() {
    let schema = schemars::schema_for!(AgentConfiguration);
    let text = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/agent-configuration.v1alpha1.json");
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(file, &text).unwrap();
    }
    let shipped = std::fs::read_to_string(file).unwrap();
    assert_eq!(shipped, text, "run with UPDATE_SCHEMA=1 to write it again");
}

/// Returns the errors of a document with this value at this path; `[]` makes a list with one item.
fn errors_at(path: &str, value: &Value) -> Vec<Problem> {
    let document = path.rsplit('.').fold(value.clone(), |inner, key| match key.strip_suffix("[]") {
        Some(key) => json!({key: [inner]}),
        None => json!({key: inner}),
    });
    parse_agent(&document).unwrap_err().0
}

#[test]
fn every_old_key_is_refused_with_its_new_name() {
    for (parent, old, new) in crate::read::RENAMED_KEYS {
        let within = |key: &str| if parent.is_empty() { key.to_owned() } else { format!("{parent}.{key}") };
        let (path, expected) = (within(old), format!("was renamed to `{}`", within(new)));
        let errors = errors_at(&path, &json!({}));
        let at = path.replace("[]", "[0]");
        let found = |error: &Problem| error.path == at && error.cause == expected;
        assert!(errors.iter().any(found), "{path}: {errors:?}");
        let shadow = errors.iter().any(|error| error.path == at && error.cause.contains("not known"));
        assert!(!shadow, "{path}: {errors:?}");
    }
}

#[test]
fn every_old_value_is_refused_with_its_new_name() {
    for (field, old, new) in crate::read::RENAMED_VALUES {
        let errors = errors_at(field, &json!(old));
        let expected = format!("the value `{old}` was renamed to `{new}`");
        let at = field.replace("[]", "[0]");
        assert!(
            errors.iter().any(|error| error.path == at && error.cause == expected),
            "{field}: {errors:?}"
        );
    }
}

#[test]
fn all_old_names_of_a_file_are_refused_at_once() {
    let old = json!({
        "profile": "enhanced", "act": "evict-dry-run", "reflex": "hardMemory",
        "advance": {"when": "always", "signals": [{"signal": "pid.available", "by": 5}]},
        "policy": {"predict": "maybe", "protection": [{"namespaces": ["a"], "evict": "never"}]},
        "server": {"listen": "[::1]:1"},
    });
    let errors = parse_agent(&old).unwrap_err().to_string();
    let expected = [
        "act: was renamed to `action`",
        "action: the value `evict-dry-run` was renamed to `action: Evict` and `dryRun: Server`",
        "advance: was renamed to `thresholdMargin`",
        "kernelKill: must be one of `Off`, `HardMemory`, `HardDisk`, `HardMemoryAndDisk`, got \"hardMemory\" \
         (did you mean `HardMemory`?)",
        "policy.predict: was renamed to `policy.prediction.mode`",
        "policy.protection[0].evict: was renamed to `policy.protection[].order`",
        "policy.protection[0].order: must be one of `First`, `Normal`, `Last`, `Never`, got \"never\" \
         (did you mean `Never`?)",
        "profile: must be one of `Kubelet`, `Enhanced`, got \"enhanced\" (did you mean `Enhanced`?)",
        "reflex: was renamed to `kernelKill`",
        "server.listen: was renamed to `server.listenAddress`",
        "thresholdMargin.mode: must be one of `BesideKubelet`, `Always`, `Never`, got \"always\" \
         (did you mean `Always`?)",
        "thresholdMargin.perSignal[0].by: was renamed to `thresholdMargin.perSignal[].value`",
        "thresholdMargin.perSignal[0].value: must be a quantity or a percentage such as \"500Mi\" or \"5%\", \
         got 5 (numbers must be in quotes here)",
        "thresholdMargin.signals: was renamed to `thresholdMargin.perSignal`",
        "thresholdMargin.when: was renamed to `thresholdMargin.mode`",
    ];
    assert_eq!(errors.lines().collect::<Vec<_>>(), expected);
}

/// Collects the numbers and durations of a schema with their bounds, in the form of the rules.
fn bounds(schema: &Value, root: &Value, place: &str, into: &mut Vec<String>) {
    if let Some(target) = schema["$ref"].as_str().and_then(|name| root.pointer(name.strip_prefix('#')?)) {
        bounds(target, root, place, into);
    }
    for alternative in schema["anyOf"].as_array().into_iter().flatten() {
        bounds(alternative, root, place, into);
    }
    if schema["items"].is_object() {
        bounds(&schema["items"], root, &format!("{place}[]"), into);
    }
    for (key, field) in schema["properties"].as_object().into_iter().flatten() {
        let place = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
        bounds(field, root, &place, into);
    }
    match (schema["minimum"].as_f64(), schema["maximum"].as_f64(), schema["format"].as_str()) {
        (Some(least), Some(most), _) => into.push(format!("{place}: {least} to {most}")),
        (_, _, Some("duration")) => into.push(format!("{place}: from zero")),
        (_, _, Some("positive-duration")) => into.push(format!("{place}: above zero")),
        _ => {}
    }
}

#[test]
fn the_rules_have_the_bounds_of_the_schema() {
    let schema = schemars::schema_for!(AgentConfiguration).to_value();
    let mut published = Vec::new();
    bounds(&schema, &schema, "", &mut published);
    let ranges = rules::RANGES.iter().map(|(place, least, most)| format!("{place}: {least} to {most}"));
    let zero = |zero: bool| if zero { "from zero" } else { "above zero" };
    let durations = rules::DURATIONS.iter().map(|(place, is_zero)| format!("{place}: {}", zero(*is_zero)));
    let mut checked: Vec<String> = ranges.chain(durations).collect();
    published.sort();
    checked.sort();
    assert_eq!(checked, published);
}

#[test]
fn an_object_is_not_read_from_a_list() {
    for (document, path) in [
        (json!({"metrics": ["Top"]}), "metrics"),
        (json!({"policy": {"rateLimits": [["Owner", 3, "10m"]]}}), "policy.rateLimits[0]"),
        (json!({"policy": {"memory": {"psi": {"trigger": ["1s", "2s"]}}}}), "policy.memory.psi.trigger"),
    ] {
        let errors = parse_agent(&document).unwrap_err().to_string();
        assert_eq!(errors, format!("{path}: must be an object, got a list"));
    }
}

#[test]
fn an_error_in_a_list_keeps_its_index() {
    let signals =
        json!([5, {"signal": "pid"}, {"signal": "pid.available", "hard": "5"}, {"signal": "nodefs"}]);
    let errors = parse_agent(&json!({"policy": {"signals": signals}})).unwrap_err();
    let paths: Vec<&str> = errors.0.iter().map(|error| error.path.as_str()).collect();
    let expected = [
        "policy.signals[0]",
        "policy.signals[1].hard",
        "policy.signals[1].signal",
        "policy.signals[3].hard",
        "policy.signals[3].signal",
    ];
    assert_eq!(paths, expected, "{errors}");
}

#[test]
fn invalid_inline_enforcement_lists_the_allowed_values() {
    let inline = json!({"source": "Inline", "inline": {"enforceNodeAllocatable": ["pods", "pod"]}});
    let errors = parse_agent(&json!({"thresholds": inline})).unwrap_err().to_string();
    let expected = "thresholds.inline.enforceNodeAllocatable[1]: must be one of `pods`, `system-reserved`, ";
    assert!(errors.starts_with(expected), "{errors}");
}

#[test]
fn a_file_in_which_a_value_would_be_ignored_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agent.yaml");
    for (text, cause) in [
        ("dryRun: Server\ndryRun: None\n", "`dryRun` is given twice"),
        ("policy: {maxEvictionsPerSync: 1}\npolicy: {}\n", "`policy` is given twice"),
        ("probes: {nearThresholdPercent: .nan}\n", "a number must be finite"),
    ] {
        std::fs::write(&file, format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{text}")).unwrap();
        let errors = load_agent(Some(&file)).unwrap_err().to_string();
        assert!(errors.starts_with(&*file.to_string_lossy()) && errors.contains(cause), "{errors}");
    }
}

#[test]
fn an_empty_path_or_name_is_refused() {
    for path in ["recorder.directory", "thresholds.files.config", "thresholds.configz.serverName"] {
        let errors = errors_at(path, &json!(""));
        let expected = Problem::new(path, "must not be empty; leave it out for none");
        assert_eq!(errors, [expected]);
    }
}

#[test]
fn enum_value_of_the_wrong_type_lists_the_allowed_values() {
    for wrong in [json!(5), json!(true), json!([]), json!({"a": 1})] {
        let errors = parse_agent(&json!({"profile": wrong})).unwrap_err().to_string();
        assert!(errors.starts_with("profile: must be one of `Kubelet`, `Enhanced`, got "), "{errors}");
    }
}

use eviction_core::policy::preferences::SignalThresholds;
use eviction_core::policy::{Policy, Rules, Threshold};
use eviction_core::units::Limit;
use proptest::prelude::*;
use serde_json::json;

use super::super::kubelet::kubelet_policy;

fn resolved(policy: Value) -> Result<AgentConfiguration, Problems> {
    let object = json!({ "policy": policy });
    resolve(object.as_object().unwrap().clone(), None)
}

#[test]
fn serialized_default_configuration_resolves_to_the_default() {
    let text = serde_json::to_value(AgentConfiguration::default()).unwrap();
    let configuration = resolve(text.as_object().unwrap().clone(), None).unwrap();
    assert_eq!(configuration.policy, Preferences::default());
    assert_eq!(configuration.policy, resolved(json!({})).unwrap().policy);
}

/// All values that the types can read and the rules allow are valid in the schema, and vice versa.
#[test]
fn schema_and_types_agree() {
    for policy in [
        json!({"maxEvictionsPerSync": 1}),
        json!({"signals": [{"signal": "pid.available", "hard": "5"}]}),
        json!({"coolDownAfterOomKill": "1h", "memory": {"swapUsedAtLeast": "1%"}}),
        json!({"soft": {"gracePeriodCap": null}, "rateLimits": null, "unavailableAfterSamples": null}),
    ] {
        let configuration = resolved(policy.clone()).unwrap_or_else(|errors| panic!("{policy}: {errors}"));
        let again = serde_json::to_value(&configuration.policy).unwrap();
        assert_eq!(resolved(again).unwrap().policy, configuration.policy);
    }
    for policy in [
        json!({"maxEvictionsPerSync": 1.0}),
        json!({"maxEvictionsPerSync": "1"}),
        json!({"signals": [{"signal": "pid.available", "hard": 5}]}),
        json!({"coolDownAfterOomKill": 60}),
        json!({"signals": [null]}),
        json!({"extra": 1}),
    ] {
        assert!(resolved(policy.clone()).is_err(), "{policy}");
        assert!(serde_json::from_value::<Preferences>(policy.clone()).is_err(), "{policy}");
    }
}

fn thresholds(configuration: Value, own: &[(&str, Option<&str>, Option<&str>)]) -> Vec<String> {
    let kubelet = kubelet_policy(&configuration).unwrap();
    let limit = |text: &str| Limit::parse(text).unwrap();
    let own: Vec<SignalThresholds> = own
        .iter()
        .map(|(signal, hard, soft)| SignalThresholds {
            signal: eviction_core::signal::Signal::from_name(signal).unwrap(),
            hard: hard.map(limit),
            soft: soft.map(limit),
            grace_period: soft.map(|_| eviction_core::units::GoDuration::from_secs(60)),
            min_reclaim: Some(limit("1Mi")),
        })
        .collect();
    let written = |threshold: &Threshold| {
        let value = threshold.value.quantity(100);
        let reclaim = threshold.min_reclaim.as_ref().map(|reclaim| reclaim.quantity(100).to_string());
        let reclaim = reclaim.unwrap_or_default();
        format!("{} {value} {} {reclaim}", threshold.signal, threshold.grace_period)
    };
    with_own_thresholds(&kubelet.thresholds, &own).iter().map(written).collect()
}

#[test]
fn own_thresholds_replace_those_of_the_kubelet() {
    let configuration = json!({
        "evictionHard": {"memory.available": "1Gi", "pid.available": "7"},
        "evictionSoft": {"memory.available": "2Gi"},
        "evictionSoftGracePeriod": {"memory.available": "1m"},
    });
    let kubelet = [
        "memory.available 1Gi 0s ",
        "pid.available 7 0s ",
        "allocatableMemory.available 1Gi 0s ",
        "memory.available 2Gi 1m0s ",
    ];
    assert_eq!(thresholds(configuration.clone(), &[]), kubelet);
    assert_eq!(
        thresholds(configuration.clone(), &[("memory.available", Some("3Gi"), None)]),
        ["pid.available 7 0s ", "memory.available 3Gi 0s 1Mi", "allocatableMemory.available 3Gi 0s 1Mi",]
    );
    assert_eq!(
        thresholds(configuration.clone(), &[("pid.available", None, Some("9"))]),
        [
            "memory.available 1Gi 0s ",
            "allocatableMemory.available 1Gi 0s ",
            "memory.available 2Gi 1m0s ",
            "pid.available 9 1m0s 1Mi",
        ]
    );
    let both = [("memory.available", None, Some("3Gi")), ("allocatableMemory.available", Some("4Gi"), None)];
    assert_eq!(
        thresholds(configuration, &both),
        ["pid.available 7 0s ", "allocatableMemory.available 4Gi 0s 1Mi", "memory.available 3Gi 1m0s 1Mi",]
    );
    let without_copies = json!({"evictionHard": {"memory.available": "1Gi"}, "enforceNodeAllocatable": []});
    assert_eq!(
        thresholds(without_copies, &[("memory.available", Some("3Gi"), None)]),
        ["memory.available 3Gi 0s 1Mi"]
    );
}

#[test]
fn profile_selects_the_thresholds_and_rules() {
    let kubelet = kubelet_policy(&json!({"evictionHard": {"memory.available": "1Gi"}})).unwrap();
    let policy =
        json!({"signals": [{"signal": "memory.available", "hard": "2Gi"}], "maxEvictionsPerSync": 5});
    let enhanced = AgentConfiguration { profile: Profile::Enhanced, ..resolved(policy).unwrap() };
    let plain = AgentConfiguration { profile: Profile::Kubelet, ..enhanced.clone() };
    assert_eq!(plain.over(kubelet.clone()), kubelet);
    let over = enhanced.over(kubelet.clone());
    assert_ne!(over.thresholds, kubelet.thresholds);
    assert_eq!(over.rules, Rules::enhanced(&enhanced.policy));
    assert_eq!(Policy { thresholds: kubelet.thresholds.clone(), rules: Rules::kubelet(), ..over }, kubelet);
}

#[test]
fn names_and_labels_are_validated_as_in_kubernetes() {
    let long = "a".repeat(64);
    for (key, right) in [
        ("app", true),
        ("a_b.C-1", true),
        ("example.com/app", true),
        ("kubernetes.io/", false),
        ("/app", false),
        ("a/b/c", false),
        ("Example.com/app", false),
        ("-a", false),
        ("", false),
        (long.as_str(), false),
    ] {
        assert_eq!(rules::check_key(key).is_ok(), right, "{key}");
    }
    for (value, right) in [("", true), ("A1", true), ("a b", false), ("é", false), (long.as_str(), false)] {
        assert_eq!(rules::check_value(value).is_ok(), right, "{value}");
    }
    for (name, label, subdomain) in [
        ("kube-system", true, true),
        ("a.b", false, true),
        ("a..b", false, false),
        ("A", false, false),
        ("-a", false, false),
        ("", false, false),
        (long.as_str(), false, true),
    ] {
        assert_eq!(rules::check_name(name, 63).is_ok(), label, "{name}");
        assert_eq!(rules::check_name(name, 253).is_ok(), subdomain, "{name}");
    }
}

/// Any JSON, in which keys and values are often names of fields.
fn any_json() -> impl Strategy<Value = Value> {
    let words = [
        "signals",
        "signal",
        "hard",
        "soft",
        "gracePeriod",
        "memory",
        "psi",
        "trigger",
        "stall",
        "window",
        "avg10",
        "rateLimits",
        "scope",
        "protection",
        "selector",
        "matchLabels",
        "matchExpressions",
        "key",
        "operator",
        "values",
        "order",
        "memory.available",
        "Owner",
        "Never",
        "In",
        "1Gi",
        "5%",
        "1m",
    ];
    let word = prop::sample::select(words.to_vec()).prop_map(str::to_owned);
    let text = prop_oneof![3 => word, 1 => "\\PC{0,6}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(text.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_handled_without_panic(policy in any_json()) {
        match resolved(policy.clone()) {
            Ok(_) => {
                let mut policy = policy;
                drop_nulls(&mut policy);
                prop_assert!(policy.is_null() || serde_json::from_value::<Preferences>(policy).is_ok());
            }
            Err(problems) => prop_assert!(!problems.0.is_empty() && !problems.to_string().is_empty()),
        }
    }
}

#[test]
fn kill_on_growth_is_a_quantity_and_zero_disables_it() {
    let given = |value: Value| {
        let object = json!({"eviction": {"killOnGrowth": value}});
        resolve(object.as_object().unwrap().clone(), None)
            .map(|configuration| configuration.eviction.kill_on_growth)
            .map_err(|problems| problems.to_string())
    };
    assert_eq!(given(Value::Null), Ok(Some(16 << 20)));
    assert_eq!(given(json!("1Gi")), Ok(Some(1 << 30)));
    assert_eq!(given(json!("0")), Ok(None));
    for wrong in [json!("-1Mi"), json!("10%"), json!("1e30"), json!("much"), json!(16), json!(true)] {
        let message = given(wrong.clone()).unwrap_err();
        assert!(message.contains("eviction.killOnGrowth: "), "{wrong}: {message}");
    }
}
