//! Cgroups v1 and v2: hierarchies, trees, pods, usage and working set.
//!
//! Every function takes the folder that it works in, so that it runs on recorded trees as well. A cgroup is
//! identified by its cgroup id: the inode number of its directory, on either version and on every kernel. The
//! BPF programs report the same id.

mod cgroup_memory;
pub mod files;
pub mod hierarchy;
mod memory_tree;
pub mod names;
pub mod node_root;
pub mod pods;
pub mod sampler;
pub mod tree;
