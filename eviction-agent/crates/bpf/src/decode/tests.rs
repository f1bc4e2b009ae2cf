//! Records made by hand, garbled and cut off.

use std::mem::offset_of;

use eviction_common::MAX_CHAIN;
use proptest::prelude::*;

use super::*;

const PAGE: u64 = 4096;

/// A record of zeros with a valid header.
fn record(kind: Kind) -> Vec<u8> {
    let bytes = kind.record_bytes();
    let mut record = vec![0; bytes];
    put(&mut record, offset_of!(Header, kind), &(kind as u16).to_ne_bytes());
    put(&mut record, offset_of!(Header, abi), &ABI_VERSION.to_ne_bytes());
    put(&mut record, offset_of!(Header, len), &(bytes as u32).to_ne_bytes());
    put(&mut record, offset_of!(Header, ktime_ns), &KTIME_NS.to_ne_bytes());
    record
}

fn put(record: &mut [u8], place: usize, bytes: &[u8]) {
    record[place..place + bytes.len()].copy_from_slice(bytes);
}

const KTIME_NS: u64 = 1234;

#[test]
fn growth_of_a_kernel_kill_is_in_pages_for_memory_and_bytes_for_disk() {
    for (cause, grown) in [(KernelKillCause::Memory, 3 * PAGE), (KernelKillCause::Disk, 3)] {
        let mut bytes = record(Kind::KernelKill);
        put(&mut bytes, offset_of!(raw::KernelKill, generation), &7_u64.to_ne_bytes());
        put(&mut bytes, offset_of!(raw::KernelKill, grown), &3_u64.to_ne_bytes());
        put(&mut bytes, offset_of!(raw::KernelKill, cause), &(cause as u32).to_ne_bytes());
        let Ok(Event::KernelKill(kill)) = decode(&bytes, PAGE) else { panic!("no kernel kill") };
        assert_eq!((kill.order, kill.cause, kill.grown, kill.error), (7, cause, grown, None));
    }
    let mut bytes = record(Kind::KernelKill);
    put(&mut bytes, offset_of!(raw::KernelKill, cause), &2_u32.to_ne_bytes());
    assert_eq!(decode(&bytes, PAGE), Err(unknown(Kind::KernelKill, "cause", 2)));
}

#[test]
fn threshold_crossing_is_decoded() {
    let mut bytes = record(Kind::ThresholdCrossed);
    for (place, value) in [
        (offset_of!(raw::ThresholdCrossed, cgroup_id), 11_u64),
        (offset_of!(raw::ThresholdCrossed, leaf_id), 12),
        (offset_of!(raw::ThresholdCrossed, generation), 13),
        (offset_of!(raw::ThresholdCrossed, usage), 14),
        (offset_of!(raw::ThresholdCrossed, gross), u64::MAX),
    ] {
        put(&mut bytes, place, &value.to_ne_bytes());
    }
    for (place, value) in [
        (offset_of!(raw::ThresholdCrossed, tgid), 15_u32),
        (offset_of!(raw::ThresholdCrossed, pid), 16),
        (offset_of!(raw::ThresholdCrossed, edge), Edge::UsageBelow as u32),
    ] {
        put(&mut bytes, place, &value.to_ne_bytes());
    }
    let crossed = ThresholdCrossed {
        ktime_ns: KTIME_NS,
        cgroup_id: 11,
        leaf_id: 12,
        generation: 13,
        edge: Edge::UsageBelow,
        usage: 14 * PAGE,
        gross: 0,
        tgid: 15,
        pid: 16,
    };
    assert_eq!(decode(&bytes, PAGE), Ok(Event::ThresholdCrossed(crossed)));
    let crossed = ThresholdCrossed { usage: 14 * 16 * PAGE, ..crossed };
    assert_eq!(
        decode(&bytes, 16 * PAGE),
        Ok(Event::ThresholdCrossed(crossed)),
        "the machine says what a page is"
    );

    put(&mut bytes, offset_of!(raw::ThresholdCrossed, edge), &7_u32.to_ne_bytes());
    let error = decode(&bytes, PAGE).unwrap_err();
    assert_eq!(error, "record of kind threshold_crossed has 7 as its edge");
}

#[test]
fn disk_threshold_crossing_is_decoded() {
    let mut bytes = record(Kind::DiskThresholdCrossed);
    for (place, value) in [
        (offset_of!(raw::DiskThresholdCrossed, generation), 11_u64),
        (offset_of!(raw::DiskThresholdCrossed, leaf_id), 12),
        (offset_of!(raw::DiskThresholdCrossed, beyond), 4096),
    ] {
        put(&mut bytes, place, &value.to_ne_bytes());
    }
    for (place, value) in [
        (offset_of!(raw::DiskThresholdCrossed, device), 7 << 20 | 3_u32),
        (offset_of!(raw::DiskThresholdCrossed, resource), DiskResource::Inodes as u32),
        (offset_of!(raw::DiskThresholdCrossed, tgid), 15),
        (offset_of!(raw::DiskThresholdCrossed, pid), 16),
    ] {
        put(&mut bytes, place, &value.to_ne_bytes());
    }
    let crossed = DiskThresholdCrossed {
        ktime_ns: KTIME_NS,
        device: rustix::fs::makedev(7, 3),
        resource: DiskResource::Inodes,
        generation: 11,
        beyond: 4096,
        leaf_id: 12,
        tgid: 15,
        pid: 16,
    };
    assert_eq!(decode(&bytes, PAGE), Ok(Event::DiskThresholdCrossed(crossed)));
    put(&mut bytes, offset_of!(raw::DiskThresholdCrossed, resource), &2_u32.to_ne_bytes());
    let error = decode(&bytes, PAGE).unwrap_err();
    assert_eq!(error, "record of kind disk_threshold_crossed has 2 as its resource");
}

#[test]
fn unknown_fields_of_an_oom_kill_are_none() {
    let mut bytes = record(Kind::OomKill);
    put(&mut bytes, offset_of!(raw::OomKill, comm), b"java\0garbage");
    put(&mut bytes, offset_of!(raw::OomKill, tgid), &77_u32.to_ne_bytes());
    put(&mut bytes, offset_of!(raw::OomKill, oom_score_adj), &(-997_i32).to_ne_bytes());
    put(&mut bytes, offset_of!(raw::OomKill, anon), &5_u64.to_ne_bytes());
    let flags = oom_flag::SCORE | oom_flag::RSS | oom_flag::CUT;
    put(&mut bytes, offset_of!(raw::OomKill, flags), &flags.to_ne_bytes());
    put(&mut bytes, offset_of!(raw::OomKill, chain_len), &2_u32.to_ne_bytes());
    let second = offset_of!(raw::OomKill, chain) + size_of::<raw::Ancestor>();
    let in_second = |place| second + place;
    put(&mut bytes, in_second(offset_of!(raw::Ancestor, id)), &42_u64.to_ne_bytes());
    let unlimited = i64::MAX as u64 / PAGE;
    put(&mut bytes, in_second(offset_of!(raw::Ancestor, max)), &unlimited.to_ne_bytes());
    put(&mut bytes, in_second(offset_of!(raw::Ancestor, oom)), &3_u64.to_ne_bytes());
    put(&mut bytes, in_second(offset_of!(raw::Ancestor, oom_before)), &2_u64.to_ne_bytes());
    let flags = ancestor_flag::EVENTS | ancestor_flag::OOM_SEEN | ancestor_flag::KILL_SEEN;
    put(&mut bytes, in_second(offset_of!(raw::Ancestor, flags)), &flags.to_ne_bytes());
    let first = offset_of!(raw::OomKill, chain) + offset_of!(raw::Ancestor, flags);
    let without_counts = ancestor_flag::OOM_SEEN | ancestor_flag::KILL_SEEN;
    put(&mut bytes, first, &without_counts.to_ne_bytes());

    let Ok(Event::OomKill(kill)) = decode(&bytes, PAGE) else {
        panic!("{:?}", decode(&bytes, PAGE));
    };
    assert_eq!((kill.ktime_ns, kill.tgid), (KTIME_NS, 77));
    assert_eq!(kill.comm_lossy().to_string(), "java");
    assert_eq!(kill.oom_score_adj, Some(-997));
    assert_eq!(kill.anon, Some(5 * PAGE));
    assert!(kill.truncated && !kill.pid_only);
    assert_eq!(kill.chain.len(), 2);
    assert_eq!(kill.chain[0], Ancestor { max: Some(0), ..Ancestor::default() });
    assert_eq!((kill.chain[1].id, kill.chain[1].max), (42, None));
    let Ancestor { oom, oom_before, oom_kill, oom_kill_before, .. } = kill.chain[1];
    assert_eq!([oom, oom_before, oom_kill, oom_kill_before], [Some(3), Some(2), Some(0), Some(0)]);
    assert_eq!(kill.trigger_memcg, None);
    // The kernel did not give the owner of the limit: the count of the second cgroup has changed.
    assert_eq!((kill.owner, kill.owner_inferred), (OomLimitOwner::Memcg(kill.chain[1]), true));
    assert_eq!(kill.path_below(42), None);

    // The victim's own cgroup counted no kill.
    put(&mut bytes, first, &flags.to_ne_bytes());
    assert!(matches!(decode(&bytes, PAGE), Ok(Event::OomMark(_))));

    let too_many = MAX_CHAIN as u32 + 1;
    put(&mut bytes, offset_of!(raw::OomKill, chain_len), &too_many.to_ne_bytes());
    let error = decode(&bytes, PAGE).unwrap_err();
    assert_eq!(error, "record of kind oom_kill has 17 as its chain length");
}

#[test]
fn oom_kill_with_the_owner_of_the_limit_is_decoded() {
    let mut bytes = record(Kind::OomKill);
    for (place, value) in [
        (offset_of!(raw::OomKill, trigger_memcg), 7_u64),
        (offset_of!(raw::OomKill, owner_id), 5),
        (offset_of!(raw::OomKill, owner_usage), 15),
        (offset_of!(raw::OomKill, owner_max), 16),
    ] {
        put(&mut bytes, place, &value.to_ne_bytes());
    }
    put(&mut bytes, offset_of!(raw::OomKill, flags), &oom_flag::OWNER.to_ne_bytes());
    put(&mut bytes, offset_of!(raw::OomKill, chain_len), &3_u32.to_ne_bytes());
    put(&mut bytes, offset_of!(raw::OomKill, trigger_comm), b"dd");
    for (place, name) in [&b"container\0rest"[..], b"pod", b""].into_iter().enumerate() {
        let id = offset_of!(raw::OomKill, chain) + place * size_of::<raw::Ancestor>();
        put(&mut bytes, id, &(place as u64 + 10).to_ne_bytes());
        put(&mut bytes, offset_of!(raw::OomKill, names) + place * NAME_BYTES, name);
    }
    // The count of the victim's own cgroup has changed, but the kernel itself gives another owner.
    let own = |place| offset_of!(raw::OomKill, chain) + place;
    put(&mut bytes, own(offset_of!(raw::Ancestor, oom)), &1_u64.to_ne_bytes());
    put(&mut bytes, own(offset_of!(raw::Ancestor, oom_kill)), &1_u64.to_ne_bytes());
    let flags = ancestor_flag::GROUP | ancestor_flag::EVENTS | ancestor_flag::OOM_SEEN;
    put(&mut bytes, own(offset_of!(raw::Ancestor, flags)), &flags.to_ne_bytes());

    let decoded = |bytes: &[u8]| match decode(bytes, PAGE) {
        Ok(Event::OomKill(kill)) => kill,
        other => panic!("{other:?}"),
    };
    let kill = decoded(&bytes);
    let owner = Ancestor { id: 5, usage: 15 * PAGE, max: Some(16 * PAGE), ..Ancestor::default() };
    assert_eq!((kill.owner, kill.owner_inferred), (OomLimitOwner::Memcg(owner), false));
    assert_eq!((kill.trigger_memcg, kill.trigger_comm_lossy().to_string()), (Some(7), "dd".to_owned()));
    assert_eq!(kill.chain.iter().map(|group| group.oom_group).collect::<Vec<_>>(), [true, false, false]);
    let path = |kill: &OomKill, top| {
        let path = kill.path_below(top)?;
        Some(path.iter().map(|(id, name)| format!("{id} {}", name.display())).collect::<Vec<_>>())
    };
    assert_eq!(path(&kill, 12), Some(vec!["11 pod".to_owned(), "10 container".to_owned()]));
    assert_eq!(path(&kill, 11), Some(vec!["10 container".to_owned()]));
    assert_eq!((path(&kill, 10), path(&kill, 13)), (Some(Vec::new()), None));

    put(&mut bytes, offset_of!(raw::OomKill, owner_id), &0_u64.to_ne_bytes());
    // A name that fills its buffer may be cut off. The kernel ends it with a NUL.
    let mut name = [b'x'; NAME_BYTES];
    for end in [b'x', 0] {
        name[NAME_BYTES - 1] = end;
        put(&mut bytes, offset_of!(raw::OomKill, names) + NAME_BYTES, &name);
        let kill = decoded(&bytes);
        assert_eq!(kill.owner, OomLimitOwner::Global);
        assert_eq!((path(&kill, 12), path(&kill, 11).is_some()), (None, true));
    }
    name[NAME_BYTES - 2] = 0;
    put(&mut bytes, offset_of!(raw::OomKill, names) + NAME_BYTES, &name);
    assert!(path(&decoded(&bytes), 12).is_some());
}

#[test]
fn creation_of_a_cgroup_is_decoded() {
    let mut bytes = record(Kind::CgroupCreated);
    put(&mut bytes, offset_of!(raw::CgroupChange, id), &5_u64.to_ne_bytes());
    assert_eq!(decode(&bytes, PAGE), Ok(Event::CgroupCreated(5)));
}

#[test]
fn task_alarm_is_decoded() {
    let mut bytes = record(Kind::TaskAlarm);
    for (place, value) in [
        (offset_of!(raw::TaskAlarm, memcg_id), 5_u64),
        (offset_of!(raw::TaskAlarm, key_id), 6),
        (offset_of!(raw::TaskAlarm, tasks), -7_i64 as u64),
        (offset_of!(raw::TaskAlarm, bound), 8),
    ] {
        put(&mut bytes, place, &value.to_ne_bytes());
    }
    for (place, value) in [
        (offset_of!(raw::TaskAlarm, tgid), 9_u32),
        (offset_of!(raw::TaskAlarm, alarm), Alarm::NodeTasks as u32),
    ] {
        put(&mut bytes, place, &value.to_ne_bytes());
    }
    let alarm = TaskAlarm {
        ktime_ns: KTIME_NS,
        alarm: Alarm::NodeTasks,
        memcg_id: 5,
        key_id: 6,
        tasks: -7,
        bound: 8,
        tgid: 9,
    };
    assert_eq!(decode(&bytes, PAGE), Ok(Event::TaskAlarm(alarm)));

    put(&mut bytes, offset_of!(raw::TaskAlarm, alarm), &3_u32.to_ne_bytes());
    let error = decode(&bytes, PAGE).unwrap_err();
    assert_eq!(error, "record of kind task_alarm has 3 as its alarm");
}

#[test]
fn invalid_record_is_refused_with_the_reason() {
    let whole = record(Kind::ThresholdCrossed);
    let error = |bytes: &[u8]| decode(bytes, PAGE).unwrap_err();
    assert_eq!(error(&whole[..15]), "record of 15 bytes has no header");
    let size_error = |found, stated| {
        format!("record of kind threshold_crossed has {found} bytes and states {stated}, expected 72")
    };
    assert_eq!(error(&whole[..40]), size_error(40, 72));
    assert_eq!(error(&[&whole[..], &[0; 8]].concat()), size_error(80, 72));
    let mut foreign = whole.clone();
    let other = ABI_VERSION + 1;
    put(&mut foreign, offset_of!(Header, abi), &other.to_ne_bytes());
    assert_eq!(error(&foreign), format!("record of ABI {other}, this is {ABI_VERSION}"));
    let mut unknown = whole.clone();
    put(&mut unknown, offset_of!(Header, kind), &99_u16.to_ne_bytes());
    assert_eq!(error(&unknown), "record of unknown kind 99");
    let mut stated = whole;
    put(&mut stated, offset_of!(Header, len), &80_u32.to_ne_bytes());
    assert_eq!(error(&stated), size_error(72, 80));
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(Kind::ALL.to_vec())
}

proptest! {
    #[test]
    fn any_bytes_end_in_an_event_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..3700)) {
        let _ = decode(&bytes, PAGE);
    }

    #[test]
    fn any_bytes_behind_a_right_header_end_in_an_event_or_an_error(
        kind in kinds(),
        noise in prop::collection::vec(any::<u8>(), 3700),
    ) {
        let mut record = record(kind);
        let body = &mut record[size_of::<Header>()..];
        body.copy_from_slice(&noise[..body.len()]);
        let _ = decode(&record, 1 << 16);
    }

    #[test]
    fn record_of_the_wrong_length_is_an_error(kind in kinds(), len in 0_usize..3700) {
        prop_assume!(len != kind.record_bytes());
        let mut record = record(kind);
        record.resize(len, 0);
        if len >= 8 {
            put(&mut record, offset_of!(Header, len), &(len as u32).to_ne_bytes());
        }
        prop_assert!(decode(&record, PAGE).is_err());
    }
}
