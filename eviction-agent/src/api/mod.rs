//! The connection to the API server: where it is, who asks, and how requests travel.
//!
//! HTTP/1.1 over TLS, one connection a request that is under way: a watch never stands before an
//! eviction. What objects mean is not known here; see `source::api` and `action::api`.
#![forbid(unsafe_code)]

mod access;
mod answer;
mod backoff;
mod client;
mod connection;
mod counts;
mod error;
mod in_cluster;
mod kubeconfig;
mod kubelet;
mod lines;
mod material;
mod reach;
mod request;
mod stream;
mod tls;
mod token;
mod trust;

pub use access::Access;
pub use answer::Answer;
pub use backoff::{Backoff, part_of};
pub use client::Client;
pub use counts::Counts;
pub use error::{AccessError, ConnectError, RequestError};
pub use hyper::Method;
pub use kubelet::KubeletAddress;
pub use lines::{Line, Lines};
pub use reach::{FAILURES, LASTS};
pub use request::Request;
pub use stream::Stream;
