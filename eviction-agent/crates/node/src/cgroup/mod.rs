//! Control groups, version 1 and 2: hierarchies, trees, pods, usage and working set.
//!
//! Everything takes the folder that it works in, so that it runs on recorded trees as well.
//! A group is named by its cgroup id, which is the inode number of its directory on either
//! version and on every kernel; it is the id that the kernel side reports too.

pub mod cgroup_events;
mod cgroup_memory;
pub mod files;
pub mod hierarchy;
mod memory_tree;
pub mod names;
pub mod node_root;
pub mod pods;
pub mod sample;
pub mod sampler;
pub mod tree;
