//! The cgroups of the iterator's last pass once more, by a program that runs when it is asked to.
//!
//! It holds no lock, so nobody waits for anybody, and has a third of the memory to look at. Whether the cgroups are
//! still those that they were the program finds out itself.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use aya::Ebpf;
use aya::programs::{ProgramError, RawTracePoint};
use eviction_common::{AGAIN_CHANGED, AGAIN_DONE, UsageSetup};

use crate::source::bpf::sys::bpf;

const BPF_PROG_TEST_RUN: libc::c_long = 10;

/// The part of `union bpf_attr` that running a program uses (linux/bpf.h).
#[derive(Default)]
#[repr(C)]
struct RunAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    pad: u32,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// All figures are of now.
    Done,
    /// The cgroups are others; some figures are of now and others are not.
    Changed,
    /// This kernel is not as the program was told.
    Unable,
}

/// The program, which is attached to nothing. (aya would run it, but as part of all that was loaded, which is given
/// up once it is.)
#[derive(Debug)]
pub(super) struct Again {
    program: OwnedFd,
    /// How many rows at once.
    rows: u64,
}

impl Again {
    /// Loads it, as it was told.
    pub(super) fn load(ebpf: &mut Ebpf, told: &UsageSetup) -> Result<Self, Box<dyn Error>> {
        let program: &mut RawTracePoint =
            ebpf.program_mut("usages_again").ok_or(ProgramError::NotLoaded)?.try_into()?;
        program.load()?;
        let program = program.fd()?.as_fd().try_clone_to_owned()?;
        Ok(Self { program, rows: told.again_rows.max(1).into() })
    }

    /// Has the rows 1 to `rows` written anew, as far as they are of the pass with this number.
    pub(super) fn read(&self, rows: usize, session: u64) -> io::Result<Said> {
        let end = rows as u64 + 1;
        let mut first = 1;
        while first < end {
            let until = end.min(first + self.rows);
            match self.run([first, until, session])? {
                AGAIN_DONE => first = until,
                AGAIN_CHANGED => return Ok(Said::Changed),
                _ => return Ok(Said::Unable),
            }
        }
        Ok(Said::Done)
    }

    /// Runs it on this processor; what it answers.
    fn run(&self, arguments: [u64; 3]) -> io::Result<u32> {
        let mut attr = RunAttr {
            prog_fd: self.program.as_raw_fd() as u32,
            ctx_size_in: size_of_val(&arguments) as u32,
            ctx_in: arguments.as_ptr() as u64,
            ..RunAttr::default()
        };
        // SAFETY: `attr` is the part of `bpf_attr` that this command uses, and what it points to outlives the call. The
        // kernel writes the answer into it.
        unsafe { bpf(BPF_PROG_TEST_RUN, &mut attr) }?;
        Ok(attr.retval)
    }
}
