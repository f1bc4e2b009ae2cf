//! The file with the token of a service account or of a kubeconfig.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderValue;

use crate::access::read_file;
use crate::error::RequestError;

/// The interval at which the token is read again, as in client-go (`NewCachedFileTokenSource`).
const REREAD_AFTER: Duration = Duration::from_secs(60);

/// A file with a token, and the token as last read. The kubelet replaces the token long before it expires.
/// kube would send the token with its final newline, and would not read it again after a 401 response.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    read: Mutex<Option<(Instant, HeaderValue)>>,
}

impl TokenFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, read: Mutex::new(None) }
    }

    /// Returns the `Authorization` header. If the file can no longer be read, returns the last token; the
    /// server rejects it if it has expired.
    pub(crate) fn header(&self, now: Instant) -> Result<HeaderValue, RequestError> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, header)) = &*read
            && now.saturating_duration_since(*at) < REREAD_AFTER
        {
            return Ok(header.clone());
        }
        match (self.read(), &*read) {
            (Ok(header), _) => {
                *read = Some((now, header.clone()));
                Ok(header)
            }
            (Err(_), Some((_, header))) => Ok(header.clone()),
            (Err(error), None) => Err(error),
        }
    }

    /// Has the next request read the token again, because the server rejected it.
    pub(crate) fn invalidate(&self) {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn read(&self) -> Result<HeaderValue, RequestError> {
        let wrong = |why| RequestError::credentials("token", self.path.display(), why);
        let bytes = read_file("token", &self.path)?;
        let token = bytes.trim_ascii();
        if token.is_empty() {
            return Err(wrong("is empty"));
        }
        let mut header = HeaderValue::from_bytes(&[b"Bearer ", token].concat())
            .map_err(|_unprintable| wrong("has characters that no token has"))?;
        header.set_sensitive(true);
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_read_again_after_a_minute_and_after_rejection() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "one\n").unwrap();
        let token = TokenFile::new(path.clone());
        let start = Instant::now();
        assert_eq!(token.header(start).unwrap(), "Bearer one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(token.header(start + Duration::from_secs(59)).unwrap(), "Bearer one");
        assert_eq!(token.header(start + Duration::from_secs(60)).unwrap(), "Bearer two");
        std::fs::write(&path, "three").unwrap();
        token.invalidate();
        let header = token.header(start + Duration::from_secs(61)).unwrap();
        assert_eq!(header, "Bearer three");
        assert!(!format!("{header:?}{token:?}").contains("three"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(token.header(start + Duration::from_secs(200)).unwrap(), "Bearer three");
        token.invalidate();
        assert!(token.header(start).is_err());
    }

    #[test]
    fn invalid_token_file_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for bytes in [&b" \n"[..], b"a\nb", b"\x00"] {
            std::fs::write(&path, bytes).unwrap();
            let error = TokenFile::new(path.clone()).header(Instant::now()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("token of {}: ", path.display())), "{error}");
        }
    }
}
