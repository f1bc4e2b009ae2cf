//! Values of the whole machine from `/proc`.

pub mod meminfo;
pub mod process;
pub mod vmstat;
pub mod watermarks;
