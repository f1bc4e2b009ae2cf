//! Certificates, keys and tokens: given in place, or in files that may be replaced at any time.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use super::error::AccessError;

/// None of them is as large.
const LARGEST: u64 = 4 << 20;

/// Where bytes come from. Never shown.
#[derive(Clone)]
pub(super) enum Material {
    /// Read anew whenever they are needed: they are rotated.
    File(PathBuf),
    /// Given in place, at the field that is named.
    Given { field: String, bytes: Vec<u8> },
}

impl Material {
    /// The bytes as they are now.
    pub(super) fn read(&self, what: &'static str) -> Result<Vec<u8>, AccessError> {
        let path = match self {
            Self::Given { bytes, .. } => return Ok(bytes.clone()),
            Self::File(path) => path,
        };
        let fail = |source| AccessError::Read { what, path: path.clone(), source };
        let mut bytes = Vec::new();
        File::open(path).map_err(fail)?.take(LARGEST + 1).read_to_end(&mut bytes).map_err(fail)?;
        if bytes.len() as u64 > LARGEST {
            return Err(self.wrong(what, format!("more than {LARGEST} bytes")));
        }
        Ok(bytes)
    }

    pub(super) fn wrong(&self, what: &'static str, why: impl fmt::Display) -> AccessError {
        AccessError::Material { what, from: self.to_string(), why: why.to_string() }
    }
}

/// Where they come from.
impl fmt::Display for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Given { field, .. } => f.write_str(field),
        }
    }
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Material({self})")
    }
}
