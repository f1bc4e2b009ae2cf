//! What goes wrong on the way, and for which requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::Value;

/// Something that goes wrong with a request that reached the proxy.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is not sent on; this is the answer: status, headers, body.
    Answer(u16, Vec<(&'static str, String)>, Value),
    /// It is sent on so much later.
    Slow(Duration),
    /// It is sent on at once, and its answer comes so much later.
    Late(Duration),
    /// It is not sent on, and the connection is reset.
    Lost,
    /// It is sent on, and the connection is reset after so many bytes of the answer's body; with 0
    /// there is no answer at all.
    Reset(usize),
    /// The answer's body ends after so many bytes, as if that were all.
    Truncate(usize),
    /// The answer's body ends after that time, as if that were all: so do watches.
    Close(Duration),
    /// What comes instead of an answer, or instead of an event of a watch.
    Rewrite(Rewrite),
}

impl Fault {
    /// A refusal without a body that is any use.
    pub fn status(status: u16) -> Self {
        Self::Answer(status, Vec::new(), Value::Null)
    }
}

/// Makes other answers out of answers: none, one, or more in a row.
#[derive(Clone)]
pub struct Rewrite(pub(super) Arc<dyn Fn(Value) -> Vec<Value> + Send + Sync>);

impl Rewrite {
    /// By that function. It sees each answer's body or, of a watch, each event.
    pub fn new(rewrite: impl Fn(Value) -> Vec<Value> + Send + Sync + 'static) -> Self {
        Self(Arc::new(rewrite))
    }
}

impl fmt::Debug for Rewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rewrite")
    }
}

/// Which requests something happens to: all, unless said otherwise.
#[derive(Clone, Debug, Default)]
pub struct When {
    method: Option<Method>,
    part: Option<String>,
    watch: Option<bool>,
    times: Option<usize>,
}

impl When {
    /// All of them.
    pub fn any() -> Self {
        Self::default()
    }

    /// Those of that method.
    #[must_use]
    pub fn method(self, method: Method) -> Self {
        Self { method: Some(method), ..self }
    }

    /// Those with this in their path or query.
    #[must_use]
    pub fn path(self, part: &str) -> Self {
        Self { part: Some(part.to_owned()), ..self }
    }

    /// Watches alone, or all others.
    #[must_use]
    pub fn watch(self, watch: bool) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// Only so often.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { times: Some(times), ..self }
    }

    fn fits(&self, method: &Method, path: &str) -> bool {
        let Self { method: of, part, watch, times } = self;
        of.as_ref().is_none_or(|of| of == method)
            && part.as_ref().is_none_or(|part| path.contains(part.as_str()))
            && watch.is_none_or(|watch| watch == is_watch(path))
            && *times != Some(0)
    }
}

/// Whether a request asks for a watch.
pub(super) fn is_watch(path: &str) -> bool {
    let query = path.split_once('?').map_or("", |(_, query)| query);
    query.split('&').any(|word| matches!(word, "watch=true" | "watch=1" | "watch"))
}

/// The faults in force: the first that fits counts.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<(When, Fault)>);

impl Faults {
    pub(super) fn add(&mut self, when: When, fault: Fault) {
        self.0.push((when, fault));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// What happens to that request; it counts as one of the times.
    pub(super) fn take(&mut self, method: &Method, path: &str) -> Option<Fault> {
        let (when, fault) = self.0.iter_mut().find(|(when, _)| when.fits(method, path))?;
        if let Some(times) = &mut when.times {
            *times -= 1;
        }
        Some(fault.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_happens_to_those_it_is_meant_for() {
        let mut faults = Faults::default();
        faults.add(When::any().method(Method::POST).path("/eviction").times(2), Fault::status(503));
        faults.add(When::any().watch(true), Fault::Lost);
        let mut status = |method: Method, path| match faults.take(&method, path) {
            Some(Fault::Answer(status, ..)) => status,
            Some(_) => 1,
            None => 0,
        };
        let eviction = "/api/v1/namespaces/default/pods/web/eviction";
        assert_eq!([status(Method::GET, eviction), status(Method::POST, "/api/v1/pods")], [0, 0]);
        assert_eq!([(); 3].map(|()| status(Method::POST, eviction)), [503, 503, 0]);
        assert_eq!(status(Method::GET, "/api/v1/pods?limit=500&watch=true"), 1);
        assert_eq!(status(Method::GET, "/api/v1/pods?limit=500"), 0);
        assert_eq!(status(Method::GET, "/api/v1/watch=true"), 0);
    }
}
