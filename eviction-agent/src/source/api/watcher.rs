//! List, then watch, for ever.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::event::Event;
use super::figures::{Figures, Happened};
use super::identity::{Identity, Version};
use super::items::{Item, Items};
use super::store::{Seen, Store};
use super::trouble::{Trouble, refusal};
use crate::api::{Backoff, Client, Line, Lines, part_of};

/// As client-go pages. Where the server answers from its cache it sends all at once, whatever is
/// asked; the items are taken one by one.
const PAGE: u32 = 500;
/// More pages than this are no list of one node's objects.
const PAGES: u32 = 40;
/// etcd takes objects of 1.5 MiB; as JSON they may be larger.
const LONGEST: usize = 8 << 20;
/// The head of an answer, and a whole page.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
const PAGE_WITHIN: Duration = Duration::from_secs(60);
/// A watch is to last so long, and up to half as long again by chance.
const WATCH: Duration = Duration::from_secs(240);
/// What the server may be late with the end of a watch.
const GRACE: Duration = Duration::from_secs(30);
/// Everything is listed again after so long, and up to as long again by chance: what was lost on
/// the way comes to light.
const LIST_AGAIN: Duration = Duration::from_secs(30 * 60);
/// Pauses after failures.
const LEAST_PAUSE: Duration = Duration::from_millis(250);
const MOST_PAUSE: Duration = Duration::from_secs(5);
/// A server asks for no longer pause than this.
const LONGEST_WISH: Duration = Duration::from_secs(60);
/// A watch that ends sooner counts as a failure.
const SHORT: Duration = Duration::from_millis(500);
/// Between the end of a watch and the begin of the next.
const BREATH: Duration = Duration::from_millis(100);

/// Makes of JSON what is kept, or says what is wrong with it.
pub type Decode<T> = Box<dyn Fn(&[u8]) -> Result<T, String> + Send>;

/// What is watched, and how it is understood.
pub struct Resource<T> {
    /// For metrics and errors: `pods`.
    pub name: &'static str,
    /// For instance `/api/v1/pods`.
    pub path: String,
    /// For instance `spec.nodeName=n1`; its value is a DNS name.
    pub field_selector: String,
    /// What makes objects of JSON.
    pub decode: Decode<T>,
}

impl<T> fmt::Debug for Resource<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resource({} {})", self.path, self.field_selector)
    }
}

/// Lists and watches one resource.
#[derive(Debug)]
pub struct Watcher<T> {
    client: Client,
    resource: Resource<T>,
    store: Store<T>,
    figures: Arc<Figures>,
    tell: watch::Sender<Arc<Seen<T>>>,
    synced: bool,
    trouble: Option<String>,
    backoff: Backoff,
    since: Since,
}

/// From when on a list must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    /// Whatever the server's cache has.
    Any,
    /// Not older than what is known already.
    Known,
    /// The newest, from etcd if need be.
    Now,
}

/// So many watches in a row that broke soon: then everything is listed anew.
const TROUBLES: u32 = 3;

/// How a watch ended.
enum End {
    /// The server ended it in time.
    Closed,
    /// It cannot go on from where it was.
    Expired,
    /// It broke, or did not begin.
    Trouble(Trouble),
}

impl<T: PartialEq + Send + Sync + 'static> Watcher<T> {
    /// A watcher that has not asked yet, and where what it sees is told: always the newest.
    pub fn new(
        client: Client,
        resource: Resource<T>,
        figures: Arc<Figures>,
    ) -> (Self, watch::Receiver<Arc<Seen<T>>>) {
        let (tell, seen) = watch::channel(Arc::new(Seen::default()));
        let watcher = Self {
            client,
            resource,
            store: Store::new(),
            figures,
            tell,
            synced: false,
            trouble: None,
            backoff: Backoff::new(LEAST_PAUSE, MOST_PAUSE),
            since: Since::Any,
        };
        (watcher, seen)
    }

    /// Lists and watches until nobody wants to know any more.
    pub async fn run(mut self) {
        while !self.tell.is_closed() {
            if let Err(trouble) = self.list().await {
                self.suffer("list", trouble).await;
                continue;
            }
            let list_again = Instant::now() + LIST_AGAIN + part_of(LIST_AGAIN);
            let mut troubles = 0;
            while !self.tell.is_closed() && Instant::now() < list_again {
                let begun = Instant::now();
                match self.follow().await {
                    End::Closed if begun.elapsed() >= SHORT => {
                        self.figures.add(Happened::Closed);
                        self.backoff.reset();
                        troubles = 0;
                        sleep(part_of(BREATH)).await;
                    }
                    End::Closed => {
                        self.figures.add(Happened::Closed);
                        sleep(self.backoff.pause()).await;
                    }
                    End::Expired => {
                        self.figures.add(Happened::Expired);
                        // Servers whose caches differ would be asked for lists without end.
                        sleep(self.backoff.pause()).await;
                        break;
                    }
                    End::Trouble(trouble) => {
                        let version = trouble.version;
                        // One that began and lasted is a fresh start.
                        let lasted = self.trouble.is_none() && begun.elapsed() >= SHORT;
                        troubles = if lasted { 1 } else { troubles + 1 };
                        self.suffer("watch", trouble).await;
                        // A list may be had where a watch is not, and says who is there.
                        if version || troubles >= TROUBLES {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Says what is the matter, once, and waits.
    async fn suffer(&mut self, operation: &str, trouble: Trouble) {
        let Trouble { why, pause: wish, version: _ } = trouble;
        self.figures.add(Happened::Failed);
        let why = format!("{operation} {}: {why}", self.resource.name);
        if self.trouble.as_ref() != Some(&why) {
            tracing::warn!(why, "the API server does not tell what happens");
            self.trouble = Some(why);
            self.tell();
        }
        let pause = self.backoff.pause();
        sleep(pause.max(wish.unwrap_or_default().min(LONGEST_WISH))).await;
    }

    fn well(&mut self) {
        self.figures.heard();
        if self.trouble.take().is_some() {
            tracing::info!(resource = self.resource.name, "the API server tells again what happens");
            self.tell();
        }
    }

    fn tell(&self) {
        self.figures.hold(self.store.len());
        self.tell.send_replace(Arc::new(self.store.seen(self.synced, self.trouble.clone())));
    }

    async fn list(&mut self) -> Result<(), Trouble> {
        let Resource { path, field_selector, .. } = &self.resource;
        let base = format!("{path}?fieldSelector={}&limit={PAGE}", in_query(field_selector));
        self.store.begin_list();
        let mut next = match self.since {
            Since::Any => format!("{base}&resourceVersion=0"),
            Since::Known => {
                let version = in_query(self.store.newest().as_str());
                format!("{base}&resourceVersion={version}&resourceVersionMatch=NotOlderThan")
            }
            Since::Now => base.clone(),
        };
        for _ in 0..PAGES {
            let head = match self.page(next).await {
                Ok(head) => head,
                Err(trouble) => {
                    if trouble.version {
                        // A server was restored, or is behind another.
                        self.since = Since::Now;
                    }
                    return Err(trouble);
                }
            };
            if head.r#continue.is_empty() {
                if head.resource_version.is_empty() {
                    return Err(Trouble::new("a list without a version"));
                }
                self.store.end_list(Version::new(&head.resource_version));
                self.since = Since::Known;
                self.figures.add(Happened::Listed);
                self.synced = true;
                self.trouble = None;
                self.figures.heard();
                self.tell();
                return Ok(());
            }
            next = format!("{base}&continue={}", in_query(&head.r#continue));
        }
        Err(Trouble::new(format!("a list of more than {PAGES} pages")))
    }

    async fn page(&mut self, path: String) -> Result<super::items::ListMeta, Trouble> {
        let until = Instant::now() + PAGE_WITHIN;
        let mut stream = self.client.stream(path, HEAD_WITHIN).await?;
        if stream.status() != 200 {
            return Err(refusal(stream).await);
        }
        let mut items = Items::new(LONGEST);
        let silent = |_elapsed| Trouble::new("the list does not end");
        while let Some(chunk) = timeout_at(until, stream.chunk()).await.map_err(silent)?? {
            let Self { store, resource, figures, .. } = self;
            items
                .push(&chunk, |item| {
                    figures.add(match item {
                        Item::TooLong => Happened::TooLong,
                        Item::Whole(json) => match Identity::of(json) {
                            Ok(identity) => store.list(identity, (resource.decode)(json)),
                            Err(_) => Happened::Unreadable,
                        },
                    });
                })
                .map_err(Trouble::new)?;
        }
        Ok(items.end().map_err(Trouble::new)?.metadata)
    }

    async fn follow(&mut self) -> End {
        let lasts = WATCH + part_of(WATCH / 2);
        let Resource { path, field_selector, .. } = &self.resource;
        let path = format!(
            "{path}?watch=true&allowWatchBookmarks=true&fieldSelector={}&timeoutSeconds={}&resourceVersion={}",
            in_query(field_selector),
            lasts.as_secs(),
            in_query(self.store.newest().as_str()),
        );
        let until = Instant::now() + lasts + GRACE;
        let mut stream = match self.client.stream(path, HEAD_WITHIN).await {
            Ok(stream) => stream,
            Err(error) => return End::Trouble(error.into()),
        };
        match stream.status() {
            200 => {}
            410 => return End::Expired,
            _ => return End::Trouble(refusal(stream).await),
        }
        self.figures.add(Happened::Watched);
        self.well();
        let mut lines = Lines::new(LONGEST);
        loop {
            let chunk = match timeout_at(until, stream.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) if lines.rest() == 0 => return End::Closed,
                Ok(Ok(None)) => {
                    return End::Trouble(Trouble::new("cut off in a line"));
                }
                Ok(Err(error)) => return End::Trouble(error.into()),
                Err(_elapsed) => {
                    return End::Trouble(Trouble::new("silent for too long"));
                }
            };
            self.figures.heard();
            lines.push(&chunk);
            if let Some(end) = self.take(&mut lines) {
                return end;
            }
        }
    }

    /// Takes all lines that are whole, and tells once what came of them.
    fn take(&mut self, lines: &mut Lines) -> Option<End> {
        let mut end = None;
        let mut news = false;
        while let Some(line) = lines.pop() {
            let happened = match &line {
                Line::TooLong => Happened::TooLong,
                Line::Whole(line) => match Event::of(line) {
                    Event::Put(json) => match Identity::of(json) {
                        Ok(identity) => self.store.put(identity, (self.resource.decode)(json)),
                        Err(_) => Happened::Unreadable,
                    },
                    Event::Gone(json) => match Identity::of(json) {
                        Ok(identity) => self.store.remove(identity),
                        Err(_) => Happened::Unreadable,
                    },
                    Event::Bookmark(version) => {
                        self.store.bookmark(version);
                        Happened::Bookmark
                    }
                    Event::Error(status) if status.code == 410 => {
                        end = Some(End::Expired);
                        break;
                    }
                    Event::Error(status) => {
                        let why = format!("{} {}", status.code, status.why());
                        end = Some(End::Trouble(Trouble::new(why)));
                        break;
                    }
                    Event::Unreadable(why) => {
                        tracing::debug!(
                            resource = self.resource.name,
                            why,
                            "a line of a watch is passed over"
                        );
                        Happened::Unreadable
                    }
                },
            };
            self.figures.add(happened);
            self.backoff.reset();
            news |= matches!(happened, Happened::Changed | Happened::Unreadable);
        }
        if news {
            self.tell();
        }
        end
    }
}

/// What stands in a query as it is, and the rest as percent and two digits.
fn in_query(text: &str) -> String {
    let mut query = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            query.push(char::from(byte));
        } else {
            query.push_str(&format!("%{byte:02X}"));
        }
    }
    query
}

#[cfg(test)]
mod tests {
    use super::in_query;

    #[test]
    fn a_query_keeps_what_it_is_given() {
        assert_eq!(in_query("spec.nodeName=n1"), "spec.nodeName%3Dn1");
        assert_eq!(in_query("a&b ü"), "a%26b%20%C3%BC");
    }
}
