//! OOM kills and terminated containers as text. The sentences are those of their event lines.

use super::evaluation::TextPage;
use crate::explain::text::{Tone, clock, printable};
use crate::oom::{ContainerTerminated, OomKill};
use crate::time::Timestamp;

/// Writes an OOM kill, unless the record is a repeated one. An OOM kill is not an eviction.
pub(super) fn kill(at: Timestamp, kill: &OomKill, page: &mut TextPage<'_>) {
    if kill.repeated {
        return;
    }
    page.heading(at, Tone::Bad, &format!("OOM KILL: {}", printable(&kill.to_string())));
    let since = kill.evicting_since.map(|since| clock(since, at));
    page.lines("eviction", since.map(|since| format!("the pod has been evicted since {since}")));
    if kill.kills_in_pod > 1 {
        page.lines("before", [format!("{} kills in this pod so far", kill.kills_in_pod)]);
    }
    page.out.push('\n');
}

/// Writes a terminated container and the cause of its termination.
pub(super) fn terminated(at: Timestamp, terminated: &ContainerTerminated, page: &mut TextPage<'_>) {
    let (when, text) = (clock(terminated.finished_at, at), printable(&terminated.to_string()));
    page.heading(at, Tone::Warning, &format!("ENDED at {when}: {text}"));
    page.out.push('\n');
}
