//! A soft threshold: a spike shorter than the grace period causes no eviction, a longer one does, and after
//! both the node condition stays for the transition period.

use std::time::Duration;

use anyhow::{Context as _, Error, Result};
use serde_json::json;
use tests::agent::{Agent, Event};
use tests::clock;
use tests::node::{MIB, Node};

use crate::hard::{MEMORY, PIDS};
use crate::pods;
use crate::runaway::{Plan, Runaway};
use crate::testbed::{GUARD, Skip, Testbed};
use crate::timeline::millis;
use crate::variant::Variant;

const SOFT: u64 = 128 * MIB;
const HARD: u64 = 16 * MIB;
const MAX_WORKING_SET: u64 = MEMORY - SOFT;
const GRACE: Duration = Duration::from_secs(2);
/// The grace period where a spike of 0.4 s may last for seconds.
const SLOW_GRACE: Duration = Duration::from_secs(12);
const TRANSITION: Duration = Duration::from_secs(3);
const CHECKOUT: u64 = 320;
const ETCD: u64 = 48;
const SIZE: u64 = 320 * MIB;
const RATE: u64 = 512 * MIB;
const SPIKE: Plan<'_> = Plan { mode: "spike", more: &["--hold", "400"], ..LONGER };
const LONGER: Plan<'_> = Plan { size: SIZE, rate: RATE, ..Plan::grow(MAX_WORKING_SET) };
/// The agent samples at least once in this time while a threshold is met.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn run(testbed: &mut Testbed<'_>, variant: Variant) -> Result<()> {
    let mut node = testbed.node(MEMORY, PIDS)?;
    let checkout = node.add(pods::checkout())?;
    let etcd = node.add(pods::etcd())?;
    let report = node.add(pods::report())?;
    let grace = if testbed.slow { SLOW_GRACE } else { GRACE };
    describe(testbed, grace);
    let mut bystanders = pods::bystanders(testbed, &node, &[(checkout, CHECKOUT), (etcd, ETCD)])?;
    let config = json!({
        "evictionHard": {"memory.available": format!("{}Mi", HARD / MIB)},
        "evictionSoft": {"memory.available": format!("{}Mi", SOFT / MIB)},
        "evictionSoftGracePeriod": {"memory.available": format!("{}s", grace.as_secs())},
        "evictionPressureTransitionPeriod": format!("{}s", TRANSITION.as_secs()),
        "evictionMaxPodGracePeriod": 1,
    });
    let mut agent = testbed.agent(&node, &config, "charge")?;
    let kills_before = node.oom_kills()?;
    let active_variant = variant.begin(testbed, &node)?;

    check_spike(testbed, &node, report, &mut agent, grace)?;
    pods::check_counters(testbed, &agent, &[], 0)?;

    let mut runaway = Runaway::start(testbed, &node, report, LONGER)?;
    let Some(decision) = testbed.wait_for_eviction(&mut agent, "memory.available", &node.pods[report])?
    else {
        return Ok(());
    };
    let working_set = runaway.wait_for_death(testbed, &decision, &[])?;
    let crossed = working_set.crossed().context("the threshold was never crossed")?;
    let decided = decision.number("decided_mono_ns").context("the decision has no time")?;
    let waited = Duration::from_nanos(decided.saturating_sub(crossed));
    testbed.value("crossed_to_decided_us", micros(waited));
    // The kernel charges ahead of what is touched.
    let earliest = working_set.crossed_at_the_earliest().context("the threshold was never crossed")?;
    let waited_at_most = Duration::from_nanos(decided.saturating_sub(earliest));
    testbed.check(
        format!("the longer one is evicted, not before {} s have passed", grace.as_secs()),
        decision.text("threshold") == "soft" && waited_at_most >= grace,
        format_args!("a {} decision after {waited:?}", decision.text("threshold")),
    );
    runaway.check_ended(testbed, &node)?;
    // The threshold was met when the pod was chosen. When it was met for the last time depends on how soon the
    // kernel frees the memory.
    check_condition_stays(testbed, &mut agent, decided, "the eviction")?;

    active_variant.end(testbed)?;
    pods::check_bystanders(testbed, &mut bystanders, ["within its request", "critical"])?;
    pods::check_one_eviction(testbed, &node, kills_before, agent, ("memory.available", report))
}

fn describe(testbed: &Testbed<'_>, grace: Duration) {
    testbed.printer.line(
        "node",
        format_args!(
            "{} MiB; soft threshold at {} MiB of working set, grace period {} s, transition period {} s",
            MEMORY / MIB,
            MAX_WORKING_SET / MIB,
            grace.as_secs(),
            TRANSITION.as_secs()
        ),
    );
}

/// Runs the spike, which must not cause an eviction.
fn check_spike(
    testbed: &mut Testbed<'_>,
    node: &Node,
    pod: usize,
    agent: &mut Agent,
    grace: Duration,
) -> Result<()> {
    let mut spike = Runaway::start(testbed, node, pod, SPIKE)?;
    let interrupt = testbed.interrupt;
    interrupt.until("the spike crosses the threshold", GUARD, || Ok(spike.working_set()?.crossed()))?;
    let fell = wait_until_below_threshold(testbed, node)?;
    let crossed = spike.working_set()?.crossed().context("the spike has no crossing")?;
    let lasted = Duration::from_nanos(fell.saturating_sub(crossed));
    testbed.value("spike_us", micros(lasted));
    if lasted >= grace {
        return Err(Error::new(Skip(format!(
            "this machine is too busy: a spike of 0.4 s lasted {:.1} s",
            lasted.as_secs_f64()
        ))));
    }
    testbed.printer.line("spike", format_args!("above the threshold for {:.2} s", lasted.as_secs_f64()));
    let condition = |status: &'static str| {
        move |event: &Event| event.kind() == "condition" && event.text("status") == status
    };
    agent.wait_for("MemoryPressure True", GUARD, condition("True"))?;
    check_condition_stays(testbed, agent, fell, "the spike")?;
    let decisions = agent.count_decisions()?;
    let lives = spike.process().process().is_running()?;
    testbed.check(
        "the spike is forgiven: its process lives, nothing was decided",
        lives && decisions == 0,
        format_args!("process lives: {lives}, {decisions} decisions"),
    );
    Ok(())
}

/// Waits until the working set is below the threshold value again, and returns that time.
fn wait_until_below_threshold(testbed: &Testbed<'_>, node: &Node) -> Result<u64> {
    testbed.interrupt.until("the working set falls below the threshold", GUARD, || {
        Ok((node.working_set()? < MAX_WORKING_SET).then(clock::now))
    })
}

/// Checks that the condition, true at `since`, ends, and not before the transition period has
/// passed.
fn check_condition_stays(
    testbed: &mut Testbed<'_>,
    agent: &mut Agent,
    since: u64,
    after: &str,
) -> Result<()> {
    let ended = agent.wait_for("the end of MemoryPressure", GUARD, |event| {
        event.kind() == "condition" && event.text("status") == "False" && event.read_ns > since
    })?;
    let stayed = Duration::from_nanos(ended.read_ns.saturating_sub(since));
    testbed.value(&format!("condition_after_{}_us", after.replace("the ", "")), micros(stayed));
    testbed.check(
        format!("MemoryPressure outlives {after} by the transition period"),
        ended.text("condition") == "MemoryPressure" && stayed + SAMPLE_INTERVAL >= TRANSITION,
        format_args!("{} ended {} ms after it", ended.text("condition"), millis(micros(stayed))),
    );
    Ok(())
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
