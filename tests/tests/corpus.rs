//! The corpus of the fuzz targets (`cargo xtask fuzz`) passes with every change, so that old findings do not come
//! back.

#[path = "../../fuzz/src/targets.rs"]
#[expect(unreachable_pub, reason = "the fuzz targets are programs of another package")]
mod targets;

use anyhow::{Context as _, Result, ensure};
use tests::folder::repository;

type Target = (&'static str, fn(&[u8]) -> bool);

const TARGETS: [Target; 9] = [
    ("record", targets::record),
    ("btf", targets::btf),
    ("cgroup_files", targets::cgroup_files),
    ("proc_files", targets::proc_files),
    ("quantity", targets::quantity),
    ("kubelet_configuration", targets::kubelet_configuration),
    ("agent_configuration", targets::agent_configuration),
    ("pod_list", targets::pod_list),
    ("recording", targets::recording),
];

fn corpus() -> std::path::PathBuf {
    repository("fuzz/corpus")
}

#[test]
fn every_fuzz_target_passes_its_corpus() -> Result<()> {
    for (name, target) in TARGETS {
        let folder = corpus().join(name);
        let mut understood = 0;
        for entry in std::fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let file = entry?.path();
            let input = std::fs::read(&file).with_context(|| format!("read {}", file.display()))?;
            understood += usize::from(target(&input));
        }
        ensure!(understood > 0, "nothing in {} is understood", folder.display());
    }
    Ok(())
}

/// Every target also survives inputs that are truncated at every place, and inputs with one byte removed.
#[test]
fn every_fuzz_target_handles_truncated_and_shortened_inputs() -> Result<()> {
    const LONGEST: u64 = 2048;
    for (name, target) in TARGETS {
        for entry in std::fs::read_dir(corpus().join(name))? {
            let entry = entry?;
            if entry.metadata()?.len() > LONGEST {
                continue;
            }
            let input = std::fs::read(entry.path())?;
            for place in 0..input.len() {
                target(&input[..place]);
                let mut without = input.clone();
                without.remove(place);
                target(&without);
            }
        }
    }
    Ok(())
}

#[test]
fn every_folder_of_the_corpus_has_a_fuzz_target() -> Result<()> {
    for entry in std::fs::read_dir(corpus())? {
        let name = entry?.file_name();
        ensure!(TARGETS.iter().any(|(target, _)| name == *target), "{} has no target", name.display());
    }
    Ok(())
}
