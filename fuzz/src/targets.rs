//! One function for each kind of input. Each takes any bytes, must not panic, asserts that what it parsed is in
//! the input, and returns whether it could parse any of it. `tests/tests/corpus.rs` runs them over the corpus
//! with every change.

use std::io::Write as _;
use std::path::Path;

use eviction_agent::source::pods::parse_pod_list;
use eviction_agent::telemetry::recording::format::{begin, frame_of};
use eviction_agent::telemetry::recording::reader::Segment;
use eviction_bpf::Event;
use eviction_bpf::btf::Btf;
use eviction_bpf::decode::decode;
use eviction_bpf::offsets::resolve;
use eviction_common::ABI_VERSION;
use eviction_config::{Problems, kubelet_policy, load_agent, load_kubelet};
use eviction_core::pods::KnownPod;
use eviction_core::policy::preferences::PsiKind;
use eviction_core::reading::Reading;
use eviction_core::units::{Format, GoDuration, Limit, Quantity, parse_percentage};
use eviction_node::cgroup::files::{
    Version, parse_limit, parse_memory_events, parse_memory_stat, parse_oom_control, parse_pids_events,
};
use eviction_node::cgroup::names::{parse_container_name, parse_group_name};
use eviction_node::file::parse_number_line;
use eviction_node::mountinfo::parse_mounts;
use eviction_node::proc::meminfo::parse_meminfo;
use eviction_node::proc::process::{parse_procs, parse_task_count};
use eviction_node::proc::vmstat::parse_oom_kills;
use eviction_node::proc::watermarks::parse_zoneinfo_reserve;
use eviction_node::psi::parse_pressure;

/// Decodes a record of the ring buffer. The first byte selects the page size. Below 128 it also sets the
/// record's version to the current one, so that the corpus stays useful.
pub fn record(input: &[u8]) -> bool {
    let Some((&first, record)) = input.split_first() else { return false };
    let (page_bytes, mut record) = (4096 << (2 * (first % 3)), record.to_vec());
    if let Some(version) = record.get_mut(2..4).filter(|_| first < 128) {
        version.copy_from_slice(&ABI_VERSION.to_ne_bytes());
    }
    let Ok(event) = decode(&record, page_bytes) else { return false };
    let text = match &event {
        Event::OomKill(kill) => format!("{} {}", kill.comm_lossy(), kill.trigger_comm_lossy()),
        Event::OomMark(mark) => mark.comm_lossy().to_string(),
        Event::KernelKill(kill) => kill.comm_lossy().to_string(),
        other => format!("{other:?}"),
    };
    assert!(text.len() < 1 << 20, "a record of {} bytes makes {}", record.len(), text.len());
    true
}

/// Parses the kernel's type information (BTF) and resolves all that is wanted from it; also parses it as its
/// own module.
pub fn btf(input: &[u8]) -> bool {
    let Ok(btf) = Btf::parse(input) else { return false };
    let module = btf.parse_module(input).ok();
    let resolved = resolve(&btf, module.as_ref());
    for (field, why) in &resolved.missing {
        assert!(!why.to_string().is_empty(), "{field} has a reason");
    }
    for name in ["mark_victim", "page_counter_try_charge", ""] {
        for btf in [Some(&btf), module.as_ref()].into_iter().flatten() {
            let _ = (btf.tracepoint(name), btf.function(name));
        }
    }
    true
}

/// Parses a file of a cgroup; the first byte selects which.
pub fn cgroup_files(input: &[u8]) -> bool {
    let Some((&selector, text)) = input.split_first() else { return false };
    let is_in_text = |value: Reading<u64>, key: &str| {
        let known = value.known().is_some();
        assert!(!known || contains_text(text, key), "{key} is not in the text");
        known
    };
    match selector % 9 {
        version @ 0..=1 => {
            let version = [Version::V1, Version::V2][usize::from(version)];
            let stat = parse_memory_stat(version, text);
            is_in_text(stat.inactive_file, "inactive_file")
                & is_in_text(stat.active_file, "active_file")
                & is_in_text(stat.anon, if version == Version::V1 { "total_rss" } else { "anon" })
        }
        2 => is_in_text(parse_memory_events(text).oom_kill, "oom_kill"),
        3 => is_in_text(parse_oom_control(text), "oom_kill"),
        4 => is_in_text(parse_pids_events(text), "max"),
        5 => parse_procs(text).is_ok(),
        6 => parse_number_line(text).is_ok(),
        7 => parse_limit(text).is_ok(),
        _ => {
            let Ok(name) = std::str::from_utf8(text) else { return false };
            let _ = parse_group_name(name);
            let (_, id) = parse_container_name(name);
            assert!(name.contains(id));
            true
        }
    }
}

/// Parses a file of `/proc`; the first byte selects which.
pub fn proc_files(input: &[u8]) -> bool {
    let Some((&selector, text)) = input.split_first() else { return false };
    match selector % 8 {
        0 => {
            let total = parse_meminfo(text).capacity.known().is_some();
            assert!(!total || contains_text(text, "MemTotal"));
            total
        }
        1 => {
            let some = parse_pressure(text, PsiKind::Some).avg10.known().is_some();
            assert!(!some || contains_text(text, "some"));
            some
        }
        2 => parse_task_count(text).is_ok_and(|count| {
            assert!(count > 0, "the reader is a task");
            true
        }),
        3 => parse_oom_kills(text).is_ok_and(|_| {
            assert!(contains_text(text, "oom_kill"));
            true
        }),
        6 => parse_zoneinfo_reserve(text).is_ok_and(|_| {
            assert!(contains_text(text, "Node"));
            true
        }),
        _ => parse_mounts(text).next().is_some(),
    }
}

fn is_below_1000_e(quantity: &Quantity) -> bool {
    let bounds = ["-1000E", "1000E"].map(Quantity::parse);
    matches!(bounds, [Ok(low), Ok(high)] if low < *quantity && *quantity < high)
}

/// Parses quantities, durations, limits and percentages as Kubernetes writes them.
pub fn quantity(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let quantity = Quantity::parse(text);
    if let Ok(quantity) = &quantity {
        let canonical = quantity.to_string();
        // There is no suffix beyond E, and Go then writes none: both Go and the agent write `70000E` as `70`.
        let round_trips = quantity.format() != Format::DecimalSi || is_below_1000_e(quantity);
        match Quantity::parse(&canonical) {
            Ok(reparsed) if round_trips => {
                assert_eq!(reparsed.nanos(), quantity.nanos(), "{text} is written {canonical}")
            }
            Ok(_) => {}
            Err(error) => panic!("{text} is written {canonical}, which is refused: {error}"),
        }
    }
    let duration = GoDuration::parse(text).is_ok();
    quantity.is_ok() | duration | Limit::parse(text).is_ok() | parse_percentage(text).is_ok()
}

/// Loads the file of a `KubeletConfiguration`.
pub fn kubelet_configuration(input: &[u8]) -> bool {
    with_file(input, |file| {
        load_kubelet(Some(file), None).map_err(|problems| assert_explained(&problems)).is_ok()
    })
}

/// Loads the file of an `AgentConfiguration`.
pub fn agent_configuration(input: &[u8]) -> bool {
    with_file(input, |file| load_agent(Some(file)).map_err(|problems| assert_explained(&problems)).is_ok())
}

/// Parses a `PodList`, and derives the policy's view of its pods.
pub fn pod_list(input: &[u8]) -> bool {
    let Ok(pods) = parse_pod_list(input) else { return false };
    let Ok(policy) = kubelet_policy(&serde_json::Value::Null) else { panic!("the defaults are refused") };
    for pod in pods {
        assert!(!pod.uid.to_string().is_empty(), "a pod without a uid is no pod");
        let _ = KnownPod::new(pod, &policy);
    }
    true
}

/// Asserts that each problem has a cause.
fn assert_explained(problems: &Problems) {
    assert!(!problems.0.is_empty(), "refused without a reason");
    for problem in &problems.0 {
        assert!(!problem.cause.is_empty(), "{problem:?}");
    }
}

fn with_file(content: &[u8], read: impl FnOnce(&Path) -> bool) -> bool {
    let file = tempfile::NamedTempFile::new().and_then(|mut file| {
        file.write_all(content)?;
        Ok(file)
    });
    match file {
        Ok(file) => read(file.path()),
        Err(error) => panic!("no file can be made: {error}"),
    }
}

fn contains_text(text: &[u8], word: &str) -> bool {
    text.windows(word.len()).any(|window| window == word.as_bytes())
}

/// Reads a recording: first the bytes as they are, then as frames with valid checksums. Each line makes one
/// frame; its first digit is the frame's kind.
pub fn recording(input: &[u8]) -> bool {
    let frames = input.split(|byte| *byte == b'\n').filter_map(|line| line.split_first());
    let frames = frames.flat_map(|(kind, payload)| frame_of(kind.wrapping_sub(b'0'), payload));
    let framed: Vec<u8> = begin().into_iter().chain(frames).collect();
    let read = |bytes: &[u8]| {
        let Ok(mut segment) = Segment::read(bytes) else { return 0 };
        std::iter::from_fn(|| segment.next_item().ok().flatten()).count()
    };
    read(input) + read(&framed) > 0
}
