//! Loads and attaches the programs of a class by the best method that holds.
//!
//! The kernel itself is asked to attach: aya does it only through the object that a program was loaded from,
//! which takes memory to keep, and an on-demand probe is attached long after that.

use std::error::Error;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use aya::programs::{BtfTracePoint, FEntry, FExit, KProbe, ProgramError, ProgramFd};
use aya::{Btf, Ebpf};

use super::attach_methods::{AttachMethod, HookPoint, ProgramHook};
use super::capabilities::Lockdown;
use super::plan::{self, BackendInfo, ClassPlan, RejectedMethod};
use super::sys::{bpf, bpf_descriptor};
use eviction_core::error::chain;

/// A program that the verifier has taken.
#[derive(Debug)]
pub(super) struct Program {
    at: HookPoint,
    code: OwnedFd,
    /// The kernel's id of it.
    pub(super) id: u32,
}

impl Program {
    /// Hands a program of the object to the verifier.
    fn load(hook: &ProgramHook, ebpf: &mut Ebpf, btf: &Btf) -> Result<Self, ProgramError> {
        let ProgramHook { program, at, arguments: _ } = *hook;
        let program = ebpf.program_mut(program).ok_or(ProgramError::NotLoaded)?;
        let loaded = |fd: &ProgramFd, info: aya::programs::ProgramInfo| {
            let code = fd.as_fd().try_clone_to_owned().map_err(ProgramError::IOError)?;
            Ok(Self { at, code, id: info.id() })
        };
        match at {
            HookPoint::Tracepoint(name) => {
                let program: &mut BtfTracePoint = program.try_into()?;
                program.load(name, btf)?;
                loaded(program.fd()?, program.info()?)
            }
            HookPoint::Entry(name) => {
                let program: &mut FEntry = program.try_into()?;
                program.load(name, btf)?;
                loaded(program.fd()?, program.info()?)
            }
            HookPoint::Exit(name) => {
                let program: &mut FExit = program.try_into()?;
                program.load(name, btf)?;
                loaded(program.fd()?, program.info()?)
            }
            HookPoint::Probe(_) | HookPoint::ReturnProbe(_) => {
                let program: &mut KProbe = program.try_into()?;
                program.load()?;
                loaded(program.fd()?, program.info()?)
            }
        }
    }

    /// Attaches it.
    pub(super) fn attach(self: &Arc<Self>) -> io::Result<Link> {
        let descriptor = match self.at {
            HookPoint::Tracepoint(_) | HookPoint::Entry(_) | HookPoint::Exit(_) => attach_traced(&self.code),
            HookPoint::Probe(function) => attach_probe(&self.code, function, false),
            HookPoint::ReturnProbe(function) => attach_probe(&self.code, function, true),
        }?;
        Ok(Link { descriptor, program: Arc::clone(self) })
    }

    /// How often the kernel did not run it since it was loaded, because it was at work on that CPU already
    /// (`recursion_misses`, from 5.12 on; 0 before). Where tasks are preempted in the kernel, that is when another
    /// one comes to the same place.
    pub(super) fn runs_missed(&self) -> io::Result<u64> {
        Ok(info::<ProgramInfo>(&self.code)?.recursion_misses)
    }
}

/// A program at its place. Dropping it detaches the program.
#[derive(Debug)]
pub(super) struct Link {
    /// A BPF link, or a perf event with a program.
    descriptor: OwnedFd,
    pub(super) program: Arc<Program>,
}

impl Link {
    /// Asks the kernel whether the descriptor still stands for what was attached.
    pub(super) fn verify(&self) -> io::Result<()> {
        match self.program.at {
            HookPoint::Tracepoint(_) | HookPoint::Entry(_) | HookPoint::Exit(_) => {
                match info::<LinkInfo>(&self.descriptor)?.prog_id {
                    program if program == self.program.id => Ok(()),
                    other => Err(io::Error::other(format!("the link is of program {other}"))),
                }
            }
            HookPoint::Probe(_) | HookPoint::ReturnProbe(_) => event_id(&self.descriptor).map(drop),
        }
    }

    /// Finds out whether the program can be attached once more after it was taken off, as an on-demand probe is.
    ///
    /// The kernel is asked to attach to its trampoline a program that is there already. Kernels that allow it
    /// after the program was taken off refuse it now, since it is there (EBUSY). Before 5.13 a program forgets
    /// its trampoline when it is attached (`bpf_tracing_prog_attach` in kernel/bpf/syscall.c), and is attached
    /// once in its life (ENOENT).
    ///
    /// # Errors
    /// If it is attached no second time.
    fn check_attaches_again(&self) -> io::Result<()> {
        if !matches!(self.program.at, HookPoint::Entry(_) | HookPoint::Exit(_)) {
            return Ok(());
        }
        match attach_traced(&self.program.code) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(io::Error::new(error.kind(), "this kernel attaches it once, and it comes and goes"))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// The attach method of a class that holds.
pub(super) struct Attached {
    pub(super) info: BackendInfo,
    pub(super) method: &'static AttachMethod,
    pub(super) links: Vec<Link>,
}

/// Tries the methods of a class, best first.
///
/// # Errors
/// If none holds; why.
pub(super) fn attach_best(
    plan: ClassPlan,
    ebpf: &mut Ebpf,
    btf: &Btf,
    lockdown: Lockdown,
) -> Result<Attached, BackendInfo> {
    let ClassPlan { class, candidates, mut rejected } = plan;
    for method in candidates {
        let is_on_demand = method.companion.is_some();
        let links: Result<Vec<_>, _> =
            method.hooks.iter().map(|hook| attach(hook, ebpf, btf, is_on_demand)).collect();
        match links {
            Ok(links) => return Ok(Attached { info: method.info(&rejected), method, links }),
            Err(error) => rejected.push(RejectedMethod { method: method.name, why: lockdown.explain(error) }),
        }
    }
    Err(plan::nothing(class, &rejected))
}

fn attach(hook: &ProgramHook, ebpf: &mut Ebpf, btf: &Btf, is_on_demand: bool) -> Result<Link, String> {
    let fail = |error: &(dyn Error + 'static)| format!("{}: {}", hook.program, brief(error));
    let began = Instant::now();
    let program = Arc::new(Program::load(hook, ebpf, btf).map_err(|error| fail(&error))?);
    let loaded = began.elapsed();
    let link = program.attach().map_err(|error| fail(&error))?;
    if is_on_demand {
        link.check_attaches_again().map_err(|error| fail(&error))?;
    }
    // A trampoline may wait until no task is in the one before it.
    let attached = began.elapsed().saturating_sub(loaded);
    tracing::debug!(program = hook.program, ?loaded, ?attached, "a program holds");
    Ok(link)
}

const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;

/// The part of `union bpf_attr` that opening a raw tracepoint uses (linux/bpf.h).
#[repr(C)]
struct TracepointAttr {
    name: u64,
    prog_fd: u32,
    pad: u32,
    cookie: u64,
}

/// Attaches a program whose place the kernel knows from its loading.
fn attach_traced(program: &OwnedFd) -> io::Result<OwnedFd> {
    let mut attr = TracepointAttr { name: 0, prog_fd: program.as_raw_fd() as u32, pad: 0, cookie: 0 };
    // SAFETY: `attr` is the part of `bpf_attr` that this command uses.
    unsafe { bpf_descriptor(BPF_RAW_TRACEPOINT_OPEN, &mut attr) }
}

/// The beginning of `struct bpf_link_info`.
#[derive(Default)]
#[repr(C)]
struct LinkInfo {
    kind: u32,
    id: u32,
    prog_id: u32,
}

/// `struct bpf_prog_info` as far as it is needed; kernels that have less leave the rest as it is.
#[derive(Default)]
#[repr(C)]
struct ProgramInfo {
    before: [u64; 26],
    recursion_misses: u64,
}

/// # Safety
/// Numbers alone, laid out as the beginning of what the kernel tells about such a descriptor; where it holds
/// addresses of buffers, 0 asks for none.
unsafe trait Info: Default {}
// SAFETY: as `linux/bpf.h` has them.
unsafe impl Info for LinkInfo {}
// SAFETY: the same.
unsafe impl Info for ProgramInfo {}

/// The part of `union bpf_attr` that asking for information uses.
#[repr(C)]
struct InfoAttr {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

fn info<I: Info>(of: &OwnedFd) -> io::Result<I> {
    let mut info = I::default();
    let mut attr = InfoAttr {
        bpf_fd: of.as_raw_fd() as u32,
        info_len: size_of::<I>() as u32,
        info: (&raw mut info) as u64,
    };
    // SAFETY: `attr` is the part of `bpf_attr` that this command uses, and
    // `info` is of numbers, has room for as many bytes as it says, and asks for no buffer to be filled.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr) }?;
    Ok(info)
}

/// The beginning of `struct perf_event_attr` (linux/perf_event.h), as far as probes use it.
#[derive(Default)]
#[repr(C)]
struct EventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    /// The function's name.
    config1: u64,
    /// The offset in it.
    config2: u64,
}

const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
// `_IO('$', 0)`, `_IOW('$', 8, __u32)` and `_IOR('$', 7, __u64 *)`.
const PERF_EVENT_IOC_ENABLE: u32 = 0x2400;
const PERF_EVENT_IOC_SET_BPF: u32 = 0x4004_2408;
const PERF_EVENT_IOC_ID: u32 = 0x8008_2407;

const PROBES: &str = "/sys/bus/event_source/devices/kprobe";

fn attach_probe(program: &OwnedFd, function: &str, on_return: bool) -> io::Result<OwnedFd> {
    let name = CString::new(function)?;
    let attr = EventAttr {
        kind: probe_kind()?,
        size: size_of::<EventAttr>() as u32,
        config: if on_return { 1 << return_bit()? } else { 0 },
        config1: name.as_ptr() as u64,
        ..EventAttr::default()
    };
    let (everybody, cpu, alone) = (-1, 0, -1);
    // SAFETY: `attr` is the beginning of the kernel's structure, says how long it is, and its name
    // outlives the call.
    let event = unsafe {
        let flags = PERF_FLAG_FD_CLOEXEC;
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, everybody, cpu, alone, flags)
    };
    if event < 0 {
        return Err(refused(io::Error::last_os_error()));
    }
    // SAFETY: the kernel has just made this descriptor for us; it fits into an int.
    let event = unsafe { OwnedFd::from_raw_fd(event as i32) };
    // SAFETY: both take an int.
    unsafe {
        control(&event, PERF_EVENT_IOC_SET_BPF, libc::c_ulong::from(program.as_raw_fd() as u32))?;
        control(&event, PERF_EVENT_IOC_ENABLE, 0)?;
    }
    Ok(event)
}

/// Kernels of Debian and Ubuntu know one level more of `kernel.perf_event_paranoid` than others, 3, and begin
/// with it: no perf event, and a kprobe is one, without CAP_SYS_ADMIN.
fn refused(error: io::Error) -> io::Error {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    match level.trim().parse::<i32>() {
        Ok(level) if level > 2 && error.kind() == io::ErrorKind::PermissionDenied => {
            let why =
                format!("CAP_SYS_ADMIN is missing, and kernel.perf_event_paranoid is {level} ({error})");
            io::Error::new(error.kind(), why)
        }
        _ => error,
    }
}

fn event_id(event: &OwnedFd) -> io::Result<u64> {
    let mut id = 0_u64;
    // SAFETY: it writes a u64, which is there.
    unsafe { control(event, PERF_EVENT_IOC_ID, (&raw mut id) as libc::c_ulong) }?;
    Ok(id)
}

/// # Safety
/// `argument` is what the request takes.
unsafe fn control(event: &OwnedFd, request: u32, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the caller's promise. Requests are of another type in each C library.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), request as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The number of probes among the kinds of perf events.
fn probe_kind() -> io::Result<u32> {
    let text = fs::read_to_string(format!("{PROBES}/type"))
        .map_err(|error| io::Error::new(error.kind(), format!("this kernel has no kprobes ({error})")))?;
    text.trim().parse().map_err(io::Error::other)
}

/// The bit of `config` that asks for the return; the file says `config:0`.
fn return_bit() -> io::Result<u32> {
    let text = fs::read_to_string(format!("{PROBES}/format/retprobe"))?;
    let bit = text.trim().strip_prefix("config:").and_then(|bit| bit.parse().ok());
    bit.filter(|bit| *bit < u64::BITS).ok_or_else(|| io::Error::other(format!("{PROBES}: {}", text.trim())))
}

/// An error and its causes in one short line. The verifier's log, which may be long, is cut
/// down to what it says last.
pub(super) fn brief(error: &(dyn Error + 'static)) -> String {
    if let Some(ProgramError::LoadError { io_error, verifier_log }) = error.downcast_ref() {
        let log = verifier_log.to_string();
        return match verifier_error(&log) {
            Some(verifier_error) => format!("the kernel refuses it: {io_error}: {verifier_error}"),
            None => format!("the kernel refuses it: {io_error}"),
        };
    }
    cut(chain(error).lines().next().unwrap_or_default())
}

/// The line of a verifier's log that says what was wrong: the last one before its statistics.
fn verifier_error(log: &str) -> Option<String> {
    let statistics = ["processed ", "insns processed", "verification time", "stack depth", "peak_states"];
    log.lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty() && !statistics.iter().any(|start| line.starts_with(start)))
        .map(cut)
}

fn cut(line: &str) -> String {
    const LONGEST: usize = 200;
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use aya::EbpfError;
    use aya::maps::MapError;

    use super::*;

    #[test]
    fn a_verifiers_verdict_is_its_last_line_before_the_statistics() {
        let log = "0: R1=ctx() R10=fp0\n; code\n12: (79) r1 = *(u64 *)(r2 +3)\n\
            access beyond struct cgroup at off 3 size 8\n\
            processed 13 insns (limit 1000000) max_states_per_insn 0\n\n";
        assert_eq!(verifier_error(log).as_deref(), Some("access beyond struct cgroup at off 3 size 8"));
        assert_eq!(verifier_error(""), None);
        assert_eq!(
            verifier_error("no such helper\ninsns processed 12625\n").as_deref(),
            Some("no such helper")
        );
        assert_eq!(verifier_error("processed 1 insns\n"), None);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let line = "é".repeat(300);
        assert_eq!(cut(&line).chars().count(), 201);
        assert_eq!(cut("short"), "short");
    }

    #[test]
    fn an_error_is_told_with_its_causes_once() {
        let error = MapError::SyscallError(aya::sys::SyscallError {
            call: "bpf_map_create",
            io_error: std::io::Error::from_raw_os_error(1),
        });
        let text = brief(&EbpfError::from(error));
        assert!(text.contains("bpf_map_create") && text.contains("Operation not permitted"), "{text}");
        assert_eq!(text.matches("bpf_map_create").count(), 1, "{text}");
    }
}
