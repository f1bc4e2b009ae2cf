//! Every backend for charges that this kernel has, one after the other.

use eviction_bpf::{
    self, AttachWhen, Edge, EventClass, KernelThreshold, LoadOptions, attach_methods::ATTACH_METHODS,
};
use eviction_node::backend::BackendSelection;

use crate::fixture::{Fixture, MIB, Stepper, above, need_bpf, need_some_bpf};
use crate::groups::Cgroup;

/// Runs a test on each backend for charges that can be attached here; there is at least one.
fn on_each_method(test: impl Fn(&str, Fixture)) {
    let mut attached = 0;
    for backend in ATTACH_METHODS.iter().filter(|backend| backend.class == EventClass::Charge) {
        let only = vec![backend.name.to_owned()];
        let choice = BackendSelection { only, ..BackendSelection::default() };
        let options = LoadOptions { choice, ..LoadOptions::default() };
        let loaded = eviction_bpf::load(&options).unwrap();
        match loaded.missing.iter().find(|missing| missing.source == EventClass::Charge.name()) {
            Some(missing) => eprintln!("not here: {}", missing.reason),
            None => {
                attached += 1;
                test(backend.name, Fixture::from_loaded(loaded));
            }
        }
    }
    assert!(attached > 0, "no method can be attached");
}

#[test]
fn a_crossing_is_reported_once_by_every_attach_method() {
    need_some_bpf!();
    on_each_method(|name, mut fixture| {
        let pod = Cgroup::new();
        let container = pod.child("container");
        let mut process = Stepper::with_memory(&container, 8);
        let granularity = fixture.kernel.charge().unwrap().granularity_bytes;
        let threshold_bytes = pod.usage() + 32 * MIB;
        let threshold = above(threshold_bytes);
        let generation = fixture.kernel.set_threshold(pod.id(), threshold).unwrap();
        process.step("touch 16");
        assert_eq!(fixture.crossings(generation), [], "{name}: not yet there");
        process.step("touch 64");
        let crossed = fixture.only_crossing(generation, name);
        assert_eq!((crossed.cgroup_id, crossed.leaf_id), (pod.id(), container.id()), "{name}");
        assert_eq!((crossed.edge, crossed.tgid), (Edge::UsageAbove, process.pid()), "{name}");
        assert!(
            (threshold_bytes..=threshold_bytes + 2 * granularity).contains(&crossed.usage),
            "{name}: {crossed:?} for {threshold_bytes}"
        );
    });
}

#[test]
fn gross_charges_are_reported_by_methods_that_see_every_charge() {
    need_some_bpf!();
    on_each_method(|name, mut fixture| {
        let sees_every_charge = fixture.kernel.charge().unwrap().sees_every_charge;
        let pod = Cgroup::new();
        let container = pod.child("container");
        let mut process = Stepper::with_memory(&container, 64);
        let before = pod.usage();
        let threshold = KernelThreshold { gross: Some(96 * MIB), ..KernelThreshold::default() };
        let generation = fixture.kernel.set_threshold(pod.id(), threshold).unwrap();
        fixture.count_gross_charges(container.id());
        for _ in 0..3 {
            process.step("give-back");
            process.step("again");
        }
        let after = pod.usage();
        assert!(after < before + 8 * MIB, "{name}: usage stands where it was: {before} and {after}");
        let gross = fixture.gross_bytes(container.id());
        if !sees_every_charge {
            assert_eq!((fixture.crossings(generation).len(), gross), (0, 0), "{name}");
            return;
        }
        let crossed = fixture.only_crossing(generation, name);
        assert_eq!((crossed.edge, crossed.cgroup_id), (Edge::Gross, pod.id()), "{name}");
        assert!((96 * MIB..104 * MIB).contains(&crossed.gross), "{name}: {crossed:?}");
        // Counters of memory with swap and of kernel memory would double it.
        assert!((192 * MIB..224 * MIB).contains(&gross), "{name}: {gross} were charged");
    });
}

#[test]
fn charges_during_a_sample_count_towards_the_threshold() {
    need_some_bpf!();
    on_each_method(|name, mut fixture| {
        let sees_every_charge = fixture.kernel.charge().unwrap().sees_every_charge;
        let pod = Cgroup::new();
        let mut process = Stepper::with_memory(&pod, 1);
        let gross = |mib: u64| KernelThreshold { gross: Some(mib * MIB), ..KernelThreshold::default() };
        assert_eq!(fixture.kernel.read_threshold(pod.id()), None, "{name}: no threshold is set");
        fixture.kernel.set_threshold(pod.id(), gross(1024)).unwrap();
        // A reading begins, and takes long.
        let began = fixture.kernel.read_threshold(pod.id());
        assert!(began.is_some(), "{name}");
        process.step("touch 32");
        let generation = fixture.kernel.set_threshold_since(pod.id(), gross(96), began).unwrap();
        process.step("touch 48");
        assert_eq!(fixture.crossings(generation), [], "{name}: 80 of 96");
        process.step("touch 24");
        assert_eq!(fixture.crossings(generation).len(), usize::from(sees_every_charge), "{name}: 104 of 96");
        // The earlier value belongs to another threshold setting.
        process.step("touch 32");
        let generation = fixture.kernel.set_threshold_since(pod.id(), gross(48), began).unwrap();
        process.step("touch 32");
        assert_eq!(fixture.crossings(generation), [], "{name}: 32 of 48");
        // However long the reading takes, half of the headroom is left.
        let began = fixture.kernel.read_threshold(pod.id());
        process.step("touch 64");
        let generation = fixture.kernel.set_threshold_since(pod.id(), gross(48), began).unwrap();
        process.step("touch 16");
        assert_eq!(fixture.crossings(generation), [], "{name}: 24 and 16 of 48");
        process.step("touch 16");
        assert_eq!(
            fixture.crossings(generation).len(),
            usize::from(sees_every_charge),
            "{name}: 24 and 32 of 48"
        );
    });
}

#[test]
fn charges_rejected_by_a_limit_are_not_counted() {
    // The OOM kill shows it.
    need_bpf!();
    on_each_method(|name, mut fixture| {
        if !fixture.kernel.charge().unwrap().sees_every_charge {
            return;
        }
        let pod = Cgroup::new();
        pod.limit(24 * MIB);
        let mut process = Stepper::with_memory(&pod, 1);
        fixture.count_gross_charges(pod.id());
        process.send("touch 64");
        fixture.wait_for_oom_kill(process.pid());
        let gross = fixture.gross_bytes(pod.id());
        assert!((16 * MIB..32 * MIB).contains(&gross), "{name}: {gross} were charged");
    });
}

#[test]
fn a_downward_crossing_is_reported_without_a_charge_by_release_probes() {
    need_some_bpf!();
    on_each_method(|name, mut fixture| {
        let pod = Cgroup::new();
        let mut process = Stepper::with_memory(&pod, 64);
        let threshold = KernelThreshold { usage_below: Some(32 * MIB), ..KernelThreshold::default() };
        let generation = fixture.kernel.set_threshold(pod.id(), threshold).unwrap();
        let sees_every_charge = fixture.kernel.charge().unwrap().sees_every_charge;
        if sees_every_charge {
            fixture.attach(AttachWhen::OnRelease);
        }
        process.step("free");
        if sees_every_charge {
            let crossed = fixture.only_crossing(generation, name);
            assert_eq!(crossed.edge, Edge::UsageBelow, "{name}");
            assert!(crossed.usage < 32 * MIB, "{name}: {crossed:?}");
        }
        fixture.detach(AttachWhen::OnRelease);
    });
}
