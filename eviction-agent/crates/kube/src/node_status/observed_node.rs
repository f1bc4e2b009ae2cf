//! The node's object as it is known: from the watch, and from answers to what was written.

use std::sync::Arc;

use tokio::sync::watch;

use eviction_core::node::Node;

use crate::nodes::parse_node;

/// The newest state that is known. Cloning shares it.
#[derive(Clone, Debug)]
pub(super) struct ObservedNode(Arc<watch::Sender<Option<Arc<Node>>>>);

impl ObservedNode {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.0.subscribe()
    }

    /// The object is gone.
    pub(super) fn forget(&self) {
        self.0.send_if_modified(|known| known.take().is_some());
    }

    /// That object is gone; another one that came since stays.
    pub(super) fn forget_if(&self, node: &Node) {
        self.0.send_if_modified(|known| {
            let is_it = known.as_ref().is_some_and(|known| known.uid == node.uid);
            if is_it {
                *known = None;
            }
            is_it
        });
    }

    /// A state that was told; an answer may come before the watch tells what led to it.
    pub(super) fn offer(&self, node: Arc<Node>) {
        self.0.send_if_modified(|known| {
            let is_news = known.as_ref().is_none_or(|known| !is_before(&node, known) && *known != node);
            if is_news {
                *known = Some(node);
            }
            is_news
        });
    }

    /// The state that counts, whatever was known.
    pub(super) fn replace(&self, node: Arc<Node>) {
        self.0.send_replace(Some(node));
    }

    /// A state that an answer told.
    pub(super) fn offer_json(&self, json: &[u8]) {
        match parse_node(json) {
            Ok(node) => self.offer(Arc::new(node)),
            // The watch says the same of it.
            Err(why) => tracing::debug!(why, "a node in an answer is not understood"),
        }
    }
}

/// Whether a state is known to be older than another: versions are comparable where they are
/// numbers (KEP-5504), also of two objects of one name.
pub(super) fn is_before(node: &Node, other: &Node) -> bool {
    let number = |node: &Node| node.resource_version.parse::<u64>().ok();
    matches!((number(node), number(other)), (Some(own), Some(other)) if own < other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(uid: &str, version: &str) -> Arc<Node> {
        Arc::new(Node { uid: uid.into(), resource_version: version.into(), ..Node::default() })
    }

    #[test]
    fn the_newest_state_stays() {
        let known = ObservedNode::new();
        let seen = known.subscribe();
        let now = || seen.borrow().as_ref().map(|node| format!("{}{}", node.uid, node.resource_version));
        known.offer(node("a", "7"));
        known.offer(node("a", "5"));
        assert_eq!(now().as_deref(), Some("a7"));
        known.offer(node("a", "10"));
        known.offer(node("b", "12"));
        assert_eq!(now().as_deref(), Some("b12"));
        known.offer(node("b", "not a number"));
        assert_eq!(now().as_deref(), Some("bnot a number"));
        known.offer(node("b", "20"));
        known.replace(node("b", "6"));
        assert_eq!(now().as_deref(), Some("b6"));
        known.forget();
        assert_eq!(now(), None);
        known.offer_json(b"{");
        assert_eq!(now(), None);
        known.offer_json(br#"{"metadata":{"name":"n","uid":"c","resourceVersion":"1"}}"#);
        assert_eq!(now().as_deref(), Some("c1"));
    }
}
