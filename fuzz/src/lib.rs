//! Fuzz targets. The programs in `targets/` only pass their input on.

pub mod targets;
