//! Loading, being refused, and leaving nothing behind.

use std::sync::Mutex;

use eviction_bpf::{
    self, EventClass, LoadOptions, ProgramLog,
    attach_methods::ATTACH_METHODS,
    btf::Btf,
    capabilities,
    offsets::{WANTED, resolve},
};
use eviction_node::backend::BackendSelection;

use crate::fixture::{Fixture, need_bpf, need_some_bpf, report_skip, wait_until};
use crate::groups::Cgroup;

#[test]
fn every_family_is_attached_and_nothing_is_left_when_it_is_dropped() {
    need_bpf!();
    let fixture = Fixture::load();
    let sources: Vec<_> = fixture.kernel.sources().iter().map(|info| info.source).collect();
    assert_eq!(sources, families().map(EventClass::name).collect::<Vec<_>>());
    let ids = fixture.kernel.program_ids();
    let used = ATTACH_METHODS.iter().filter(|backend| backend.class != EventClass::ChargeNear);
    let used =
        used.filter(|backend| fixture.kernel.sources().iter().any(|info| info.backend == backend.name));
    assert_eq!(ids.len(), used.map(|backend| backend.hooks.len()).sum::<usize>());
    let loaded = |id: &u32| program_exists(*id);
    assert!(ids.iter().all(loaded));
    drop(fixture);
    // The kernel frees them after a grace period of its own.
    wait_until("the programs to be gone", || !ids.iter().any(loaded));
}

/// What is loaded where no threshold on a disk is configured.
fn families() -> impl Iterator<Item = EventClass> {
    EventClass::ALL.into_iter().filter(|family| family.file_system().is_none())
}

/// Whether the kernel still has the program, looked up by its id.
fn program_exists(id: u32) -> bool {
    aya::programs::loaded_programs().filter_map(Result::ok).any(|info| info.id() == id)
}

/// Keeps what the programs say.
struct Lines(Mutex<Vec<String>>);

static LINES: Lines = Lines(Mutex::new(Vec::new()));

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push(format!("{} {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

#[test]
fn the_programs_say_what_they_do_when_asked() {
    need_bpf!();
    log::set_logger(&LINES).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    for (level, speaks) in [(ProgramLog::Warn, false), (ProgramLog::Debug, true)] {
        let loaded = eviction_bpf::load(&LoadOptions { log: level, ..LoadOptions::default() }).unwrap();
        assert_eq!(loaded.missing, []);
        let mut log = loaded.log.expect("a reader of the diagnostics");
        let group = Cgroup::new();
        log.flush();
        let line = format!("DEBUG cgroup {} made", group.id());
        assert_eq!(LINES.0.lock().unwrap().contains(&line), speaks, "{level:?}");
    }
    assert!(eviction_bpf::load(&LoadOptions::default()).unwrap().log.is_none());
}

#[test]
fn the_method_for_old_kernels_is_accepted_by_the_verifier() {
    need_bpf!();
    let mut facts = capabilities::facts();
    let btf = facts.btf.as_mut().unwrap();
    btf.tracepoints.insert("mark_victim", vec![eviction_bpf::btf::Argument::Number]);
    // Old kernels have better ones as well.
    const OLD: &str = "tp_btf mark_victim(pid)";
    let better =
        ATTACH_METHODS.iter().filter(|backend| backend.class == EventClass::Oom && backend.name != OLD);
    let choice = deny(better.map(|backend| backend.name.to_owned()).collect());
    let loaded =
        eviction_bpf::load::load_on(&facts, &LoadOptions { choice, ..LoadOptions::default() }).unwrap();
    assert_eq!(loaded.missing, []);
    let oom = loaded.kernel.sources().iter().find(|info| info.source == "oom").unwrap();
    assert_eq!(oom.backend, OLD);
}

fn deny(deny: Vec<String>) -> BackendSelection {
    BackendSelection { deny, ..BackendSelection::default() }
}

#[test]
fn what_is_denied_is_missing_with_its_reason() {
    need_bpf!();
    let all: Vec<_> = ATTACH_METHODS.iter().map(|backend| backend.name.to_owned()).collect();
    let charge = ATTACH_METHODS.iter().filter(|backend| backend.class == EventClass::Charge);
    let charge: Vec<_> = charge.map(|backend| backend.name.to_owned()).collect();
    let choice = deny(charge.clone());
    let loaded = eviction_bpf::load(&LoadOptions { choice, ..LoadOptions::default() }).unwrap();
    let missing = loaded.missing.iter().find(|info| info.source == "charge").unwrap();
    assert_eq!(missing.backend, "");
    let reasons: Vec<_> =
        charge.iter().map(|name| format!("{name}: disabled by --disable-backend")).collect();
    assert_eq!(missing.reason, reasons.join("; "));

    let refused = eviction_bpf::load(&LoadOptions { choice: deny(all), ..LoadOptions::default() })
        .err()
        .expect("nothing to load");
    assert_eq!(refused.missing.len(), families().count());
    assert!(refused.to_string().contains("disabled by --disable-backend"), "{refused}");
}

#[test]
fn a_program_that_the_kernel_refuses_costs_its_family_alone_and_says_why() {
    need_bpf!();
    let mut facts = capabilities::facts();
    // Eight bytes at an odd place inside `cgroup`: no member is there.
    facts.btf.as_mut().unwrap().resolved.offsets.cgroup_root = 3;
    let loaded = eviction_bpf::load::load_on(&facts, &LoadOptions::default()).unwrap();
    let [missing] = loaded.missing.as_slice() else {
        panic!("one family, not {:?}", loaded.missing);
    };
    assert_eq!(missing.source, "cgroup");
    assert!(missing.reason.contains("the kernel refuses it"), "{missing:?}");
    assert!(missing.reason.len() < 400 && !missing.reason.contains('\n'), "{missing:?}");
    assert_eq!(loaded.kernel.sources().len(), families().count() - 1);
}

#[test]
fn a_lockdown_costs_the_kernel_kill_and_not_the_probe_on_charges() {
    need_some_bpf!();
    let mut facts = capabilities::facts();
    facts.lockdown = capabilities::Lockdown::Confidentiality;
    let loaded =
        eviction_bpf::load::load_on(&facts, &LoadOptions { kernel_kill: true, ..LoadOptions::default() })
            .unwrap();
    assert!(loaded.kernel.charge().is_some(), "{:?}", loaded.missing);
    assert!(!loaded.kernel.has_kernel_kill());
}

/// Of this kernel.
fn release() -> (u32, u32) {
    let name = rustix::system::uname();
    let mut numbers =
        name.release().to_str().unwrap().split(['.', '-']).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn this_kernels_btf_cut_off_anywhere_is_an_error_or_lacks_members() {
    let Ok(blob) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        report_skip("the kernel has no BTF");
        return;
    };
    let whole = resolve(&Btf::parse(&blob, &WANTED).unwrap(), None);
    // Most kernels have xfs as a module, and its structures in that.
    let missing: Vec<_> = whole.missing.iter().filter(|(field, _)| !field.starts_with("xfs_")).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // NR_MEMCG_STOCK, which came with 6.16.
    assert_eq!(whole.charge_caches, if release() >= (6, 16) { 7 } else { 1 });
    // Of kswapd and of direct reclaim there are events on all of them.
    assert!((2..=8).contains(&whole.reclaimed.len()), "{:?}", whole.reclaimed);
    let step = blob.len() / 97;
    for end in (0..64).chain((64..blob.len()).step_by(step)) {
        assert!(Btf::parse(&blob[..end], &WANTED).is_err(), "cut at {end}");
    }
    // A header that promises less than there is: what lies beyond is not found, and said so.
    let types = u32::from_ne_bytes(blob[12..16].try_into().unwrap());
    let mut shorter = blob.clone();
    let mut lacking = 0;
    for kept in (0..types).step_by(types as usize / 23) {
        shorter[12..16].copy_from_slice(&kept.to_ne_bytes());
        if let Ok(btf) = Btf::parse(&shorter, &WANTED) {
            lacking += usize::from(!resolve(&btf, None).missing.is_empty());
        }
    }
    assert!(lacking > 0);
}
