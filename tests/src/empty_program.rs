//! A BPF program that does nothing: the run time that the kernel measures is the time to read its clock.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::fdinfo::FdInfo;
use crate::program::bpf_fd;

/// The charge hook of kernels that do not expose page counters. Where it exists, it fires as often as the
/// agent's own programs, so that the caches are as warm.
const CHARGES: &CStr = c"mod_memcg_state";

/// A hook that every kernel has, and that fires often.
const ALWAYS: &CStr = c"sys_enter";

const STATS_FILE: &str = "/proc/sys/kernel/bpf_stats_enabled";

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;

/// `r0 = 0; exit` (linux/bpf.h: code, registers, offset, immediate).
const RETURN_ZERO: [u64; 2] = [0xb7, 0x95];

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

/// The part of `union bpf_attr` that attaching to a raw tracepoint uses.
#[repr(C)]
struct OpenAttr {
    name: u64,
    prog_fd: u32,
    pad: u32,
}

/// The kernel measures programs until this is dropped. That makes each run some dozens of nanoseconds longer,
/// so nothing else may be timed meanwhile.
#[derive(Debug)]
pub struct BpfStats {
    before: String,
}

impl BpfStats {
    /// Starts the measurement.
    ///
    /// # Errors
    /// If this process lacks the right, or the kernel does not support it.
    pub fn enable() -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{STATS_FILE}: {error}"));
        let before = fs::read_to_string(STATS_FILE).map_err(named)?;
        fs::write(STATS_FILE, "1").map_err(named)?;
        Ok(Self { before })
    }
}

impl Drop for BpfStats {
    fn drop(&mut self) {
        if let Err(error) = fs::write(STATS_FILE, self.before.trim()) {
            eprintln!("write {STATS_FILE}: {error}");
        }
    }
}

/// An empty program, attached until this is dropped.
#[derive(Debug)]
pub struct EmptyProgram {
    program: OwnedFd,
    _link: OwnedFd,
}

impl EmptyProgram {
    /// Attaches a program.
    ///
    /// # Errors
    /// The kernel's error, for instance a missing right.
    pub fn attach() -> io::Result<Self> {
        Self::attach_to_charges().or_else(|_| Self::attach_to(ALWAYS))
    }

    fn attach_to(hook: &CStr) -> io::Result<Self> {
        // Before 5.11 the kernel charges programs to the limit of locked memory. If it cannot be raised and is
        // too low, loading fails.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
        let license = c"GPL";
        let attr = LoadAttr {
            prog_type: BPF_PROG_TYPE_RAW_TRACEPOINT,
            insn_cnt: RETURN_ZERO.len() as u32,
            insns: RETURN_ZERO.as_ptr() as u64,
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

    /// Attaches a program to the charge hook of kernels that do not expose page counters, if this one has it.
    ///
    /// # Errors
    /// The kernel's error, for instance that there is no such tracepoint.
    pub fn attach_to_charges() -> io::Result<Self> {
        Self::attach_to(CHARGES)
    }

    /// Returns how often it has run so far while programs were measured ([`BpfStats`]), and for how many nanoseconds.
    ///
    /// # Errors
    /// If the kernel does not report it.
    pub fn run(&self) -> io::Result<(u64, u64)> {
        let runs = |info: &FdInfo| Some((info.field("run_cnt")?, info.field("run_time_ns")?));
        self.read_info("how long a program ran", runs)
    }

    /// Returns the kernel's ID of the program.
    ///
    /// # Errors
    /// If the kernel does not report it.
    pub fn id(&self) -> io::Result<u32> {
        self.read_info("the id of a program", |info| u32::try_from(info.field("prog_id")?).ok())
    }

    fn read_info<T>(&self, what: &str, read: impl Fn(&FdInfo) -> Option<T>) -> io::Result<T> {
        let number = self.program.as_raw_fd().unsigned_abs();
        let all = FdInfo::all(std::process::id())?;
        let value = all.iter().find(|info| info.number == number).and_then(read);
        value.ok_or_else(|| io::Error::other(format!("the kernel does not report {what}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attached_program_runs_and_its_run_time_is_measured() {
        let program = crate::or_skip!(EmptyProgram::attach(), "no program can be attached");
        let _stats = crate::or_skip!(BpfStats::enable());
        for _ in 0..20 {
            assert!(std::process::Command::new("true").status().unwrap().success());
        }
        let (runs, ns) = program.run().unwrap();
        assert!(runs > 0 && ns > 0, "{runs} runs of {ns} ns");
    }
}
