//! The bench of a storm: every hook at once from many cgroups, while cgroups come and go, with the ring
//! as the agent makes it. What came, what was lost, and when a crossing was seen.
//!
//! `cargo xtask bench storm` runs it. The generator is the program `storm`: a process in each cgroup that
//! maps page tables and gives them back; how often the hooks fired is the kernel's own count
//! (`BPF_ENABLE_STATS`). The reader is the library's, on an ordinary thread.
#![forbid(unsafe_code)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use aya::sys::{Stats, enable_stats};
use clap::Parser;
use eviction_bpf::{BpfHandle, Counter, Event, KernelThreshold, LoadOptions, Loaded, Ring, load};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tests::bench::machine;
use tests::bench::row::Row;
use tests::bench::table;
use tests::cgroup::{Group, Subtree};
use tests::clock;
use tests::interrupt::{self, Interrupt};
use tests::mounts::Hierarchy;
use tests::process::Process;
use tests::storm::Storm;

const MIB: u64 = 1 << 20;

#[derive(Debug, Parser)]
#[command(about = "Measures a storm of hooks")]
struct Args {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// What is measured, for the machine line
    #[arg(long, value_name = "COMMIT", default_value = "")]
    commit: String,
    /// How many cgroups there are
    #[arg(long, default_value_t = 500)]
    cgroups: usize,
    /// How long it lasts
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    seconds: u64,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    interrupt::exit("bench storm", run(&Args::parse()).map(|()| true))
}

fn run(Args { json, commit, cgroups, seconds, bench: _ }: &Args) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let _counting = enable_stats(Stats::RunTime).context("ask the kernel to count firings")?;
    let subtree = Subtree::new("storm")?;
    let groups: Vec<Group> =
        (0..*cgroups).map(|place| subtree.group(format!("group-{place}"))).collect::<Result<_>>()?;
    let folders: Vec<_> = groups.iter().map(memory_folder).collect::<Result<_>>()?;
    let grower = subtree.group("grower")?;
    let Loaded { mut kernel, mut ring, .. } = load(&LoadOptions::default()).context("load the programs")?;
    let backend = kernel.sources().iter().find(|info| info.source == "charge").map(|info| info.backend);
    let machine = machine::line("storm", backend, commit)?;
    let mut storm = Storm::start(Path::new(env!("CARGO_BIN_EXE_storm")), &folders)?;
    let measured = rage(&interrupt, &subtree, &mut storm, &mut kernel, &mut ring, &grower, *seconds)?;
    storm.pause()?;
    let rows = measured.rows(&mut kernel, &mut ring, *cgroups)?;
    drop(storm);
    subtree.remove()?;
    let mut out = std::io::stdout();
    if *json {
        writeln!(out, "{machine}")?;
        rows.iter().try_for_each(|row| writeln!(out, "{}", row.json("storm")))?;
        write!(std::io::stderr(), "{}", render(&rows))?;
    } else {
        write!(out, "{}", render(&rows))?;
    }
    Ok(())
}

fn memory_folder(group: &Group) -> Result<PathBuf> {
    group.dir(Hierarchy::Memory).or_else(|| group.dir(Hierarchy::Unified)).context("no memory controller")
}

/// What was seen while the storm went on.
#[derive(Default)]
struct Measured {
    firings: Vec<f64>,
    stamp_to_reader: Vec<f64>,
    unseen: u64,
    events: u64,
    churned: u64,
}

/// One second after the other: firings, and a crossing in the middle of it.
fn rage(
    interrupt: &Interrupt,
    subtree: &Subtree,
    storm: &mut Storm,
    kernel: &mut BpfHandle,
    ring: &mut Ring,
    grower: &Group,
    seconds: u64,
) -> Result<Measured> {
    let mut measured = Measured::default();
    let mut stepper = Stepper::start(grower)?;
    let id = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(memory_folder(grower)?)?);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| -> Result<u64> {
            let mut made = 0;
            while !over.load(Ordering::Relaxed) {
                subtree.group("churn")?.destroy()?;
                made += 1;
            }
            Ok(made)
        });
        let mut iteration = || -> Result<()> {
            interrupt.check()?;
            let (start, fired) = (Instant::now(), firings(kernel));
            let threshold_bytes = grower.memory()? + 4 * MIB;
            let generation = kernel.set_threshold(
                id,
                KernelThreshold { usage_above: Some(threshold_bytes), ..KernelThreshold::default() },
            )?;
            stepper.send("touch 16")?;
            let mut seen = None;
            while start.elapsed() < Duration::from_secs(1) {
                let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                let descriptor = ring.as_fd();
                let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
                let _ = poll(&mut descriptors, Some(&timeout));
                let now_ns = clock::now();
                let drained = ring.drain(|event| match event {
                    Event::ThresholdCrossed(crossed) if crossed.generation == generation => {
                        seen = Some(now_ns.saturating_sub(crossed.ktime_ns));
                    }
                    _ => {}
                });
                measured.events += drained.events;
            }
            stepper.wait()?;
            stepper.send("free")?;
            stepper.wait()?;
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            let rate = (firings(kernel) - fired) as f64 / start.elapsed().as_secs_f64();
            measured.firings.push(rate);
            match seen {
                #[expect(clippy::cast_precision_loss, reason = "microseconds")]
                Some(late_ns) => measured.stamp_to_reader.push(late_ns as f64 / 1000.0),
                None => measured.unseen += 1,
            }
            Ok(())
        };
        let result = storm.go().and_then(|()| (0..seconds).try_for_each(|_| iteration()));
        over.store(true, Ordering::Relaxed);
        let churned = churn.join().map_err(|_| anyhow::anyhow!("the churn panicked"))?;
        result?;
        measured.churned = churned?;
        Ok(measured)
    })
}

impl Measured {
    /// When all is quiet: what came and what was counted as lost is all that was written.
    fn rows(mut self, kernel: &mut BpfHandle, ring: &mut Ring, cgroups: usize) -> Result<Vec<Row>> {
        let case = format!("{cgroups} cgroups");
        let start = Instant::now();
        let lost = loop {
            let lost = kernel.lost().context("read what was lost")?;
            self.events += ring.drain(|_| {}).events;
            if lost.get(Counter::Records) == self.events + lost.records_lost()
                || start.elapsed() > Duration::from_secs(10)
            {
                break lost;
            }
        };
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        let count = |value: u64| vec![value as f64];
        let uncounted = lost.get(Counter::Records).abs_diff(self.events + lost.records_lost());
        let no_room = lost.by_map().iter().map(|(_, count)| count).sum();
        use tests::bench::row::Goal;
        Ok(vec![
            Row::new(&case, "firings", "1/s", self.firings)
                .with("generator", "page tables mapped and given back by a process in each cgroup")
                .goal(Goal::AtLeast(100_000.0)),
            Row::new(&case, "stamp to reader", "us", self.stamp_to_reader),
            Row::new(&case, "crossings unseen within a second", "1", count(self.unseen)).goal(Goal::Max(0.0)),
            Row::new(&case, "cgroups made and removed", "1", count(self.churned)),
            Row::new(&case, "records", "1", count(lost.get(Counter::Records))),
            Row::new(&case, "records lost and counted", "1", count(lost.records_lost())),
            Row::new(&case, "records lost uncounted", "1", count(uncounted)).goal(Goal::Max(0.0)),
            Row::new(&case, "figures without room", "1", count(no_room)).goal(Goal::Max(0.0)),
        ])
    }
}

/// How often the programs ran.
fn firings(kernel: &BpfHandle) -> u64 {
    let ours = kernel.program_ids();
    let loaded = aya::programs::loaded_programs().filter_map(Result::ok);
    loaded.filter(|program| ours.contains(&program.id())).map(|program| program.run_count()).sum()
}

/// The program `stepper`, which touches memory on command.
struct Stepper {
    process: Process,
    output: BufReader<ChildStdout>,
}

impl Stepper {
    fn start(group: &Group) -> Result<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stepper"));
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let output = BufReader::new(process.child().stdout.take().context("the stepper's output")?);
        group.add(process.pid())?;
        Ok(Self { process, output })
    }

    fn send(&mut self, step: &str) -> Result<()> {
        let input = self.process.child().stdin.as_mut().context("the stepper's input")?;
        writeln!(input, "{step}").context("write to the stepper")
    }

    fn wait(&mut self) -> Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("read from the stepper")?;
        ensure!(line == "ok\n", "the stepper says {line:?}");
        Ok(())
    }
}

fn render(rows: &[Row]) -> String {
    let mut lines =
        vec![["case", "metric", "unit", "n", "min", "p50", "p99", "max", "goal"].map(str::to_owned)];
    lines.extend(rows.iter().map(|row| {
        let value = |percent| row.percentile_text(percent);
        let (case, metric, unit) = (row.case.clone(), row.metric.to_owned(), row.unit.to_owned());
        [
            case,
            metric,
            unit,
            row.n().to_string(),
            value(0),
            value(50),
            value(99),
            value(100),
            row.goal_result().into(),
        ]
    }));
    table::render(&lines, &[0, 1, 2, 8])
}
