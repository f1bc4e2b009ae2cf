//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Debug, Parser)]
#[command(about = "Presses on a node in one defined way, within bounds")]
pub(crate) struct Cli {
    /// Begin only when a line comes on standard input; its end ends the workload
    #[arg(long, global = true)]
    pub(crate) wait: bool,
    /// Move into these cgroup directories before anything is allocated
    #[arg(long, global = true, value_delimiter = ',', value_name = "DIR,…")]
    pub(crate) join: Vec<PathBuf>,
    /// After --join, change the root directory to this one; file paths are below it
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) chroot: Option<PathBuf>,
    /// Keep stamps of (time, bytes touched) in this new file
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) stamps: Option<PathBuf>,
    /// What SIGTERM does
    #[arg(long, global = true, value_enum, default_value_t = OnTerm::Exit)]
    pub(crate) on_term: OnTerm,
    /// Milliseconds between SIGTERM and the exit
    #[arg(long, global = true, value_parser = millis, default_value = "0", value_name = "MS")]
    pub(crate) term_delay: Duration,
    #[command(subcommand)]
    pub(crate) mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnTerm {
    Exit,
    Ignore,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Mode {
    /// Grow at a steady rate, then hold what was touched
    Grow {
        #[command(flatten)]
        growth: GrowthArgs,
        /// Exit when grown
        #[arg(long)]
        exit: bool,
    },
    /// Allocate at once and hold
    Hold {
        #[command(flatten)]
        growth: GrowthArgs,
    },
    /// Grow, hold for a time, free everything, stay
    Spike {
        #[command(flatten)]
        growth: GrowthArgs,
        /// Milliseconds at the top
        #[arg(long, value_parser = millis, value_name = "MS")]
        hold: Duration,
    },
    /// Fill the page cache by reading a sparse file: clean, inactive file pages
    Cache {
        #[command(flatten)]
        cache: CacheArgs,
        /// Read it again and again, which makes its pages active
        #[arg(long)]
        again: bool,
    },
    /// A parent whose child grows; the parent stays when the child is killed
    Child {
        #[command(flatten)]
        growth: GrowthArgs,
        /// So many children, one after the other
        #[arg(long, default_value_t = 1)]
        times: u32,
    },
    /// Fork processes that wait
    Forks(ForksArgs),
    /// Touch memory and give it back, again and again
    Churn {
        /// How much
        #[arg(long, value_parser = bytes)]
        size: u64,
    },
    /// Write a file, and stay with it open; stamps are bytes that the file system has less
    Write {
        /// The file
        #[arg(long)]
        file: PathBuf,
        /// Never write more than this (K, M, G: powers of 1024)
        #[arg(long, value_parser = bytes)]
        size: u64,
        /// Bytes per second; 0: as fast as it goes
        #[arg(long, value_parser = bytes, default_value = "0")]
        rate: u64,
        /// How it is written
        #[arg(long, value_enum, default_value_t = How::Buffered)]
        how: How,
        /// Bytes of each write, a multiple of 4 KiB for direct IO
        #[arg(long, value_parser = bytes, default_value = "256K")]
        block: u64,
    },
    /// Allocate a file at once with fallocate, and stay
    Allocate {
        /// The file
        #[arg(long)]
        file: PathBuf,
        /// Its size (K, M, G: powers of 1024)
        #[arg(long, value_parser = bytes)]
        size: u64,
    },
    /// Create empty files, and stay; stamps are inodes that the file system has less
    Create {
        /// Their directory
        #[arg(long)]
        dir: PathBuf,
        /// Never more than this
        #[arg(long)]
        max: u64,
        /// Files per second; 0: as fast as it goes
        #[arg(long, default_value_t = 0)]
        rate: u64,
    },
    /// Do something a number of times for each line of standard input, and say what it cost
    Measure {
        #[arg(long, value_enum)]
        what: Task,
        /// How often
        #[arg(long)]
        count: u32,
        /// Where files go: default the temporary folder
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Hold the lock (flock) of a directory
    Lock {
        #[arg(long)]
        dir: PathBuf,
    },
    /// Use the processor
    Busy {
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
        threads: u32,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct GrowthArgs {
    /// What is touched
    #[arg(long, value_enum, default_value_t = Kind::Fresh)]
    pub(crate) kind: Kind,
    /// Never touch more than this (K, M, G: powers of 1024)
    #[arg(long, value_parser = bytes)]
    pub(crate) size: u64,
    /// Bytes per second over all threads, kept each 256 KiB; 0: as fast as it goes
    #[arg(long, value_parser = bytes, default_value = "0")]
    pub(crate) rate: u64,
    /// Stop here, below the size
    #[arg(long, value_parser = bytes)]
    pub(crate) stop_at: Option<u64>,
    /// Touch everything once before, and give it back: what the machine lends anew is slow
    #[arg(long)]
    pub(crate) touch_first: bool,
    /// Threads that share the growth (memory, not files)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: u32,
    /// Where files go: default /dev/shm for tmpfs, the temporary folder for page-cache
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Task {
    /// A page fault
    Fault,
    /// Fork, exec and wait
    Fork,
    /// A write of 64 KiB into the page cache
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum How {
    /// By write(2) into the page cache
    Buffered,
    /// By page faults of a shared mapping
    Mmap,
    /// By write(2) with O_DIRECT
    Direct,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Anonymous pages of 4 KiB that never existed before
    Fresh,
    /// Anonymous pages given back before with MADV_DONTNEED: their page tables exist
    Refault,
    /// Anonymous pages of 2 MiB
    Huge,
    /// A file in memory
    Tmpfs,
    /// A file on disk, written
    PageCache,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CacheArgs {
    /// Size of the file
    #[arg(long, value_parser = bytes)]
    pub(crate) size: u64,
    /// Bytes per second; 0: as fast as it goes
    #[arg(long, value_parser = bytes, default_value = "0")]
    pub(crate) rate: u64,
    /// Where the file goes: default the temporary folder
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ForksArgs {
    /// Forks in all, never more
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) max: u32,
    /// Forks per second
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: u32,
    /// Children fork too, and outlive their parents
    #[arg(long)]
    pub(crate) bomb: bool,
    /// Children exit after so many milliseconds
    #[arg(long, value_parser = millis, value_name = "MS")]
    pub(crate) life: Option<Duration>,
}

fn millis(text: &str) -> Result<Duration, std::num::ParseIntError> {
    text.parse().map(Duration::from_millis)
}

fn bytes(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(['i', 'B']);
    let (digits, shift) = match number.chars().last() {
        Some('K') => (&number[..number.len() - 1], 10),
        Some('M') => (&number[..number.len() - 1], 20),
        Some('G') => (&number[..number.len() - 1], 30),
        _ => (number, 0),
    };
    let value: u64 =
        digits.parse().map_err(|error| format!("{error}; expected a number of bytes such as 700M"))?;
    value.checked_shl(shift).filter(|bytes| bytes >> shift == value).ok_or_else(|| "too large".to_owned())
}
