//! Loading of the programs: the kernel's refusals, and nothing left behind.

use std::sync::Mutex;

use eviction_bpf::{
    self, EventClass, LoadOptions, attach_methods::ATTACH_METHODS, btf::Btf, capabilities, offsets::resolve,
};
use eviction_node::backend::BackendSelection;
use tests::program;

use crate::fixture::{Fixture, need_bpf, need_some_bpf};
use crate::groups::Cgroup;

#[test]
fn all_event_classes_are_attached_and_unloaded_on_drop() {
    need_bpf!();
    let fixture = Fixture::load();
    let sources: Vec<_> = fixture.kernel.sources().iter().map(|info| info.source).collect();
    assert_eq!(sources, default_classes().map(EventClass::name).collect::<Vec<_>>());
    let ids = fixture.kernel.program_ids();
    let used = ATTACH_METHODS.iter().filter(|backend| backend.class != EventClass::ChargeNear);
    let used =
        used.filter(|backend| fixture.kernel.sources().iter().any(|info| info.backend == backend.name));
    assert_eq!(ids.len(), used.map(|backend| backend.hooks.len()).sum::<usize>());
    assert!(ids.iter().all(|id| program::name(*id).is_ok()));
    drop(fixture);
    program::wait_until_unloaded(&ids).unwrap();
}

/// Returns the event classes that are loaded where no threshold on a disk is configured.
fn default_classes() -> impl Iterator<Item = EventClass> {
    EventClass::ALL.into_iter().filter(|class| class.file_system().is_none())
}

/// A logger that keeps the lines of the programs.
struct CapturedLog(Mutex<Vec<String>>);

static CAPTURED_LOG: CapturedLog = CapturedLog(Mutex::new(Vec::new()));

impl log::Log for CapturedLog {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push(format!("{} {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

#[test]
fn the_programs_log_only_if_requested() {
    need_bpf!();
    log::set_logger(&CAPTURED_LOG).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let loaded = eviction_bpf::load(&LoadOptions { debug_log: true, ..LoadOptions::default() }).unwrap();
    assert_eq!(loaded.missing, []);
    let mut log = loaded.log.expect("a reader of the diagnostics");
    let group = Cgroup::new();
    log.flush();
    let line = format!("DEBUG cgroup {} made", group.id());
    assert!(CAPTURED_LOG.0.lock().unwrap().contains(&line));
    assert!(eviction_bpf::load(&LoadOptions::default()).unwrap().log.is_none());
}

#[test]
fn the_oom_backend_for_old_kernels_passes_the_verifier() {
    need_bpf!();
    let mut facts = capabilities::facts();
    let btf = facts.btf.as_mut().unwrap();
    btf.tracepoints.insert("mark_victim", vec![eviction_bpf::btf::Argument::Number]);
    // Old kernels have better methods as well.
    const OLD: &str = "tp_btf mark_victim(pid)";
    let better =
        ATTACH_METHODS.iter().filter(|backend| backend.class == EventClass::Oom && backend.name != OLD);
    let choice = without_backends(better.map(|backend| backend.name.to_owned()).collect());
    let loaded =
        eviction_bpf::load::load_on(&facts, &LoadOptions { choice, ..LoadOptions::default() }).unwrap();
    assert_eq!(loaded.missing, []);
    let oom = loaded.kernel.sources().iter().find(|info| info.source == "oom").unwrap();
    assert_eq!(oom.backend, OLD);
}

fn without_backends(deny: Vec<String>) -> BackendSelection {
    BackendSelection { deny, ..BackendSelection::default() }
}

#[test]
fn a_disabled_backend_is_missing_with_its_reason() {
    need_bpf!();
    let all: Vec<_> = ATTACH_METHODS.iter().map(|backend| backend.name.to_owned()).collect();
    let charge = ATTACH_METHODS.iter().filter(|backend| backend.class == EventClass::Charge);
    let charge: Vec<_> = charge.map(|backend| backend.name.to_owned()).collect();
    let choice = without_backends(charge.clone());
    let loaded = eviction_bpf::load(&LoadOptions { choice, ..LoadOptions::default() }).unwrap();
    let missing = loaded.missing.iter().find(|info| info.source == "charge").unwrap();
    assert_eq!(missing.backend, "");
    let reasons: Vec<_> =
        charge.iter().map(|name| format!("{name}: disabled by --disable-backend")).collect();
    assert_eq!(missing.reason, reasons.join("; "));

    let error = eviction_bpf::load(&LoadOptions { choice: without_backends(all), ..LoadOptions::default() })
        .err()
        .expect("nothing to load");
    assert_eq!(error.missing.len(), default_classes().count());
    assert!(error.to_string().contains("disabled by --disable-backend"), "{error}");
}

#[test]
fn a_program_refused_by_the_kernel_disables_only_its_event_class() {
    need_bpf!();
    let mut facts = capabilities::facts();
    // Eight bytes at an odd offset inside `cgroup`: no member is there.
    facts.btf.as_mut().unwrap().offsets.cgroup_root = 3;
    let loaded = eviction_bpf::load::load_on(&facts, &LoadOptions::default()).unwrap();
    let [missing] = loaded.missing.as_slice() else {
        panic!("one event class, not {:?}", loaded.missing);
    };
    assert_eq!(missing.source, "cgroup");
    assert!(missing.reason.contains("the kernel refuses it"), "{missing:?}");
    assert!(missing.reason.len() < 400 && !missing.reason.contains('\n'), "{missing:?}");
    assert_eq!(loaded.kernel.sources().len(), default_classes().count() - 1);
}

#[test]
fn a_lockdown_disables_the_kernel_kill_but_not_the_charge_probe() {
    need_some_bpf!();
    let mut facts = capabilities::facts();
    facts.lockdown = capabilities::Lockdown::Confidentiality;
    let loaded =
        eviction_bpf::load::load_on(&facts, &LoadOptions { kernel_kill: true, ..LoadOptions::default() })
            .unwrap();
    assert!(loaded.kernel.charge().is_some(), "{:?}", loaded.missing);
    assert!(!loaded.kernel.has_kernel_kill());
}

/// Returns the version of this kernel.
fn release() -> (u32, u32) {
    let name = rustix::system::uname();
    let mut numbers =
        name.release().to_str().unwrap().split(['.', '-']).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn truncated_kernel_btf_is_an_error_or_lacks_members() {
    let Ok(blob) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        tests::skip!("the kernel has no BTF");
    };
    let whole = resolve(&Btf::parse(&blob).unwrap(), None);
    // Most kernels have xfs as a module, and its structures in that.
    let missing: Vec<_> = whole.missing.iter().filter(|(field, _)| !field.starts_with("xfs_")).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // NR_MEMCG_STOCK, which came with 6.16.
    assert_eq!(whole.charge_caches, if release() >= (6, 16) { 7 } else { 1 });
    // All kernels have events for kswapd and for direct reclaim.
    assert!((2..=8).contains(&whole.reclaimed.len()), "{:?}", whole.reclaimed);
    let step = blob.len() / 97;
    for end in (0..64).chain((64..blob.len()).step_by(step)) {
        assert!(Btf::parse(&blob[..end]).is_err(), "cut at {end}");
    }
    // A header that promises fewer types than there are: members beyond are not found, and are reported as missing.
    let types = u32::from_ne_bytes(blob[12..16].try_into().unwrap());
    let mut shorter = blob.clone();
    let mut lacking = 0;
    for kept in (0..types).step_by(types as usize / 23) {
        shorter[12..16].copy_from_slice(&kept.to_ne_bytes());
        if let Ok(btf) = Btf::parse(&shorter) {
            lacking += usize::from(!resolve(&btf, None).missing.is_empty());
        }
    }
    assert!(lacking > 0);
}
