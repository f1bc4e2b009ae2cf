//! The bearer token, which the kubelet replaces long before it expires.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::header::HeaderValue;

use super::error::AccessError;
use super::material::Material;

/// As often as client-go reads it (`NewCachedFileTokenSource`).
const READ_AGAIN: Duration = Duration::from_secs(60);

const TOKEN: &str = "token";

/// The token as it was read last.
#[derive(Debug)]
pub(super) struct Token {
    from: Material,
    read: Mutex<Option<(Instant, HeaderValue)>>,
}

impl Token {
    pub(super) fn new(from: Material) -> Self {
        Self { from, read: Mutex::new(None) }
    }

    /// The `Authorization` header.
    pub(super) fn header(&self, now: Instant) -> Result<HeaderValue, AccessError> {
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
            // The one before may still be good; if it is not, the server says so.
            (Err(_), Some((_, header))) => Ok(header.clone()),
            (Err(error), None) => Err(error),
        }
    }

    /// The server refused it: the next request reads it again.
    pub(super) fn refused(&self) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        *read = None;
    }

    fn read(&self) -> Result<HeaderValue, AccessError> {
        let bytes = self.from.read(TOKEN)?;
        let token = bytes.trim_ascii();
        if token.is_empty() {
            return Err(self.from.wrong(TOKEN, "is empty"));
        }
        let mut header = HeaderValue::from_bytes(&[b"Bearer ", token].concat())
            .map_err(|_unprintable| self.from.wrong(TOKEN, "has characters that no token has"))?;
        header.set_sensitive(true);
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Material, Token};

    #[test]
    fn a_token_is_read_again_in_time_and_when_it_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "one\n").unwrap();
        let token = Token::new(Material::File(path.clone()));
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
    fn what_is_no_token_is_an_error() {
        for bytes in [&b" \n"[..], b"a\nb", b"\x00"] {
            let token =
                Token::new(Material::Given { field: "users[me].user.token".into(), bytes: bytes.into() });
            let error = token.header(Instant::now()).unwrap_err().to_string();
            assert!(error.starts_with("token of users[me].user.token: "), "{error}");
        }
    }
}
