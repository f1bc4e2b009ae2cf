//! The objects of one resource on this node, listed and watched by kube's watcher as long as there is a
//! receiver.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use kube::Api;
use kube::api::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, Error, Event};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::backoff::random_part_of;
use crate::client::Client;
use crate::item::Item;
use crate::metrics::WatchEvent;
use crate::object_store::{ObjectStore, StoreView};
use crate::watch_layer::WatchRequests;
use eviction_core::error::chain;

/// The page size of a list. A page is buffered completely while it is read.
const PAGE: u32 = 50;
/// The duration of a watch, plus a random part of up to half of it. The server ends it.
const WATCH: Duration = Duration::from_secs(240);
/// The interval of complete lists, plus a random part of up to the same time. A list corrects events that
/// were lost.
const RELIST_INTERVAL: Duration = Duration::from_secs(30 * 60);
/// The number of errors in a row after which everything is listed again. A list may succeed while a watch
/// does not, and kube's watcher never gives up a version that the server does not have.
const ERRORS: u32 = 3;

/// Decodes an object from JSON, or returns the error in it.
type Decode<T> = Box<dyn Fn(&[u8]) -> Result<T, String> + Send>;

/// The watched resource and its decoder.
pub(crate) struct WatchedResource<T> {
    /// Kind and plural in API group `""`, version `v1`: `("Pod", "pods")`.
    pub kind: (&'static str, &'static str),
    /// For example `spec.nodeName=n1`.
    pub field_selector: String,
    /// Decodes objects from JSON.
    pub decode: Decode<T>,
    /// Whether an object is finished, and dropped for another one when there are too many.
    pub is_finished: fn(&T) -> bool,
}

/// The watcher of one resource.
pub(crate) struct Watcher<T> {
    requests: Arc<WatchRequests>,
    resource: WatchedResource<T>,
    store: ObjectStore<T>,
    view: watch::Sender<Arc<StoreView<T>>>,
    synced: bool,
    error: Option<String>,
}

impl<T: PartialEq + Send + Sync + 'static> Watcher<T> {
    /// Creates a watcher that has not sent a request yet, and the receiver of its views.
    pub(crate) fn new(
        client: Client,
        resource: WatchedResource<T>,
    ) -> (Self, watch::Receiver<Arc<StoreView<T>>>) {
        let (view, receiver) = watch::channel(Arc::new(StoreView::default()));
        let watcher = Self {
            requests: WatchRequests::new(client, resource.kind.1),
            store: ObjectStore::new(resource.is_finished),
            resource,
            view,
            synced: false,
            error: None,
        };
        (watcher, receiver)
    }

    /// Lists and watches until all receivers are dropped.
    pub(crate) async fn run(mut self) {
        while !self.view.is_closed() {
            match self.requests.kube().await {
                Ok(client) => self.run_stream(client).await,
                Err(error) => {
                    self.on_error("list", &chain(&error));
                    self.requests.wait().await;
                }
            }
        }
    }

    /// Processes one stream of kube's watcher, which starts with a list.
    async fn run_stream(&mut self, client: kube::Client) {
        let (kind, plural) = self.resource.kind;
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", kind), plural);
        let duration = WATCH + random_part_of(WATCH / 2);
        let config = watcher::Config::default()
            .fields(&self.resource.field_selector)
            .timeout(u32::try_from(duration.as_secs()).unwrap_or(u32::MAX))
            .page_size(PAGE);
        let api = Api::<Item>::all_with(client, &resource);
        let mut events = pin!(watcher::watcher(api, config));
        let relist_at = Instant::now() + RELIST_INTERVAL + random_part_of(RELIST_INTERVAL);
        let requests = Arc::clone(&self.requests);
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = requests.opened() => {
                    self.on_ok();
                    continue;
                }
                () = sleep_until(relist_at) => return,
                () = self.view.closed() => return,
            };
            match event {
                Some(Ok(event)) => self.apply(event),
                Some(Err(error)) if concerns_one_line(&error) => self.count(WatchEvent::Unreadable),
                Some(Err(error)) => {
                    if self.on_stream_error(&error) {
                        return;
                    }
                }
                None => return,
            }
        }
    }

    /// Applies an event of kube's watcher.
    fn apply(&mut self, event: Event<Item>) {
        match event {
            Event::Init => self.store.begin_list(),
            Event::InitApply(Item { identity, json, .. }) => {
                let decode = &self.resource.decode;
                let listed = identity.map(|it| self.store.list(it, decode(json.get().as_bytes())));
                self.requests.count(listed.unwrap_or(WatchEvent::Unreadable));
            }
            Event::InitDone => {
                self.store.end_list();
                self.requests.count(WatchEvent::Listed);
                self.synced = true;
                match self.error {
                    Some(_) => self.on_ok(),
                    None => self.publish(),
                }
            }
            Event::Apply(Item { identity, json, .. }) => {
                let decode = &self.resource.decode;
                let put = identity.map(|it| self.store.put(it, decode(json.get().as_bytes())));
                self.count(put.unwrap_or(WatchEvent::Unreadable));
            }
            Event::Delete(item) => {
                let removed = item.identity.map(|it| self.store.remove(it));
                self.count(removed.unwrap_or(WatchEvent::Unreadable));
            }
        }
    }

    /// Counts an event of a watch, and publishes changes.
    fn count(&mut self, event: WatchEvent) {
        self.requests.count(event);
        if matches!(event, WatchEvent::Changed | WatchEvent::Unreadable | WatchEvent::TooMany) {
            self.publish();
        }
    }

    /// Reports an error of the stream. Returns whether a new stream must list everything again.
    fn on_stream_error(&mut self, error: &Error) -> bool {
        if code(error) == Some(410) {
            self.requests.count(WatchEvent::Expired);
            // Without this pause, servers with different caches would get endless list requests.
            self.requests.pause();
            return true;
        }
        let (operation, why) = explain(error);
        self.on_error(operation, &why) >= ERRORS
    }

    /// Reports once why no data arrives, and delays the next request. Returns the number of errors in a row.
    fn on_error(&mut self, operation: &str, why: &str) -> u32 {
        self.requests.count(WatchEvent::Failed);
        let errors = self.requests.pause();
        // A watch that broke at once does not count as one that works.
        self.requests.opened().now_or_never();
        let why = format!("{operation} {}: {why}", self.resource.kind.1);
        if self.error.as_ref() != Some(&why) {
            tracing::warn!(why, "a watch of the API server fails");
            self.error = Some(why);
            self.publish();
        }
        errors
    }

    fn on_ok(&mut self) {
        if self.error.take().is_some() {
            tracing::info!(resource = self.resource.kind.1, "a watch of the API server works again");
            self.publish();
        }
    }

    fn publish(&self) {
        self.requests.count_objects(self.store.len());
        self.view.send_replace(Arc::new(self.store.view(self.synced, self.error.clone())));
    }
}

/// Whether the error concerns one line of a watch, which continues. JSON that is not an event is reported as
/// an empty `Status`.
fn concerns_one_line(error: &Error) -> bool {
    match error {
        Error::WatchFailed(kube::Error::SerdeError(_)) => true,
        Error::WatchFailed(kube::Error::Api(status)) => status.code == 0,
        _ => false,
    }
}

/// Returns the status code of the response, or of an error in a watch.
fn code(error: &Error) -> Option<u16> {
    match error {
        Error::WatchError(status) => Some(status.code),
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

/// Returns the operation that failed, and the reason in one line.
fn explain(error: &Error) -> (&'static str, String) {
    let (operation, error) = match error {
        Error::InitialListFailed(error) => ("list", error),
        Error::WatchStartFailed(error) | Error::WatchFailed(error) => ("watch", error),
        Error::WatchError(status) => return ("watch", format!("{} {}", status.code, message(status))),
        Error::NoResourceVersion => return ("watch", "an object without a resourceVersion".to_owned()),
    };
    (operation, why(error))
}

fn why(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("the server answers {}: {}", status.code, message(status)),
        kube::Error::SerdeError(error) => format!("not a list: {error}"),
        // kube's own texts only contain the names of the variants.
        kube::Error::Service(error) => chain(&**error),
        kube::Error::ReadEvents(error) => match error.get_ref().and_then(|error| error.downcast_ref()) {
            Some(error) => why(error),
            None => chain(error),
        },
        error => chain(error),
    }
}

/// Returns the server's reason, limited to one line.
fn message(status: &kube::core::Status) -> String {
    let text = [&status.message, &status.reason].into_iter().find(|text| !text.is_empty());
    text.map_or_else(|| "no reason given".to_owned(), |text| text.chars().take(300).collect())
}

#[cfg(test)]
mod tests;
