//! A BPF program that does nothing: what the kernel says that it takes is the reading of the kernel's clock.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::fdinfo::FdInfo;
use crate::program::bpf_fd;

/// The charge hook of kernels that show no page counters. Where it is there it fires as often as the agent's own
/// programs, so that the caches are as warm.
const CHARGES: &CStr = c"mod_memcg_state";

/// A hook that every kernel has, and that fires often.
const ALWAYS: &CStr = c"sys_enter";

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;

/// `r0 = 0; exit` (linux/bpf.h: code, registers, offset, immediate).
const NOTHING: [u64; 2] = [0xb7, 0x95];

/// The part of `union bpf_attr` that loading a program uses.
#[repr(C)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    name: [u8; 16],
}

/// The part that attaching to a raw tracepoint uses.
#[repr(C)]
struct OpenAttr {
    name: u64,
    prog_fd: u32,
    pad: u32,
}

/// The kernel measures programs while this lives. That makes each run of one some dozens of nanoseconds longer, so
/// nothing else may be timed meanwhile.
#[derive(Debug)]
pub struct Measured {
    before: String,
}

impl Measured {
    /// Begins with it.
    ///
    /// # Errors
    /// If this process may not, or the kernel cannot.
    pub fn begin() -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{SWITCH}: {error}"));
        let before = fs::read_to_string(SWITCH).map_err(named)?;
        fs::write(SWITCH, "1").map_err(named)?;
        Ok(Self { before })
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        if let Err(error) = fs::write(SWITCH, self.before.trim()) {
            eprintln!("write {SWITCH}: {error}");
        }
    }
}

/// Attached as long as it lives.
#[derive(Debug)]
pub struct EmptyProgram {
    program: OwnedFd,
    _link: OwnedFd,
}

impl EmptyProgram {
    /// Attaches one.
    ///
    /// # Errors
    /// What the kernel says, for instance that this process may not.
    pub fn attach() -> io::Result<Self> {
        Self::attach_to_charges().or_else(|_| Self::attach_to(ALWAYS))
    }

    fn attach_to(hook: &CStr) -> io::Result<Self> {
        // Before 5.11 the kernel charges programs to the limit of locked memory. Where it cannot be raised and is too
        // low, loading says so.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
        let license = c"GPL";
        let attr = LoadAttr {
            prog_type: BPF_PROG_TYPE_RAW_TRACEPOINT,
            insn_cnt: NOTHING.len() as u32,
            insns: NOTHING.as_ptr() as u64,
            license: license.as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log_buf: 0,
            kern_version: 0,
            prog_flags: 0,
            name: *b"nothing\0\0\0\0\0\0\0\0\0",
        };
        // SAFETY: `attr` is the part of `bpf_attr` that this command uses, and what it points to outlives the call.
        let program = unsafe { bpf_fd(BPF_PROG_LOAD, &attr) }?;
        let attr = OpenAttr { name: hook.as_ptr() as u64, prog_fd: program.as_raw_fd() as u32, pad: 0 };
        // SAFETY: as above.
        let link = unsafe { bpf_fd(BPF_RAW_TRACEPOINT_OPEN, &attr) }?;
        Ok(Self { program, _link: link })
    }

    /// Attaches one to the charge hook of kernels that show no page counters, if this one has it.
    ///
    /// # Errors
    /// What the kernel says, for instance that there is no such tracepoint.
    pub fn attach_to_charges() -> io::Result<Self> {
        Self::attach_to(CHARGES)
    }

    /// How often it ran so far while programs were [`Measured`], and for how many nanoseconds.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn run(&self) -> io::Result<(u64, u64)> {
        let runs = |info: &FdInfo| Some((info.field("run_cnt")?, info.field("run_time_ns")?));
        self.reported("how long a program ran", runs)
    }

    /// The kernel's number of it.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn id(&self) -> io::Result<u32> {
        self.reported("the id of a program", |info| u32::try_from(info.field("prog_id")?).ok())
    }

    fn reported<T>(&self, what: &str, reported: impl Fn(&FdInfo) -> Option<T>) -> io::Result<T> {
        let number = self.program.as_raw_fd().unsigned_abs();
        let all = FdInfo::all(std::process::id())?;
        let reported = all.iter().find(|info| info.number == number).and_then(reported);
        reported.ok_or_else(|| io::Error::other(format!("the kernel does not tell {what}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_where_there_is_something_to_measure() {
        let program = match EmptyProgram::attach() {
            Ok(program) => program,
            Err(why) => crate::skip!("no program can be attached: {why}"),
        };
        let _measured = match Measured::begin() {
            Ok(measured) => measured,
            Err(why) => crate::skip!("{why}"),
        };
        for _ in 0..20 {
            assert!(std::process::Command::new("true").status().unwrap().success());
        }
        let (runs, ns) = program.run().unwrap();
        assert!(runs > 0 && ns > 0, "{runs} runs of {ns} ns");
    }
}
