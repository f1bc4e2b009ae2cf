//! The cgroups of the iterator's last pass once more, by a program that runs when it is asked to.
//!
//! It holds no lock, so nobody waits for anybody, and has a third of the memory to look at. Whether a cgroup is
//! still the one that it was the program finds out itself; one that was made since it cannot know.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use aya::Ebpf;
use aya::programs::{ProgramError, RawTracePoint};
use eviction_common::AGAIN_ROWS;

const BPF_PROG_TEST_RUN: libc::c_long = 10;

/// The part of `union bpf_attr` that running a program uses (linux/bpf.h).
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

/// The program, which is attached to nothing. (aya would run it, but as part of all that was loaded, which is given
/// up once it is.)
#[derive(Debug)]
pub(super) struct Again {
    program: OwnedFd,
}

impl Again {
    pub(super) fn load(ebpf: &mut Ebpf) -> Result<Self, Box<dyn Error>> {
        let program: &mut RawTracePoint =
            ebpf.program_mut("usages_again").ok_or(ProgramError::NotLoaded)?.try_into()?;
        program.load()?;
        Ok(Self { program: program.fd()?.as_fd().try_clone_to_owned()? })
    }

    /// Has the rows 1 to `rows` written anew, as far as they are of the pass with this number. `false` if one of their cgroups is not any more what it was: then some
    /// are of now and others are not.
    pub(super) fn read(&self, rows: usize, session: u64) -> io::Result<bool> {
        let until = rows as u64 + 1;
        for first in (1..until).step_by(AGAIN_ROWS as usize) {
            if self.run([first, until, session])? != 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs it on this processor; what it answers.
    fn run(&self, arguments: [u64; 3]) -> io::Result<u32> {
        let mut attr = RunAttr {
            prog_fd: self.program.as_raw_fd() as u32,
            retval: 0,
            data_size_in: 0,
            data_size_out: 0,
            data_in: 0,
            data_out: 0,
            repeat: 0,
            duration: 0,
            ctx_size_in: size_of_val(&arguments) as u32,
            ctx_size_out: 0,
            ctx_in: arguments.as_ptr() as u64,
            ctx_out: 0,
            flags: 0,
            cpu: 0,
            batch_size: 0,
            pad: 0,
        };
        // SAFETY: `attr` is the part of `bpf_attr` that this command uses, its size is given, and what it points to
        // outlives the call. The kernel writes the answer into it.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attr, size_of::<RunAttr>()) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(attr.retval)
    }
}
