//! The pods file, as a roster.

use std::path::Path;
use std::sync::Arc;

use super::failure::Failure;
use crate::core::pod::Pod;
use crate::core::pods::KnownPod;
use crate::core::policy::Policy;
use crate::source::pods::{PodErrors, parse_pod_list};
use crate::source::pods_file::{self, Change};

use super::roster::Roster;

/// The pods file, if there is one.
pub(crate) struct PodsFile {
    file: Option<pods_file::PodsFile<Vec<Pod>, PodErrors>>,
    policy: Policy,
}

impl PodsFile {
    /// Reads the file for the first time: it must be good.
    pub(crate) fn open(path: Option<&Path>, policy: &Policy) -> Result<(Self, Roster), Failure> {
        let Some(path) = path else {
            return Ok((Self { file: None, policy: policy.clone() }, Roster::default()));
        };
        let (file, pods) = pods_file::PodsFile::open(path, parse_pod_list)
            .map_err(|error| Failure::because("read pods", &error))?;
        Ok((Self { file: Some(file), policy: policy.clone() }, roster(pods, policy)))
    }

    /// Waits for the next change: a new roster, or what is wrong with the file. For ever without one.
    pub(crate) async fn changed(&mut self) -> Result<Roster, String> {
        match &mut self.file {
            None => std::future::pending().await,
            Some(file) => match file.changed().await {
                Change::New(pods) => Ok(roster(pods, &self.policy)),
                Change::Invalid(error) => Err(super::failure::chain(&error)),
            },
        }
    }

    /// Whether pods can be known at all.
    pub(crate) fn is_given(&self) -> bool {
        self.file.is_some()
    }
}

fn roster(pods: Vec<Pod>, policy: &Policy) -> Roster {
    Roster::new(pods.into_iter().map(|pod| Arc::new(KnownPod::new(pod, policy))).collect())
}
