//! The event line about images and containers that are removed before pods are evicted.

use std::fmt;

use serde::Serialize;

use eviction_core::disk_layout::GarbageEstimate;
use eviction_core::nullable::is_zero;
use eviction_core::signal::Signal;
use eviction_core::units::display_bytes;
use eviction_cri::{ReclaimEnd, ReclaimReport, RemovedImage};

use super::bounded;

/// The values of [`NodeReclaimEvent::result`].
pub(crate) const RESULTS: [&str; 6] =
    ["enough", "nothing_left", "listed", "timed_out", "failed", "left_to_kubelet"];

/// See [`Event::NodeReclaim`](super::Event::NodeReclaim).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeReclaimEvent {
    pub signal: &'static str,
    pub result: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<RemovedImage>,
    #[serde(skip_serializing_if = "is_zero")]
    pub images_omitted: usize,
    pub containers: u32,
    pub freed_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unused_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deficit_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub errors_omitted: usize,
}

impl NodeReclaimEvent {
    /// Returns the event of an attempt that has ended.
    pub(crate) fn ended(signal: Signal, report: ReclaimReport) -> Self {
        let ReclaimReport { end, mut images, mut containers, freed_bytes, errors, dry_run, took } = report;
        // A list that a dry run did not complete must not be taken for removals.
        if dry_run && end != ReclaimEnd::Listed {
            images.clear();
            containers = 0;
        }
        let (result, reason) = match end {
            ReclaimEnd::Enough => ("enough", None),
            ReclaimEnd::NothingLeft => ("nothing_left", None),
            ReclaimEnd::Listed => ("listed", None),
            ReclaimEnd::TimedOut => ("timed_out", None),
            ReclaimEnd::Failed(why) => ("failed", Some(why)),
        };
        let (images, images_omitted) = bounded(images.into_iter());
        let (errors, errors_omitted) = bounded(errors.into_iter());
        Self {
            signal: signal.name(),
            result,
            images,
            images_omitted,
            containers,
            freed_bytes,
            took_us: Some(u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
            reason,
            errors,
            errors_omitted,
            ..Self::default()
        }
    }

    /// Returns the event of an attempt that could not be made.
    pub(crate) fn failed(signal: Signal, reason: String) -> Self {
        Self { signal: signal.name(), result: "failed", reason: Some(reason), ..Self::default() }
    }

    /// Returns the event if the kubelet is expected to remove enough.
    pub(crate) fn left_to_kubelet(signal: Signal, estimate: GarbageEstimate) -> Self {
        let GarbageEstimate { unused_bytes, deficit_bytes } = estimate;
        Self {
            signal: signal.name(),
            result: "left_to_kubelet",
            unused_bytes: Some(unused_bytes),
            deficit_bytes: Some(deficit_bytes),
            ..Self::default()
        }
    }

    /// Returns the number of removed images.
    pub(crate) fn image_count(&self) -> u64 {
        (self.images.len() + self.images_omitted) as u64
    }
}

impl fmt::Display for NodeReclaimEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |bytes: u64| display_bytes(bytes.into());
        write!(f, "node reclaim for {}: ", self.signal)?;
        if let (Some(unused), Some(deficit)) = (self.unused_bytes, self.deficit_bytes) {
            let (unused, deficit) = (bytes(unused), bytes(deficit));
            return write!(f, "left to the kubelet: {unused} of unused images for a deficit of {deficit}");
        }
        let (verb, images) =
            (if self.result == "listed" { "would remove" } else { "removed" }, self.image_count());
        write!(
            f,
            "{}, {verb} {images} images and {} containers",
            self.result.replace('_', " "),
            self.containers
        )?;
        if self.result != "listed" {
            write!(f, ", freed {}", bytes(self.freed_bytes))?;
        }
        if let Some(took) = self.took_us {
            write!(f, " in {}", super::text::milliseconds(took))?;
        }
        for error in self.reason.iter().chain(self.errors.first()) {
            write!(f, ": {error}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report(end: ReclaimEnd) -> ReclaimReport {
        let image = |name: &str| RemovedImage { name: name.to_owned(), size_bytes: 5, freed_bytes: 1 << 20 };
        ReclaimReport {
            end,
            images: (0..70).map(|n| image(&format!("r/{n}:1"))).collect(),
            containers: 2,
            freed_bytes: 70 << 20,
            errors: vec!["CRI RemoveImage: busy (Internal)".to_owned()],
            dry_run: false,
            took: Duration::from_millis(250),
        }
    }

    #[test]
    fn dry_run_that_fails_has_removed_nothing() {
        for end in [ReclaimEnd::TimedOut, ReclaimEnd::Failed("why".to_owned())] {
            let report = ReclaimReport { dry_run: true, ..report(end) };
            let event = NodeReclaimEvent::ended(Signal::ImageFsAvailable, report);
            assert_eq!((event.image_count(), event.containers), (0, 0));
        }
        let report = ReclaimReport { dry_run: true, ..report(ReclaimEnd::Listed) };
        let event = NodeReclaimEvent::ended(Signal::ImageFsAvailable, report);
        assert_eq!((event.image_count(), event.containers), (70, 2));
    }

    #[test]
    fn lines_have_a_bounded_list_and_every_result_is_known() {
        let ends = [
            ReclaimEnd::Enough,
            ReclaimEnd::NothingLeft,
            ReclaimEnd::Listed,
            ReclaimEnd::TimedOut,
            ReclaimEnd::Failed("why".to_owned()),
        ];
        for end in ends {
            let event = NodeReclaimEvent::ended(Signal::ImageFsAvailable, report(end));
            assert!(RESULTS.contains(&event.result));
            assert_eq!((event.images.len(), event.images_omitted, event.image_count()), (64, 6, 70));
        }
        let event = NodeReclaimEvent::ended(Signal::ImageFsAvailable, report(ReclaimEnd::NothingLeft));
        assert_eq!(
            event.to_string(),
            "node reclaim for imagefs.available: nothing left, removed 70 images and 2 containers, \
             freed 70Mi in 250.00 ms: CRI RemoveImage: busy (Internal)"
        );
        let estimate = GarbageEstimate { unused_bytes: 3 << 30, deficit_bytes: 1 << 20 };
        let left = NodeReclaimEvent::left_to_kubelet(Signal::NodeFsAvailable, estimate);
        assert!(RESULTS.contains(&left.result));
        assert_eq!(
            left.to_string(),
            "node reclaim for nodefs.available: left to the kubelet: 3Gi of unused images for a deficit of 1Mi"
        );
        let text = serde_json::to_string(&left).unwrap();
        assert_eq!(
            text,
            r#"{"signal":"nodefs.available","result":"left_to_kubelet","containers":0,"freed_bytes":0,"unused_bytes":3221225472,"deficit_bytes":1048576}"#
        );
    }
}
