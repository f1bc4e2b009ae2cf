//! An agent without the right to read every directory: what it can read of a pod is a lower bound.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;
use tests::agent::{self, Options};
use tests::file_system::Kind;
use tests::{privileges, skip};

use crate::agent::{node, pod, wait_for_syncs};
use crate::mount;

/// A pod whose limit is exceeded only with what the agent cannot read, and one that exceeds it by what the agent can
/// read but that it has not read completely, are not evicted. A pod that was read completely is.
#[test]
fn usage_that_cannot_be_read_completely_exceeds_no_limit() {
    if !privileges::has("SETUID").unwrap() || !privileges::has("SETPCAP").unwrap() {
        skip!("this user cannot become another one with chosen capabilities");
    }
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    for (name, readable_mib, private_mib) in
        [("hidden", 0, Some(12)), ("partly", 12, Some(0)), ("open", 12, None)]
    {
        let added = node.add(pod(name, Some(8))).unwrap();
        let volume = node.pods[added].create_volume(&disk).unwrap();
        fs::write(volume.join("file"), vec![0x5a; readable_mib << 20]).unwrap();
        if let Some(mib) = private_mib {
            let private = volume.join("private");
            fs::create_dir(&private).unwrap();
            fs::write(private.join("file"), vec![0x5a; mib << 20]).unwrap();
            fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
        }
    }
    let script = privileges::write_script(&node.file("agent"), &agent::binary().unwrap(), &[]).unwrap();
    let kubelet = json!({"evictionHard": {"nodefs.available": "1Mi"}});
    let options = Options { action: "none", ..Options::of(&script, &node, &kubelet).unwrap() };
    let mut agent = options.on_disk(&disk).start().unwrap();
    assert_eq!(agent.wait_for_decision().unwrap().pod(), "shop/open");
    wait_for_syncs(&agent);
    let decisions = agent.events().unwrap().iter().filter(|event| event.is_decision());
    assert!(decisions.map(|decision| decision.pod()).all(|pod| pod == "shop/open"));
    agent.stop().unwrap();
}
