//! The bearer token in a file, which the kubelet replaces long before it expires.
//!
//! kube would send a token with the newline that it ends with, and would not read it again after a
//! 401.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderValue;

use crate::access::read_file;
use crate::error::AccessError;

/// As often as client-go reads it (`NewCachedFileTokenSource`).
const READ_AGAIN: Duration = Duration::from_secs(60);

const TOKEN: &str = "token";

/// A file with a token, and the token as it was read last.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    read: Mutex<Option<(Instant, HeaderValue)>>,
}

impl TokenFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, read: Mutex::new(None) }
    }

    /// The `Authorization` header. If the file cannot be read any more, the last token: if it has
    /// expired, the server refuses it.
    pub(crate) fn header(&self, now: Instant) -> Result<HeaderValue, AccessError> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, header)) = &*read
            && now.saturating_duration_since(*at) < READ_AGAIN
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

    /// The server refused the token: the next request reads it again.
    pub(crate) fn refused(&self) {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn read(&self) -> Result<HeaderValue, AccessError> {
        let wrong = |why: &str| {
            let (from, why) = (self.path.display().to_string(), why.to_owned());
            AccessError::Credentials { what: TOKEN, from, why }
        };
        let bytes = read_file(TOKEN, &self.path)?;
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
    fn a_token_is_read_again_in_time_and_when_it_is_refused() {
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
        token.refused();
        let header = token.header(start + Duration::from_secs(61)).unwrap();
        assert_eq!(header, "Bearer three");
        assert!(!format!("{header:?}{token:?}").contains("three"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(token.header(start + Duration::from_secs(200)).unwrap(), "Bearer three");
        token.refused();
        assert!(token.header(start).is_err());
    }

    #[test]
    fn a_file_without_a_token_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for bytes in [&b" \n"[..], b"a\nb", b"\x00"] {
            std::fs::write(&path, bytes).unwrap();
            let error = TokenFile::new(path.clone()).header(Instant::now()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("token of {}: ", path.display())), "{error}");
        }
    }
}
