//! Plans for invented kernels.

use std::collections::BTreeMap;

use eviction_common::{MIN_CHANGE_PAGES, Offsets};

use rustix::thread::CapabilitySet;

use super::*;
use crate::{btf::Argument, capabilities::Lockdown};

fn structure(name: &str) -> Argument {
    Argument::Struct(name.into())
}

fn xfs_iomap_alloc() -> Vec<Argument> {
    let [inode, extent] = ["xfs_inode", "xfs_bmbt_irec"].map(structure);
    vec![inode, Argument::Number, Argument::Number, Argument::Number, extent]
}

/// A kernel that has everything.
fn complete_kernel() -> KernelFacts {
    let task = || structure("task_struct");
    let inode = || structure("inode");
    let tracepoints = BTreeMap::from([
        ("mod_memcg_state", vec![structure("mem_cgroup"), Argument::Number, Argument::Number]),
        ("count_memcg_events", vec![structure("mem_cgroup"), Argument::Number, Argument::Number]),
        ("rss_stat", vec![structure("mm_struct"), Argument::Number]),
        ("mark_victim", vec![task(), Argument::Number]),
        ("sched_process_fork", vec![task(), task()]),
        ("sched_process_exec", vec![task(), Argument::Number, structure("linux_binprm")]),
        ("sched_process_exit", vec![task(), Argument::Number]),
        ("mm_vmscan_memcg_reclaim_begin", vec![Argument::Number, Argument::Number]),
        ("mm_vmscan_memcg_reclaim_end", vec![Argument::Number]),
        ("cgroup_mkdir", vec![structure("cgroup"), Argument::Pointer]),
        ("cgroup_rmdir", vec![structure("cgroup"), Argument::Pointer]),
        ("ext4_allocate_blocks", vec![structure("ext4_allocation_request"), Argument::Number]),
        ("ext4_free_blocks", vec![inode(), Argument::Number, Argument::Number, Argument::Number]),
        ("ext4_allocate_inode", vec![inode(), inode(), Argument::Number]),
        ("ext4_free_inode", vec![inode()]),
        ("ext4_da_reserve_space", vec![inode(), Argument::Number]),
        ("ext4_da_release_space", vec![inode(), Argument::Number]),
        ("ext4_da_update_reserve_space", vec![inode(), Argument::Number, Argument::Number]),
        ("xfs_iomap_alloc", xfs_iomap_alloc()),
        ("xfs_alloc_vextent_finish", vec![structure("xfs_alloc_arg")]),
        ("xfs_create", vec![structure("xfs_inode"), structure("xfs_name")]),
    ]);
    let counter = || structure("page_counter");
    let functions = BTreeMap::from([
        ("page_counter_try_charge", vec![counter(), Argument::Number, Argument::Pointer]),
        ("page_counter_charge", vec![counter(), Argument::Number]),
        ("page_counter_uncharge", vec![counter(), Argument::Number]),
        ("oom_kill_process", vec![structure("oom_control"), Argument::Pointer]),
        ("oom_kill_memcg_member", vec![task(), Argument::Pointer]),
    ]);
    let btf = BtfFacts {
        offsets: Offsets::NONE,
        css_online: 2,
        css_dying: 16,
        charge_caches: 1,
        reclaimed: 0..0,
        missing: Vec::new(),
        tracepoints,
        functions,
    };
    KernelFacts {
        btf: Ok(btf),
        capabilities: CapabilitySet::BPF | CapabilitySet::PERFMON,
        lockdown: Lockdown::Integrity,
        hierarchy: Ok(4),
    }
}

fn btf(facts: &mut KernelFacts) -> &mut BtfFacts {
    facts.btf.as_mut().unwrap()
}

fn described(facts: &KernelFacts) -> Vec<String> {
    describe_plan(facts, &BackendSelection::default())
}

/// Returns the candidates of each class, and the reasons against the others.
fn describe_plan(facts: &KernelFacts, choice: &BackendSelection) -> Vec<String> {
    plan(facts, choice)
        .iter()
        .map(|(class, candidates)| {
            format!("{class}: {} | {}", names(candidates).join(", "), refusals(candidates).join(", "))
        })
        .collect()
}

fn names(candidates: &[MethodCandidate]) -> Vec<&'static str> {
    let tried = candidates.iter().filter(|candidate| candidate.refusal.is_none());
    tried.map(|candidate| candidate.method.name).collect()
}

fn refusals(candidates: &[MethodCandidate]) -> Vec<&str> {
    candidates.iter().filter_map(|candidate| candidate.refusal.as_deref()).collect()
}

/// Returns the methods for one class on a kernel that has everything.
fn candidates(class: EventClass) -> Vec<MethodCandidate> {
    let plans = plan(&complete_kernel(), &BackendSelection::default());
    plans.into_iter().find(|(planned, _)| *planned == class).unwrap().1
}

#[test]
fn complete_kernel_gets_the_best_method_of_each_class() {
    assert_eq!(
        described(&complete_kernel()),
        [
            "charge: fexit page_counter_try_charge, kprobe page_counter_try_charge, tp_btf mod_memcg_state | argument 3 of rss_stat is absent, not number",
            "charge near: fexit page_counter_uncharge, kprobe page_counter_uncharge, tp_btf count_memcg_events | ",
            "oom: fentry oom_kill_process, kprobe oom_kill_process, tp_btf mark_victim(task) | argument 1 of mark_victim is struct task_struct *, not number, argument 1 of mark_victim is struct task_struct *, not number, argument 1 of mark_victim is struct task_struct *, not number",
            "task: tp_btf sched_process_fork, sched_process_exec, sched_process_exit | ",
            "reclaim: tp_btf mm_vmscan_memcg_reclaim_begin, mm_vmscan_memcg_reclaim_end | ",
            "cgroup: tp_btf cgroup_mkdir, cgroup_rmdir | ",
            "disk: tp_btf ext4_allocate_blocks, ext4_free_blocks, ext4_allocate_inode, ext4_free_inode | ",
            "disk near: tp_btf ext4_da_reserve_space(inode, blocks), ext4_da_release_space, tp_btf ext4_da_reserve_space(inode), ext4_da_release_space | ",
            "disk xfs: raw_tp xfs_iomap_alloc, xfs_alloc_vextent_finish, xfs_create, raw_tp xfs_iomap_alloc, xfs_create | ",
        ]
    );
}

#[test]
fn methods_for_an_old_kernel_are_chosen_by_its_prototypes() {
    let mut facts = complete_kernel();
    btf(&mut facts).tracepoints.remove("mod_memcg_state");
    btf(&mut facts).functions.remove("page_counter_charge");
    let counted = vec![structure("mm_struct"), Argument::Number, Argument::Number];
    btf(&mut facts).tracepoints.insert("rss_stat", counted);
    btf(&mut facts).tracepoints.insert("mark_victim", vec![Argument::Number]);
    btf(&mut facts).tracepoints.remove("xfs_alloc_vextent_finish");
    let described = described(&facts);
    let function = "this kernel has no function page_counter_charge";
    let tracepoint = "this kernel has no tracepoint mod_memcg_state";
    assert_eq!(described[0], format!("charge: tp_btf rss_stat | {function}, {function}, {tracepoint}"));
    assert_eq!(
        described[2],
        "oom: fentry oom_kill_process, oom_kill_memcg_member, kprobe oom_kill_process, oom_kill_memcg_member, tp_btf mark_victim(pid) | argument 1 of mark_victim is number, not struct task_struct *, argument 1 of mark_victim is number, not struct task_struct *, argument 1 of mark_victim is number, not struct task_struct *"
    );
    let tracepoint = "this kernel has no tracepoint xfs_alloc_vextent_finish";
    assert_eq!(described[8], format!("disk xfs: raw_tp xfs_iomap_alloc, xfs_create | {tracepoint}"));
    btf(&mut facts).functions.remove("oom_kill_memcg_member");
    let plans = plan(&facts, &BackendSelection::default());
    let info = info(EventClass::Oom, &plans[2].1);
    assert_eq!(info.backend, "tp_btf mark_victim(pid)");
    assert!(info.reason.contains("no function oom_kill_memcg_member"), "{info:?}");
}

#[test]
fn on_demand_probe_is_planned_only_with_its_method() {
    let probes_for = |charge: &str| {
        let mut near = candidates(EventClass::ChargeNear);
        refuse_other_probes(charge, &mut near);
        near
    };
    let near = probes_for("fexit page_counter_try_charge");
    // The second one is for kernels that attach the first one only once.
    assert_eq!(names(&near), ["fexit page_counter_uncharge", "kprobe page_counter_uncharge"]);
    assert_eq!(refusals(&near), ["requires tp_btf mod_memcg_state or no backend"]);
    assert_eq!(names(&probes_for("kprobe page_counter_try_charge")), ["kprobe page_counter_uncharge"]);
    for charge in ["tp_btf mod_memcg_state", ""] {
        assert_eq!(names(&probes_for(charge)), ["tp_btf count_memcg_events"], "{charge}");
    }
    for method in ATTACH_METHODS {
        assert_eq!(method.when.is_some(), !method.accompanies.is_empty(), "{}", method.name);
        let mut named = method.accompanies.iter().filter(|name| !name.is_empty());
        assert!(named.all(|name| crate::attach_methods::names().any(|method| method == *name)));
    }
}

#[test]
fn missing_disk_hook_affects_only_its_class_and_is_named() {
    let mut facts = complete_kernel();
    btf(&mut facts).tracepoints.remove("ext4_da_release_space");
    let all = described(&facts);
    let why = "this kernel has no tracepoint ext4_da_release_space";
    assert_eq!(all[7], format!("disk near:  | {why}, {why}"));
    assert!(all[6].starts_with("disk: tp_btf"), "{all:?}");
    let one = vec![structure("inode")];
    btf(&mut facts).tracepoints.insert("ext4_da_reserve_space", one);
    btf(&mut facts).tracepoints.insert("ext4_da_release_space", vec![structure("inode"), Argument::Number]);
    assert!(described(&facts)[7].starts_with(
        "disk near: tp_btf ext4_da_reserve_space(inode), ext4_da_release_space | argument 2 of ext4_da_reserve_space is absent"
    ));
    let mut near = candidates(EventClass::DiskNear);
    refuse_other_probes("", &mut near);
    assert!(
        names(&near).is_empty() && refusals(&near)[0].starts_with("requires tp_btf ext4_allocate_blocks")
    );
}

#[test]
fn methods_below_the_chosen_one_are_not_in_its_reason() {
    let info = info(EventClass::Oom, &candidates(EventClass::Oom));
    assert_eq!(info.reason, "the preferred backend");
}

#[test]
fn a_tracepoint_with_fewer_arguments_is_refused() {
    let mut facts = complete_kernel();
    let task = structure("task_struct");
    btf(&mut facts).tracepoints.insert("sched_process_fork", vec![task]);
    let why = "argument 2 of sched_process_fork is absent, not struct task_struct *";
    assert_eq!(described(&facts)[3], format!("task:  | {why}"));
}

#[test]
fn arguments_of_reclaim_begin_are_not_checked() {
    let mut facts = complete_kernel();
    let newer = vec![Argument::Number, Argument::Number, structure("mem_cgroup")];
    btf(&mut facts).tracepoints.insert("mm_vmscan_memcg_reclaim_begin", newer);
    let newer = vec![Argument::Number, structure("mem_cgroup")];
    btf(&mut facts).tracepoints.insert("mm_vmscan_memcg_reclaim_end", newer);
    assert_eq!(described(&facts), described(&complete_kernel()));
    btf(&mut facts).tracepoints.insert("mm_vmscan_memcg_reclaim_end", vec![structure("mem_cgroup")]);
    let why = "argument 1 of mm_vmscan_memcg_reclaim_end is struct mem_cgroup *, not number";
    assert_eq!(described(&facts)[4], format!("reclaim:  | {why}"));
}

#[test]
fn missing_member_affects_only_the_classes_that_need_it() {
    let mut facts = complete_kernel();
    let missing = "this kernel's struct cgroup has no root".to_owned();
    btf(&mut facts).missing.push(("cgroup_root", missing));
    let described = described(&facts);
    assert_eq!(described[5], "cgroup:  | this kernel's struct cgroup has no root");
    assert!(described[..5].iter().all(|line| line.contains("tp_btf")), "{described:?}");
}

#[test]
fn missing_optional_member_affects_no_class() {
    let mut facts = complete_kernel();
    for field in ["mm_anon", "memcg_oom", "css_flags", "pids_counter"] {
        btf(&mut facts).missing.push((field, "this kernel has no such thing".to_owned()));
    }
    assert_eq!(described(&facts), described(&complete_kernel()));
}

#[test]
fn missing_bpf_prerequisite_is_the_reason_for_every_class() {
    let all = |change: &dyn Fn(&mut KernelFacts), why: &str| {
        let mut facts = complete_kernel();
        change(&mut facts);
        for line in described(&facts) {
            assert!(line.contains(&format!(":  | {why}")), "{line}");
        }
    };
    all(&|facts| facts.capabilities = CapabilitySet::empty(), "no CAP_BPF and CAP_PERFMON");
    all(&|facts| facts.capabilities = CapabilitySet::BPF, "no CAP_PERFMON");
    all(&|facts| facts.capabilities = CapabilitySet::PERFMON, "no CAP_BPF");
    all(&|facts| facts.btf = Err("read vmlinux: no such file".into()), "read vmlinux: no such file");
    all(
        &|facts| facts.hierarchy = Err("the memory controller is off".into()),
        "the memory controller is off",
    );
}

#[test]
fn methods_are_planned_on_a_locked_down_kernel_too() {
    let mut facts = complete_kernel();
    facts.lockdown = Lockdown::Confidentiality;
    assert_eq!(described(&facts), described(&complete_kernel()));
}

#[test]
fn disabled_method_is_not_tried() {
    let deny = vec!["tp_btf cgroup_mkdir, cgroup_rmdir".to_owned()];
    let choice = BackendSelection { deny, ..BackendSelection::default() };
    assert_eq!(describe_plan(&complete_kernel(), &choice)[5], "cgroup:  | disabled by --disable-backend");
    let no_backend = info(EventClass::Cgroup, &plan(&complete_kernel(), &choice)[5].1);
    assert_eq!(no_backend.backend, "");
    assert_eq!(no_backend.reason, "tp_btf cgroup_mkdir, cgroup_rmdir: disabled by --disable-backend");
}

#[test]
fn requested_method_is_the_only_one_of_its_class() {
    let only = |name: &str| BackendSelection { only: vec![name.to_owned()], ..BackendSelection::default() };
    let other = "another backend was requested";
    let described = |choice| describe_plan(&complete_kernel(), &choice);
    assert_eq!(
        described(only("tp_btf mod_memcg_state"))[0],
        format!("charge: tp_btf mod_memcg_state | {other}, {other}, {other}")
    );
    assert!(described(only("tp_btf mod_memcg_state"))[2].starts_with("oom: fentry oom_kill_process,"));
    let timer = described(only("timerfd"));
    assert!(timer[0].starts_with("charge:  |") && timer[1].starts_with("charge near:  |"), "{timer:?}");
}

#[test]
fn method_names_are_unique_and_required_offsets_exist() {
    let names: Vec<_> = ATTACH_METHODS.iter().map(|method| method.name).collect();
    let mut apart = names.clone();
    apart.sort_unstable();
    apart.dedup();
    assert_eq!(apart.len(), names.len());
    // Without any BTF every field of `Offsets` is missing by its name.
    let empty = crate::btf::tests::Blob::new().bytes();
    let btf = crate::btf::Btf::parse(&empty).unwrap();
    let resolved = crate::offsets::resolve(&btf, None);
    assert_eq!(resolved.offsets, Offsets::NONE);
    for field in ATTACH_METHODS.iter().flat_map(|method| method.needs).copied().flatten() {
        assert!(resolved.why(field).is_some(), "no offset is called {field}");
    }
}

#[test]
fn granularity_grows_with_the_page_size() {
    const KIB: u64 = 1 << 10;
    for (page, batch, table) in [(4 * KIB, 256 * KIB, 2048 * KIB), (64 * KIB, 4096 * KIB, 512 << 20)] {
        let granularity = |name: &str| {
            let method = ATTACH_METHODS.iter().find(|method| method.name == name).unwrap();
            (method.granularity)(page)
        };
        assert_eq!(granularity("fexit page_counter_try_charge"), batch);
        assert_eq!(granularity("tp_btf mod_memcg_state"), table + MIN_CHANGE_PAGES * page);
        assert_eq!(granularity("fexit page_counter_uncharge"), 0);
    }
}
