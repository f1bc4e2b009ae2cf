//! `export`: prints a recording in other formats.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use eviction_core::disk_layout::Parts;
use eviction_core::input::{Event, Input};
use eviction_core::observation::Observations;
use eviction_core::reading::Reading;
use eviction_core::signal::{Resource, Signal};
use eviction_core::signal_filter::observe;
use eviction_core::snapshot::{MemoryDetail, NodeStats, PodStatValues, PodStats, Snapshot};
use eviction_core::time::{Timestamp, later};
use eviction_core::units::GoDuration;
use serde_json::{Value, json};

use super::output::{Out, VerbError, report_unreadable};
use crate::daemon::Failure;
use crate::scenario::recording::Replay;
use crate::telemetry::recording::format::pod_json;
use crate::telemetry::recording::reader::{Item, Items, SegmentError};

/// Print a recording as JSON lines, CSV or OpenMetrics
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// Recording: a directory of `recorder.directory` or one of its segments
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Output format. csv and openmetrics have the eviction signals and the memory of pods; openmetrics
    /// can be imported by `promtool tsdb create-blocks-from openmetrics`
    #[arg(short, long, value_enum, default_value_t = ExportFormat::Jsonl, help_heading = "Output")]
    output: ExportFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    /// Everything, one JSON object a line
    Jsonl,
    /// time,metric,labels...,value
    Csv,
    /// OpenMetrics text with timestamps
    Openmetrics,
}

pub(super) fn run(args: &ExportArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let errors = match args.output {
        ExportFormat::Jsonl => write_lines(&args.file, out)?,
        ExportFormat::Csv => {
            writeln!(out, "time,metric,eviction_signal,namespace,pod,value")?;
            write_points(&args.file, &mut |point| {
                let Point { at, family, signal, namespace, pod, value } = point;
                writeln!(out, "{at},{family},{signal},{},{},{value}", csv(namespace), csv(pod))
            })?
        }
        ExportFormat::Openmetrics => {
            let mut errors = Vec::new();
            // The samples of a metric must be consecutive.
            for (family, help) in FAMILIES {
                writeln!(out, "# TYPE {family} gauge\n# HELP {family} {help}")?;
                // The timestamps of a series have a precision of milliseconds and must increase.
                let mut last: BTreeMap<String, i64> = BTreeMap::new();
                // Each pass meets the same segments.
                errors = write_points(&args.file, &mut |point| {
                    let Point { at, family: of, signal, namespace, pod, value } = point;
                    if of != family {
                        return Ok(());
                    }
                    let labels = match signal {
                        "" => format!("namespace={namespace:?},pod={pod:?}"),
                        signal => format!("eviction_signal={signal:?}"),
                    };
                    let millis = at.as_millisecond();
                    if last.get(&labels).is_some_and(|last| *last >= millis) {
                        return Ok(());
                    }
                    writeln!(out, "{family}{{{labels}}} {value} {}.{:03}", millis / 1000, millis % 1000)?;
                    last.insert(labels, millis);
                    Ok(())
                })?;
            }
            writeln!(out, "# EOF")?;
            errors
        }
    };
    Ok(if report_unreadable(&errors) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a time of a recording as a time of the system clock, which is `offset` nanoseconds later.
fn shown(offset: i64, at: Timestamp) -> Timestamp {
    later(at, GoDuration::from_nanos(offset))
}

/// Writes all items. Returns the segments that cannot be read to their end.
fn write_lines(file: &Path, out: &mut Out) -> Result<Vec<SegmentError>, VerbError> {
    let (mut offset, mut errors) = (0, Vec::new());
    for read in Items::of(file).map_err(|error| read_error(file, &error))? {
        match read {
            Ok(Item::Clock(nanos)) => offset = nanos,
            Ok(item) => writeln!(out, "{}", line(offset, &item))?,
            Err(error) => errors.push(error),
        }
    }
    Ok(errors)
}

fn read_error(file: &Path, error: &io::Error) -> Failure {
    Failure::because(format!("read {}", file.display()), error)
}

fn line(offset: i64, item: &Item) -> Value {
    let at = |at: &Timestamp| shown(offset, *at);
    let sampled = |kind: &str, when: &Timestamp, snapshot: &Snapshot| {
        let memory = memory(&snapshot.node.memory_detail);
        json!({"at": at(when), "kind": kind, "summary": summary(snapshot), "memory": memory})
    };
    match item {
        Item::Header(header) => json!({"kind": "segment", "header": header}),
        Item::Key(key) => json!({"at": at(&key.at), "kind": "key", "key": key}),
        Item::Pods(when, all) => {
            let all: Vec<_> = all.iter().map(|pod| pod_json(pod)).collect();
            json!({"at": at(when), "kind": "pods", "pods": all})
        }
        Item::Input(Input { at: when, event: Event::Sample(snapshot) }) => sampled("sample", when, snapshot),
        Item::Input(Input { at: when, event: Event::Reclaimed(Ok(snapshot)) }) => {
            sampled("reclaimed", when, snapshot)
        }
        Item::Input(Input { at: when, event: Event::Reclaimed(Err(why)) }) => {
            json!({"at": at(when), "kind": "reclaimed", "error": why})
        }
        Item::Input(Input { at: when, event }) => json!({"at": at(when), "kind": "event", "event": event}),
        Item::Seed(raised) => json!({"kind": "conditions", "conditions": raised}),
        Item::Usage(when, snapshot) => sampled("usage", when, snapshot),
        Item::Decision(record) => json!({"kind": "decision", "decision": record}),
        Item::Clock(_) => Value::Null,
    }
}

/// Returns the values of the node and its pods in the format of the kubelet's Summary.
fn summary(snapshot: &Snapshot) -> Value {
    let NodeStats {
        memory,
        allocatable_memory,
        node_fs,
        image_fs,
        container_fs,
        processes,
        memory_detail: _,
        unmeasured,
        awaited_bytes,
    } = snapshot.node;
    let of_pods = allocatable_memory.known().map(|it| json!({"name": "pods", "memory": it}));
    let mut summary = json!({
        "node": {
            "memory": memory.known(),
            "systemContainers": of_pods.into_iter().collect::<Vec<_>>(),
            "fs": node_fs.known(),
            "runtime": {"imageFs": image_fs.known(), "containerFs": container_fs.known()},
            "rlimit": processes.known(),
        },
        "pods": snapshot.pods().map(pod_usage).collect::<Vec<_>>(),
    });
    if unmeasured != Parts::default() {
        summary["node"]["unmeasured"] = json!(unmeasured);
    }
    if awaited_bytes > 0 {
        summary["node"]["awaitedBytes"] = json!(awaited_bytes);
    }
    summary
}

/// Returns the values of the node's memory that the Summary does not have.
fn memory(detail: &MemoryDetail) -> Value {
    let &MemoryDetail { mem_available, active_file, some_avg10, full_avg10, stalled, swap_used, swap_total } =
        detail;
    #[expect(clippy::cast_precision_loss, reason = "hundredths of a percent are small")]
    let percent = |hundredths: Reading<u64>| hundredths.known().map(|share| share as f64 / 100.0);
    json!({
        "memAvailable": mem_available.known(),
        "activeFile": active_file.known(),
        "someAvg10": percent(some_avg10),
        "fullAvg10": percent(full_avg10),
        "stalled": stalled.known(),
        "swapUsed": swap_used.known(),
        "swapTotal": swap_total.known(),
    })
}

fn pod_usage(pod: PodStats<'_>) -> Value {
    let PodStatValues {
        has_memory,
        memory_working_set,
        memory_anonymous,
        ephemeral_storage_used,
        process_count,
        bytes_elsewhere,
    } = pod.values();
    let memory = json!({"workingSetBytes": memory_working_set, "rssBytes": memory_anonymous});
    let containers = pod.containers().map(|(name, values)| {
        json!({
            "name": name,
            "memory": values.memory_working_set.map(|bytes| json!({"workingSetBytes": bytes})),
            "rootfs": {"usedBytes": values.rootfs_used, "inodesUsed": values.rootfs_inodes},
            "logs": {"usedBytes": values.logs_used, "inodesUsed": values.logs_inodes},
        })
    });
    let volumes = pod
        .volumes()
        .map(|(name, values)| json!({"name": name, "usedBytes": values.used, "inodesUsed": values.inodes}));
    json!({
        "podRef": {"uid": pod.uid()},
        "memory": has_memory.then_some(memory),
        "ephemeral-storage": ephemeral_storage_used.map(|used| json!({"usedBytes": used})),
        "bytesElsewhere": bytes_elsewhere,
        "process_stats": process_count.map(|count| json!({"process_count": count})),
        "containers": containers.collect::<Vec<_>>(),
        "volume": volumes.collect::<Vec<_>>(),
    })
}

const MEMORY: &str = "eviction_agent_pod_memory_working_set_bytes";

/// The metrics of the agent that a recording contains.
const FAMILIES: [(&str, &str); 4] = [
    ("eviction_agent_signal_available_bytes", "What is available by the eviction signal."),
    ("eviction_agent_signal_available_inodes", "What is available by the eviction signal."),
    ("eviction_agent_signal_available_pids", "What is available by the eviction signal."),
    (MEMORY, "Working set of the pod."),
];

/// A value at a time.
struct Point<'a> {
    at: Timestamp,
    family: &'static str,
    signal: &'static str,
    namespace: &'a str,
    pod: &'a str,
    value: i64,
}

/// Passes the values of a recording to `on_point`. Returns the segments that cannot be read to their end.
fn write_points(
    file: &Path,
    on_point: &mut dyn FnMut(Point<'_>) -> io::Result<()>,
) -> Result<Vec<SegmentError>, VerbError> {
    let (mut offset, mut names) = (0, BTreeMap::new());
    // The policy in force says how available memory is measured.
    let mut replay = Replay::of(file).map_err(|error| read_error(file, &error))?;
    while let Some((item, _)) = replay.next() {
        let (at, snapshot, is_usage) = match item {
            Item::Clock(nanos) => {
                offset = nanos;
                continue;
            }
            Item::Pods(_, pods) => {
                names = pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
                continue;
            }
            Item::Usage(at, snapshot) => (shown(offset, at), snapshot, true),
            Item::Input(Input { at, event: Event::Sample(snapshot) }) => (shown(offset, at), snapshot, false),
            _ => continue,
        };
        let observations = match replay.engine() {
            Some(engine) => observe(&snapshot.node, engine.policy().rules.memory().measure),
            None => Observations::of(&snapshot.node),
        };
        for signal in Signal::ALL.into_iter().filter(|_| !is_usage) {
            let Some(observation) = observations.get(signal) else { continue };
            let family = match signal.resource() {
                Resource::Inodes => FAMILIES[1].0,
                Resource::Pids => FAMILIES[2].0,
                Resource::Memory | Resource::EphemeralStorage => FAMILIES[0].0,
            };
            let signal = signal.name();
            on_point(Point { at, family, signal, namespace: "", pod: "", value: observation.available })?;
        }
        for stats in snapshot.pods() {
            let Some(value) = stats.values().memory_working_set else { continue };
            let Some(pod) = names.get(stats.uid()) else { continue };
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            let (namespace, pod) = (&*pod.namespace, &*pod.name);
            on_point(Point { at, family: MEMORY, signal: "", namespace, pod, value })?;
        }
    }
    Ok(replay.errors)
}

/// Quotes a text for CSV if necessary.
fn csv(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use eviction_core::fixture::{at, enhanced, node, snapshot};
    use eviction_core::policy::preferences::MemoryMeasure;

    use super::*;
    use crate::telemetry::recording::tests::{key_of, limits};
    use crate::telemetry::recording::writer::Writer;
    use crate::telemetry::recording::{Recorded, SegmentHeader};

    #[test]
    fn memory_is_exported_by_the_measure_of_the_policy() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(limits(folder.path()), SegmentHeader::default()).unwrap();
        let policy = enhanced(Vec::new(), |it| it.memory.measure = MemoryMeasure::MemAvailable);
        writer.take(&Recorded::Key(Box::new(key_of(policy))), |at| at).unwrap();
        let mut stats = node(900, 900, at(1));
        stats.memory_detail.mem_available = Reading::Known(700);
        let event = Event::Sample(snapshot(stats, &[]));
        writer.take(&Recorded::Input(Input { at: at(1), event }), |at| at).unwrap();
        writer.flush().unwrap();
        let mut values = Vec::new();
        let read = write_points(folder.path(), &mut |point| {
            values.extend((point.signal == Signal::MemoryAvailable.name()).then_some(point.value));
            Ok(())
        });
        assert!(read.is_ok_and(|errors| errors.is_empty()));
        assert_eq!(values, [700]);
    }
}
