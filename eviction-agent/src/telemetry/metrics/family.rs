//! Families of series: sorted, with the time at which each series began.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::{
    EncodeLabel as _, EncodeLabelSet, EncodeMetric, LabelSetEncoder, MetricEncoder,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Carries the time at which a counter began from [`Family`] to [`super::exposition`], which takes it
/// out again: prometheus-client cannot write `_created`.
pub(super) const CREATED: &str = "__created__";

/// The series of one metric by their labels.
///
/// prometheus-client's own family is a hash map, whose order differs at each start.
#[derive(Debug)]
pub struct Family<L, M> {
    series: Arc<RwLock<BTreeMap<L, (M, f64)>>>,
}

/// A metric that can be a member of a family.
pub trait Member: EncodeMetric + TypedMetric + Clone + Default + fmt::Debug + Send + Sync + 'static {
    /// Whether the series shall be written at all.
    fn is_present(&self) -> bool {
        true
    }
}

impl Member for Counter<u64, AtomicU64> {}
impl Member for Counter<f64, AtomicU64> {}
impl Member for Gauge<i64, AtomicI64> {}
impl Member for Gauge<f64, AtomicU64> {}

impl<L: Clone + Ord, M: Member> Family<L, M> {
    /// The series with these labels; a new one begins at 0.
    pub fn get_or_create(&self, labels: &L) -> M {
        if let Some((member, _)) = self.series.read().unwrap_or_else(PoisonError::into_inner).get(labels) {
            return member.clone();
        }
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        series.entry(labels.clone()).or_insert_with(|| (M::default(), now())).0.clone()
    }

    /// The series with these labels, or else this one.
    pub fn get_or_insert(&self, labels: L, member: M) -> M {
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        series.entry(labels).or_insert_with(|| (member, now())).0.clone()
    }

    /// The series with these labels; a new one began at that time, in seconds since the Unix epoch.
    pub(super) fn get_or_create_as_of(&self, labels: &L, created: f64) -> M {
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        series.entry(labels.clone()).or_insert_with(|| (M::default(), created)).0.clone()
    }

    /// The series with these labels, if there is one.
    pub fn find(&self, labels: &L) -> Option<M> {
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        series.get(labels).map(|(member, _)| member.clone())
    }

    /// All series.
    pub fn series(&self) -> Vec<(L, M)> {
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        series.iter().map(|(labels, (member, _))| (labels.clone(), member.clone())).collect()
    }

    /// Takes a series out.
    pub fn remove(&self, labels: &L) {
        self.series.write().unwrap_or_else(PoisonError::into_inner).remove(labels);
    }

    /// Takes out all series whose labels are not wanted.
    pub fn retain(&self, is_wanted: impl Fn(&L) -> bool) {
        self.series.write().unwrap_or_else(PoisonError::into_inner).retain(|labels, _| is_wanted(labels));
    }

    /// How many series there are.
    pub fn len(&self) -> usize {
        self.series.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<L, M> Clone for Family<L, M> {
    fn clone(&self) -> Self {
        Self { series: Arc::clone(&self.series) }
    }
}

impl<L, M> Default for Family<L, M> {
    fn default() -> Self {
        Self { series: Arc::default() }
    }
}

impl<L, M> EncodeMetric for Family<L, M>
where
    L: EncodeLabelSet + fmt::Debug + Clone + Ord + Send + Sync + 'static,
    M: Member,
{
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        // Copied, so that nobody waits for the lock while text is written.
        let series: Vec<_> = {
            let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
            series
                .iter()
                .map(|(labels, (member, created))| (labels.clone(), member.clone(), *created))
                .collect()
        };
        for (labels, member, created) in series.into_iter().filter(|(_, member, _)| member.is_present()) {
            let created = matches!(M::TYPE, MetricType::Counter).then_some(created);
            member.encode(encoder.encode_family(&WithCreated { labels, created })?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

struct WithCreated<L> {
    labels: L,
    created: Option<f64>,
}

impl<L: EncodeLabelSet> EncodeLabelSet for WithCreated<L> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        self.labels.encode(encoder)?;
        match self.created {
            Some(created) => (CREATED, created).encode(encoder.encode_label()),
            None => Ok(()),
        }
    }
}

/// The present, in seconds since the Unix epoch.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_millis() as f64 / 1e3)
}

/// A gauge whose series is there only while its value is known. Setting it takes no lock.
#[derive(Clone, Debug)]
pub struct OptionalGauge {
    value: Arc<AtomicI64>,
    /// There is no series either while this one has no value.
    only_with: Option<Arc<AtomicI64>>,
}

/// Stands for an unknown value.
const UNKNOWN: i64 = i64::MIN;

impl OptionalGauge {
    /// Sets the value; `None` takes the series away.
    pub fn set(&self, value: Option<i64>) {
        self.value.store(value.unwrap_or(UNKNOWN), Relaxed);
    }

    /// The value, if it is known.
    pub fn get(&self) -> Option<i64> {
        let is_known = |value: &Arc<AtomicI64>| value.load(Relaxed) != UNKNOWN;
        if !self.only_with.as_ref().is_none_or(is_known) {
            return None;
        }
        Some(self.value.load(Relaxed)).filter(|value| *value != UNKNOWN)
    }

    /// One that has a series only while `other` has one.
    pub fn only_with(other: &Self) -> Self {
        Self { only_with: Some(Arc::clone(&other.value)), ..Self::default() }
    }
}

impl Default for OptionalGauge {
    fn default() -> Self {
        Self { value: Arc::new(AtomicI64::new(UNKNOWN)), only_with: None }
    }
}

impl TypedMetric for OptionalGauge {
    const TYPE: MetricType = MetricType::Gauge;
}

impl Member for OptionalGauge {
    fn is_present(&self) -> bool {
        self.get().is_some()
    }
}

impl EncodeMetric for OptionalGauge {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        self.get().map_or(Ok(()), |value| encoder.encode_gauge(&value))
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// The same for an amount with a fraction: NaN stands for an unknown value.
#[derive(Clone, Debug)]
pub struct OptionalSeconds(Arc<AtomicU64>);

impl OptionalSeconds {
    /// Sets the value; `None` takes the series away.
    pub fn set(&self, value: Option<f64>) {
        self.0.store(value.unwrap_or(f64::NAN).to_bits(), Relaxed);
    }

    /// The value, if it is known.
    pub fn get(&self) -> Option<f64> {
        Some(f64::from_bits(self.0.load(Relaxed))).filter(|value| !value.is_nan())
    }
}

impl Default for OptionalSeconds {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(f64::NAN.to_bits())))
    }
}

impl TypedMetric for OptionalSeconds {
    const TYPE: MetricType = MetricType::Gauge;
}

impl Member for OptionalSeconds {
    fn is_present(&self) -> bool {
        self.get().is_some()
    }
}

impl EncodeMetric for OptionalSeconds {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        self.get().map_or(Ok(()), |value| encoder.encode_gauge(&value))
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// A histogram with fixed bounds, so that a family can make it.
macro_rules! histogram {
    ($(#[$doc:meta])* $name:ident, $bounds:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(prometheus_client::metrics::histogram::Histogram);

        impl $name {
            /// Counts a value.
            pub fn observe(&self, value: f64) {
                self.0.observe(value);
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self(prometheus_client::metrics::histogram::Histogram::new($bounds))
            }
        }

        impl TypedMetric for $name {
            const TYPE: MetricType = MetricType::Histogram;
        }

        impl Member for $name {}

        impl EncodeMetric for $name {
            fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
                self.0.encode(encoder)
            }

            fn metric_type(&self) -> MetricType {
                Self::TYPE
            }
        }
    };
}

histogram!(
    /// 20 µs to 10 s: the goal is under 0.5 ms, a poll is 10 s late.
    ReactionLatency,
    [20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 0.25, 1.0, 10.0]
);
histogram!(
    /// 10 ms to 10 minutes: a kill takes milliseconds, a grace period seconds to minutes.
    EvictionDuration,
    [0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0]
);
histogram!(
    /// 1 MiB to 1 GiB.
    Overshoot,
    [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0].map(|mebibytes| mebibytes * 1024.0 * 1024.0)
);

#[cfg(test)]
mod tests {
    use super::super::{PodLabels, SignalLabels};
    use super::*;

    fn signal(eviction_signal: &'static str) -> SignalLabels {
        SignalLabels { eviction_signal }
    }

    #[test]
    fn a_series_begins_once_and_ends_when_it_is_removed() {
        let family: Family<SignalLabels, Counter> = Family::default();
        family.get_or_create(&signal("b")).inc();
        family.get_or_create(&signal("a"));
        assert_eq!(family.get_or_create(&signal("b")).get(), 1);
        assert_eq!(family.len(), 2);
        family.retain(|labels| labels.eviction_signal == "a");
        family.remove(&signal("a"));
        assert!(family.is_empty());
    }

    #[test]
    fn an_unknown_value_has_no_series() {
        let (whole, seconds) = (OptionalGauge::default(), OptionalSeconds::default());
        assert!(!whole.is_present() && !seconds.is_present());
        whole.set(Some(-3));
        seconds.set(Some(f64::INFINITY));
        assert_eq!((whole.get(), seconds.get()), (Some(-3), Some(f64::INFINITY)));
        whole.set(None);
        seconds.set(None);
        assert!(!whole.is_present() && !seconds.is_present());
    }

    #[test]
    fn labels_differ_by_each_part() {
        let family: Family<PodLabels, OptionalGauge> = Family::default();
        let pod =
            |namespace: &str, pod: &str| PodLabels { namespace: namespace.to_owned(), pod: pod.to_owned() };
        family.get_or_create(&pod("a", "b")).set(Some(1));
        assert_eq!(family.get_or_create(&pod("a", "c")).get(), None);
        assert_eq!(family.get_or_create(&pod("a", "b")).get(), Some(1));
    }
}
