//! What node reclaim knows of the images of the node, kept over a restart of the agent: without it all of them
//! were too young to be removed, and none was used before another.
//!
//! Times are those of `CLOCK_MONOTONIC`, so the file is of use in the same boot only.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file::StateFile;
use eviction_cri::ImageHistory;

/// The file in a state directory.
const FILE: &str = "images.json";

/// The file, and the boot that it is of.
#[derive(Clone, Debug)]
pub(crate) struct ImageHistoryFile {
    file: StateFile,
    boot_id: String,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    boot_id: String,
    history: ImageHistory,
}

impl ImageHistoryFile {
    /// The file in that directory.
    pub(crate) fn new(state_dir: &Path, boot_id: String) -> Self {
        Self { file: StateFile::at(&state_dir.join(FILE)), boot_id }
    }

    /// What the former agent knew; nothing, with a warning, if the file cannot be used.
    pub(crate) fn read(&self) -> ImageHistory {
        let path: PathBuf = self.file.path().into();
        let document = match self.file.read() {
            Ok(None) => return ImageHistory::default(),
            Ok(Some(bytes)) => serde_json::from_slice::<Document>(&bytes).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match document {
            Ok(Document { boot_id, history }) if boot_id == self.boot_id => history,
            // Of a former boot.
            Ok(_) => ImageHistory::default(),
            Err(error) => {
                tracing::warn!(path = %path.display(), error, "when images were used is not known any more");
                ImageHistory::default()
            }
        }
    }

    /// Keeps it for the next agent.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn write(&self, history: &ImageHistory) -> io::Result<()> {
        let document = Document { boot_id: self.boot_id.clone(), history: history.clone() };
        self.file.write(&serde_json::to_vec(&document)?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use eviction_cri::api::Image;

    use super::*;

    fn history() -> ImageHistory {
        let image = |id: &str| Image { id: id.to_owned(), ..Image::default() };
        let mut history = ImageHistory::default();
        let in_use = BTreeSet::from(["sha256:a".to_owned()]);
        history.observe(Duration::from_millis(1_500), &[image("sha256:a"), image("sha256:b")], &in_use);
        history
    }

    #[test]
    fn what_was_written_is_read_in_the_same_boot_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = ImageHistoryFile::new(folder.path(), "boot-1".to_owned());
        assert_eq!(file.read(), ImageHistory::default());
        file.write(&history()).unwrap();
        assert_eq!(file.read(), history());
        assert_ne!(file.read(), ImageHistory::default());
        let after = ImageHistoryFile::new(folder.path(), "boot-2".to_owned());
        assert_eq!(after.read(), ImageHistory::default());
    }

    #[test]
    fn a_spoiled_file_is_as_good_as_none_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = ImageHistoryFile::new(folder.path(), "boot-1".to_owned());
        for text in ["", "{", "[]", r#"{"bootId":"boot-1","history":{"images":{"a":{"first":{"secs":-1}}}}}"#]
        {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            assert_eq!(file.read(), ImageHistory::default(), "{text}");
        }
        file.write(&history()).unwrap();
        assert_eq!(file.read(), history());
    }
}
