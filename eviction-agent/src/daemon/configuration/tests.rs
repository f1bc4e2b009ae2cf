use std::path::Path;

use super::*;

fn options(in_cluster: bool, state_dir: Option<&str>) -> Options {
    let node = NodeFacts { in_cluster, ..NodeFacts::default() };
    Options {
        configuration: ConfigurationFiles { node, ..ConfigurationFiles::default() },
        state_dir: state_dir.map(PathBuf::from),
        socket: None,
        apply_config_now: false,
        pods_file: None,
        cgroup_root: PathBuf::from("/"),
        memory_capacity: None,
        pid_capacity: None,
        disks: FsPaths::default(),
        json_lines: false,
        choice: BackendSelection::default(),
        bpf_debug_log: false,
    }
}

#[test]
fn a_dry_run_in_a_pod_has_a_state_directory_but_persists_nothing_there() {
    let default = Some(Path::new(STATE_DIR));
    let dirs = |options: &Options, dry_run| {
        let action = ActionSettings { action: Action::Evict, dry_run };
        [options.state_dir(action), options.persistent_dir(action)]
    };
    let in_pod = options(true, None);
    for dry_run in [DryRun::Client, DryRun::Server] {
        let [dir, persistent] = dirs(&in_pod, dry_run);
        assert_eq!((dir.as_deref(), persistent), (default, None), "{dry_run:?}");
    }
    let [dir, persistent] = dirs(&in_pod, DryRun::None);
    assert_eq!((dir.as_deref(), persistent.as_deref()), (default, default));
    let own = Some(PathBuf::from("/state"));
    assert_eq!(dirs(&options(true, Some("/state")), DryRun::Server), [own.clone(), own]);
    assert_eq!(dirs(&options(false, None), DryRun::Client), [None, None]);
}
