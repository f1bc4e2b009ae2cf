//! The objects of one resource on this node, listed and watched by kube's watcher for as long as
//! anybody wants to know them.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::Api;
use kube::api::ApiResource;
use kube::runtime::watcher::{self, Error, Event};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::backoff::{Backoff, part_of};
use crate::client::Client;
use crate::item::Item;
use crate::metrics::WatchEvent;
use crate::object_store::{ObjectStore, StoreView};
use crate::watch_layer::WatchRequests;
use eviction_core::error::chain;

/// A list is held whole while it is read.
const PAGE: u32 = 50;
/// A watch is to last so many seconds, and up to half as long again by chance. The server ends it.
const WATCH: Duration = Duration::from_secs(240);
/// Everything is listed again after so long, and up to as long again by chance: what was lost on
/// the way comes to light.
const LIST_AGAIN: Duration = Duration::from_secs(30 * 60);
/// Pauses after errors.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// After so many errors in a row everything is listed again: a list may be had where a watch is not,
/// and kube's watcher never gives up a version that the server does not know.
const ERRORS: u32 = 3;
/// So long after the last error the next one is the first again.
const SETTLED: Duration = Duration::from_secs(30);

/// Decodes what is kept of JSON, or returns what is wrong with it.
pub(crate) type Decode<T> = Box<dyn Fn(&[u8]) -> Result<T, String> + Send>;

/// What is watched, and how it is decoded.
pub(crate) struct Resource<T> {
    /// Kind and plural in API group `""`, version `v1`: `("Pod", "pods")`.
    pub kind: (&'static str, &'static str),
    /// For instance `spec.nodeName=n1`.
    pub field_selector: String,
    /// What makes objects of JSON.
    pub decode: Decode<T>,
}

impl<T> fmt::Debug for Resource<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resource({} {})", self.kind.1, self.field_selector)
    }
}

/// Lists and watches one resource.
#[derive(Debug)]
pub(crate) struct Watcher<T> {
    requests: Arc<WatchRequests>,
    resource: Resource<T>,
    store: ObjectStore<T>,
    view: watch::Sender<Arc<StoreView<T>>>,
    synced: bool,
    error: Option<String>,
    backoff: Backoff,
    errors: u32,
    last_error: Option<Instant>,
}

/// What comes after an error.
#[derive(Debug, PartialEq, Eq)]
enum After {
    /// The stream goes on.
    GoOn,
    /// Everything is listed again by a new stream.
    ListAgain,
}

impl<T: PartialEq + Send + Sync + 'static> Watcher<T> {
    /// A watcher that has sent nothing yet, and where its newest view is published.
    pub(crate) fn new(client: Client, resource: Resource<T>) -> (Self, watch::Receiver<Arc<StoreView<T>>>) {
        let (view, receiver) = watch::channel(Arc::new(StoreView::default()));
        let watcher = Self {
            requests: WatchRequests::new(client, resource.kind.1),
            resource,
            store: ObjectStore::new(),
            view,
            synced: false,
            error: None,
            backoff: Backoff::new(PAUSES.0, PAUSES.1),
            errors: 0,
            last_error: None,
        };
        (watcher, receiver)
    }

    /// Lists and watches until there is no receiver any more.
    pub(crate) async fn run(mut self) {
        while !self.view.is_closed() {
            match self.requests.kube().await {
                Ok(client) => self.follow(client).await,
                Err(error) => {
                    self.on_error("list", &chain(&error)).await;
                }
            }
        }
    }

    /// Follows one stream of kube's watcher: it begins with a list.
    async fn follow(&mut self, client: kube::Client) {
        let (kind, plural) = self.resource.kind;
        let resource = ApiResource {
            group: String::new(),
            version: "v1".to_owned(),
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        let lasts = WATCH + part_of(WATCH / 2);
        let config = watcher::Config::default()
            .fields(&self.resource.field_selector)
            .timeout(u32::try_from(lasts.as_secs()).unwrap_or(u32::MAX))
            .page_size(PAGE);
        let api = Api::<Item>::all_with(client, &resource);
        let mut events = pin!(watcher::watcher(api, config));
        let list_again = Instant::now() + LIST_AGAIN + part_of(LIST_AGAIN);
        let requests = Arc::clone(&self.requests);
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = requests.opened() => {
                    self.on_ok();
                    continue;
                }
                () = sleep_until(list_again) => return,
                () = self.view.closed() => return,
            };
            match event {
                Some(Ok(event)) => self.take(event),
                Some(Err(error)) if is_of_one_line(&error) => self.count(WatchEvent::Unreadable),
                Some(Err(error)) => {
                    if self.fail(&error).await == After::ListAgain {
                        return;
                    }
                }
                None => return,
            }
        }
    }

    /// Takes an event of kube's watcher.
    fn take(&mut self, event: Event<Item>) {
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
                self.error = None;
                self.publish();
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

    /// Counts an event of a watch, and publishes what it has changed.
    fn count(&mut self, happened: WatchEvent) {
        self.requests.count(happened);
        self.backoff.reset();
        if matches!(happened, WatchEvent::Changed | WatchEvent::Unreadable) {
            self.publish();
        }
    }

    /// Reports an error of the stream and waits.
    async fn fail(&mut self, error: &Error) -> After {
        let code = code(error);
        if code == Some(410) {
            self.requests.count(WatchEvent::Expired);
            // Servers whose caches differ would get requests for lists without end.
            sleep(self.backoff.pause()).await;
            return After::ListAgain;
        }
        let (operation, why) = explain(error);
        self.on_error(operation, &why).await;
        match self.errors >= ERRORS {
            true => After::ListAgain,
            false => After::GoOn,
        }
    }

    /// Reports why nothing arrives, once, and waits.
    async fn on_error(&mut self, operation: &str, why: &str) {
        self.requests.count(WatchEvent::Failed);
        if self.last_error.is_none_or(|last| last.elapsed() > SETTLED) {
            self.errors = 0;
        }
        self.errors += 1;
        let why = format!("{operation} {}: {why}", self.resource.kind.1);
        if self.error.as_ref() != Some(&why) {
            tracing::warn!(why, "the API server does not tell what happens");
            self.error = Some(why);
            self.publish();
        }
        sleep(self.backoff.pause()).await;
        self.last_error = Some(Instant::now());
    }

    fn on_ok(&mut self) {
        if self.error.take().is_some() {
            tracing::info!(resource = self.resource.kind.1, "the API server tells again what happens");
            self.publish();
        }
    }

    fn publish(&self) {
        self.requests.count_objects(self.store.len());
        self.view.send_replace(Arc::new(self.store.view(self.synced, self.error.clone())));
    }
}

/// Whether the error is that of one line of a watch, which goes on. What is JSON but no event comes as
/// an empty `Status`.
fn is_of_one_line(error: &Error) -> bool {
    match error {
        Error::WatchFailed(kube::Error::SerdeError(_)) => true,
        Error::WatchFailed(kube::Error::Api(status)) => status.code == 0,
        _ => false,
    }
}

/// The status that the server responds with, or sends in a watch.
fn code(error: &Error) -> Option<u16> {
    match error {
        Error::WatchError(status) => Some(status.code),
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

/// Which operation failed, and why in a line.
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
        // kube's own texts only name the variants.
        kube::Error::Service(error) => chain(&**error),
        kube::Error::ReadEvents(error) => match error.get_ref().and_then(|error| error.downcast_ref()) {
            Some(error) => why(error),
            None => chain(error),
        },
        error => chain(error),
    }
}

/// Why, in the server's words, at most a line of them.
fn message(status: &kube::core::Status) -> String {
    let text = [&status.message, &status.reason].into_iter().find(|text| !text.is_empty());
    text.map_or_else(|| "no reason given".to_owned(), |text| text.chars().take(300).collect())
}

#[cfg(test)]
mod tests;
