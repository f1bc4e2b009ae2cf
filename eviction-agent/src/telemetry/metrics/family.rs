//! Metric families that sort their series and store the creation time of each.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// The label that carries the creation time of a counter from [`Family`] to [`super::exposition`], which
/// removes the label: prometheus-client cannot write `_created`.
pub(super) const CREATED: &str = "__created__";

/// The value of a label.
pub type Label = Cow<'static, str>;

/// The series by the values of their labels, each with its creation time in seconds since the Unix epoch.
type SeriesMap<const N: usize, M> = BTreeMap<[Label; N], (M, f64)>;

/// The series of one metric by their `N` labels.
///
/// The family of prometheus-client is a hash map, so its order differs at each start.
#[derive(Clone, Debug)]
pub struct Family<const N: usize, M> {
    names: [&'static str; N],
    make: fn() -> M,
    series: Arc<RwLock<SeriesMap<N, M>>>,
}

impl<const N: usize, M: Clone> Family<N, M> {
    /// Returns a family with these label names. `make` creates the metric of a new series.
    pub(super) fn new(names: [&'static str; N], make: fn() -> M) -> Self {
        Self { names, make, series: Arc::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, SeriesMap<N, M>> {
        self.series.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, SeriesMap<N, M>> {
        self.series.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the series with these label values. A new series starts at 0.
    pub fn with(&self, values: [impl Into<Label>; N]) -> M {
        let values = values.map(Into::into);
        if let Some((metric, _)) = self.read().get(&values) {
            return metric.clone();
        }
        self.insert(values, (self.make)(), unix_now())
    }

    /// Adds a series with this creation time, in seconds since the Unix epoch, unless the series exists.
    pub(super) fn insert(&self, values: [Label; N], metric: M, created: f64) -> M {
        self.write().entry(values).or_insert((metric, created)).0.clone()
    }

    /// Adds a series unless it exists.
    pub fn add(&self, values: [impl Into<Label>; N], metric: M) {
        self.insert(values.map(Into::into), metric, unix_now());
    }

    /// Returns the series with these label values if it exists.
    pub fn find(&self, values: [impl Into<Label>; N]) -> Option<M> {
        self.read().get(&values.map(Into::into)).map(|(metric, _)| metric.clone())
    }

    /// Returns all series.
    pub fn series(&self) -> Vec<([Label; N], M)> {
        self.read().iter().map(|(values, (metric, _))| (values.clone(), metric.clone())).collect()
    }

    /// Removes the series for which `is_wanted` returns false.
    pub fn retain(&self, is_wanted: impl Fn(&[Label; N]) -> bool) {
        self.write().retain(|values, _| is_wanted(values));
    }
}

impl<const N: usize, M: EncodeMetric + TypedMetric + Clone> EncodeMetric for Family<N, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        // A copy, so that no thread waits for the lock while the text is written.
        let series = self.read().clone();
        for (values, (metric, created)) in series {
            let created =
                matches!(M::TYPE, MetricType::Counter).then(|| (CREATED, format!("{created:?}").into()));
            let labels: Vec<(&str, Label)> = self.names.into_iter().zip(values).chain(created).collect();
            metric.encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

/// Returns the current time in seconds since the Unix epoch.
pub fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_millis() as f64 / 1e3)
}

/// A gauge whose series exists only while its value is known. Setting it takes no lock.
#[derive(Clone, Debug)]
pub struct OptionalGauge {
    /// The bits of an `f64`, NaN while the value is unknown.
    value: Arc<AtomicU64>,
    /// Another gauge: while it has no value, this one has no series either.
    only_with: Option<Arc<AtomicU64>>,
}

impl OptionalGauge {
    /// Sets the value, exact up to 2^53; `None` removes the series.
    #[expect(clippy::cast_precision_loss, reason = "nothing has as many bytes")]
    pub fn set(&self, value: Option<i64>) {
        self.set_f64(value.map(|value| value as f64));
    }

    /// Sets a value that may have a fraction. `None` removes the series.
    pub fn set_f64(&self, value: Option<f64>) {
        self.value.store(value.unwrap_or(f64::NAN).to_bits(), Relaxed);
    }

    /// Returns the value if it is known.
    #[expect(clippy::cast_possible_truncation, reason = "what was set is whole")]
    pub fn get(&self) -> Option<i64> {
        self.get_f64().map(|value| value as i64)
    }

    /// Returns the value with its fraction if it is known.
    pub fn get_f64(&self) -> Option<f64> {
        let known = |value: &AtomicU64| Some(f64::from_bits(value.load(Relaxed))).filter(|it| !it.is_nan());
        if let Some(other) = &self.only_with {
            known(other)?;
        }
        known(&self.value)
    }

    /// Returns a gauge that has a series only while `other` has one.
    pub fn only_with(other: &Self) -> Self {
        Self { only_with: Some(Arc::clone(&other.value)), ..Self::default() }
    }
}

impl Default for OptionalGauge {
    fn default() -> Self {
        Self { value: Arc::new(AtomicU64::new(f64::NAN.to_bits())), only_with: None }
    }
}

impl TypedMetric for OptionalGauge {
    const TYPE: MetricType = MetricType::Gauge;
}

impl EncodeMetric for OptionalGauge {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match (self.get_f64(), self.get()) {
            (Some(value), Some(whole)) if value.fract() == 0.0 => encoder.encode_gauge(&whole),
            (Some(value), _) => encoder.encode_gauge(&value),
            (None, _) => Ok(()),
        }
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn series_is_created_once_and_removed_by_retain() {
        let family: Family<1, Counter> = Family::new(["eviction_signal"], Counter::default);
        family.with(["b"]).inc();
        family.with(["a"]);
        assert_eq!(family.with(["b"]).get(), 1);
        assert_eq!(family.series().len(), 2);
        family.retain(|[signal]| signal == "a");
        assert_eq!(family.series()[0].0, ["a"]);
        family.retain(|_| false);
        assert!(family.series().is_empty());
    }

    #[test]
    fn an_unknown_value_has_no_series() {
        let gauge = OptionalGauge::default();
        assert_eq!((gauge.get(), gauge.get_f64()), (None, None));
        gauge.set(Some(-3));
        assert_eq!((gauge.get(), gauge.get_f64()), (Some(-3), Some(-3.0)));
        gauge.set_f64(Some(f64::INFINITY));
        assert_eq!(gauge.get_f64(), Some(f64::INFINITY));
        let other = OptionalGauge::only_with(&gauge);
        other.set(Some(1));
        assert_eq!(other.get(), Some(1));
        gauge.set(None);
        assert_eq!((gauge.get(), other.get()), (None, None));
    }

    #[test]
    fn series_are_distinguished_by_every_label() {
        let family: Family<2, OptionalGauge> = Family::new(["namespace", "pod"], OptionalGauge::default);
        family.with(["a", "b"]).set(Some(1));
        assert_eq!(family.with(["a", "c"]).get(), None);
        assert_eq!(family.with(["a", "b"]).get(), Some(1));
    }
}
