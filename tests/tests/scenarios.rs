//! Every scenario of `tests/scenarios/kubelet`: what the engine makes of it must be one of
//! the outcomes that the kubelet's own eviction manager was seen to have.

use std::path::Path;

use eviction_agent::scenario::compare::compare;
use eviction_agent::scenario::read;
use eviction_agent::scenario::run::run;

/// Fewer would mean that files were lost.
const AT_LEAST: usize = 85;

#[test]
fn the_kubelet_profile_decides_as_the_kubelet_did() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/kubelet");
    let (mut passed, mut failures) = (0, Vec::new());
    read::each(&folder, &mut |found| {
        let case = match found {
            Ok(case) => case,
            Err(error) => return failures.push(error.to_string()),
        };
        let name = case.scenario.name.clone();
        assert!(!case.expected.is_empty(), "{name} expects nothing");
        match run(case.scenario) {
            Ok(outcome) => match compare(&outcome, &case.expected) {
                None => passed += 1,
                Some(difference) => failures.push(format!("{name}: {difference}")),
            },
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(passed >= AT_LEAST, "only {passed} scenarios found");
}
