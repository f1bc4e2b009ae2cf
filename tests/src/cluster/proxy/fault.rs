//! The faults of the proxy, and the requests that they affect.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::Value;

/// A fault of a request that has reached the proxy.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The request is not forwarded; this is the response: status, headers, body.
    Answer(u16, Vec<(&'static str, String)>, Value),
    /// The request is forwarded after this time.
    DelayRequest(Duration),
    /// The request is forwarded at once, and its response is delayed by this time.
    DelayResponse(Duration),
    /// The request is not forwarded, and the connection is reset.
    DropRequest,
    /// The request is forwarded, and the connection is reset after so many bytes of the response's body; with 0
    /// there is no response at all.
    Reset(usize),
    /// The response's body ends after so many bytes, as if it were complete.
    Truncate(usize),
    /// The response's body ends after this time, as if it were complete. Watches end like this.
    Close(Duration),
    /// The response, or each event of a watch, is replaced.
    Rewrite(Rewrite),
}

impl Fault {
    /// Returns a response with this status and without a useful body.
    pub fn status(status: u16) -> Self {
        Self::Answer(status, Vec::new(), Value::Null)
    }
}

/// A function that replaces a response by none, one, or several in a row.
#[derive(Clone)]
pub struct Rewrite(pub(super) Arc<dyn Fn(Value) -> Vec<Value> + Send + Sync>);

impl Rewrite {
    /// Creates a rewrite with that function. It gets the body of each response or, in a watch, each event.
    pub fn new(rewrite: impl Fn(Value) -> Vec<Value> + Send + Sync + 'static) -> Self {
        Self(Arc::new(rewrite))
    }
}

impl fmt::Debug for Rewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rewrite")
    }
}

/// The requests that a fault affects: all by default.
#[derive(Clone, Debug, Default)]
pub struct When {
    method: Option<Method>,
    part: Option<String>,
    watch: Option<bool>,
    times: Option<usize>,
}

impl When {
    /// Selects all requests.
    pub fn any() -> Self {
        Self::default()
    }

    /// Selects the requests of that method.
    #[must_use]
    pub fn method(self, method: Method) -> Self {
        Self { method: Some(method), ..self }
    }

    /// Selects the requests with this text in their path or query.
    #[must_use]
    pub fn path(self, part: &str) -> Self {
        Self { part: Some(part.to_owned()), ..self }
    }

    /// Selects only watches, or only other requests.
    #[must_use]
    pub fn watch(self, watch: bool) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// Limits the number of affected requests.
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

/// Returns whether a request starts a watch.
pub(super) fn is_watch(path: &str) -> bool {
    let query = path.split_once('?').map_or("", |(_, query)| query);
    query.split('&').any(|word| matches!(word, "watch=true" | "watch=1" | "watch"))
}

/// Returns the fault of a request, the first that fits. The request counts as one of the times.
pub(super) fn take(faults: &mut [(When, Fault)], method: &Method, path: &str) -> Option<Fault> {
    let (when, fault) = faults.iter_mut().find(|(when, _)| when.fits(method, path))?;
    if let Some(times) = &mut when.times {
        *times -= 1;
    }
    Some(fault.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_affects_only_matching_requests() {
        let mut faults = [
            (When::any().method(Method::POST).path("/eviction").times(2), Fault::status(503)),
            (When::any().watch(true), Fault::DropRequest),
        ];
        let mut status = |method: Method, path| match take(&mut faults, &method, path) {
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
