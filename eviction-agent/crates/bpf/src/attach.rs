//! Loads and attaches the programs of a class by the best method that works.
//!
//! The programs are attached by direct calls of the kernel: aya attaches only through the object that a program
//! was loaded from, which takes memory to keep, and an on-demand probe is attached long after that.

use std::error::Error;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use aya::programs::{BtfTracePoint, FEntry, FExit, KProbe, ProgramError, RawTracePoint};
use aya::{Btf, Ebpf};
use aya_obj::generated::{
    PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_ID, PERF_EVENT_IOC_SET_BPF, PERF_FLAG_FD_CLOEXEC, bpf_cmd,
    bpf_link_info, bpf_prog_info, perf_event_attr,
};

use super::attach_methods::{AttachMethod, HookPoint, ProgramHook};
use super::capabilities::Lockdown;
use super::plan::MethodCandidate;
use super::sys::{bpf, bpf_descriptor, empty_attr};
use eviction_core::error::chain;

/// A program that the verifier has accepted.
#[derive(Debug)]
pub(super) struct Program {
    at: HookPoint,
    code: OwnedFd,
    /// The id of the program in the kernel.
    pub(super) id: u32,
}

impl Program {
    /// Loads a program of the object.
    fn load(hook: &ProgramHook, ebpf: &mut Ebpf, btf: &Btf) -> Result<Self, ProgramError> {
        let ProgramHook { program, at, arguments: _ } = *hook;
        let program = ebpf.program_mut(program).ok_or(ProgramError::NotLoaded)?;
        match at {
            HookPoint::Tracepoint(name) => <&mut BtfTracePoint>::try_from(&mut *program)?.load(name, btf)?,
            HookPoint::RawTracepoint(_) => <&mut RawTracePoint>::try_from(&mut *program)?.load()?,
            HookPoint::Entry(name) => <&mut FEntry>::try_from(&mut *program)?.load(name, btf)?,
            HookPoint::Exit(name) => <&mut FExit>::try_from(&mut *program)?.load(name, btf)?,
            HookPoint::Probe(_) | HookPoint::ReturnProbe(_) => {
                <&mut KProbe>::try_from(&mut *program)?.load()?;
            }
        }
        let code = program.fd()?.as_fd().try_clone_to_owned().map_err(ProgramError::IOError)?;
        Ok(Self { at, code, id: program.info()?.id() })
    }

    /// Attaches the program.
    pub(super) fn attach(self: &Arc<Self>) -> io::Result<Link> {
        let descriptor = match self.at {
            HookPoint::Tracepoint(_) | HookPoint::Entry(_) | HookPoint::Exit(_) => {
                attach_traced(&self.code, None)
            }
            HookPoint::RawTracepoint(name) => attach_traced(&self.code, Some(name)),
            HookPoint::Probe(function) => attach_probe(&self.code, function, false),
            HookPoint::ReturnProbe(function) => attach_probe(&self.code, function, true),
        }?;
        Ok(Link { descriptor, program: Arc::clone(self) })
    }

    /// Returns how often the kernel did not run the program since it was loaded, because it was already running
    /// on that CPU (`recursion_misses`, from 5.12 on; 0 before). Where tasks are preempted in the kernel, that
    /// happens when another task reaches the same hook.
    pub(super) fn runs_missed(&self) -> io::Result<u64> {
        // SAFETY: the structure consists of numbers. Kernels with a shorter one leave the rest 0.
        let info: bpf_prog_info = unsafe { info(&self.code) }?;
        Ok(info.recursion_misses)
    }
}

/// An attached program. Dropping it detaches the program.
#[derive(Debug)]
pub(super) struct Link {
    /// A BPF link, or a perf event with a program.
    descriptor: OwnedFd,
    pub(super) program: Arc<Program>,
}

impl Link {
    /// Checks with the kernel whether the descriptor still refers to what was attached.
    pub(super) fn verify(&self) -> io::Result<()> {
        match self.program.at {
            HookPoint::Probe(_) | HookPoint::ReturnProbe(_) => event_id(&self.descriptor).map(drop),
            _ => {
                // SAFETY: the structure consists of numbers.
                let info: bpf_link_info = unsafe { info(&self.descriptor) }?;
                if info.prog_id == self.program.id {
                    Ok(())
                } else {
                    Err(io::Error::other(format!("the link is of program {}", info.prog_id)))
                }
            }
        }
    }

    /// Checks whether the program can be attached again after it was detached, as an on-demand probe is.
    ///
    /// The check attaches to its trampoline a program that is attached already. Kernels that allow attaching it
    /// again after it was detached refuse this with EBUSY, since it is attached. Before 5.13 a program loses
    /// its trampoline when it is attached (`bpf_tracing_prog_attach` in kernel/bpf/syscall.c), and can be
    /// attached only once (ENOENT).
    ///
    /// # Errors
    /// If it cannot be attached a second time.
    fn check_reattach(&self) -> io::Result<()> {
        if !matches!(self.program.at, HookPoint::Entry(_) | HookPoint::Exit(_)) {
            return Ok(());
        }
        match attach_traced(&self.program.code, None) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(io::Error::new(error.kind(), "this kernel attaches it once, and it comes and goes"))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// Tries the methods of a class, best first, and adds the reasons against those that do not work. Returns the
/// one that works, and its programs, which are attached even if it is an on-demand probe.
pub(super) fn attach_best(
    candidates: &mut [MethodCandidate],
    ebpf: &mut Ebpf,
    btf: &Btf,
    lockdown: Lockdown,
) -> Option<(&'static AttachMethod, Vec<Link>)> {
    for MethodCandidate { method, refusal } in candidates.iter_mut().filter(|it| it.refusal.is_none()) {
        let links: Result<Vec<_>, _> =
            method.hooks.iter().map(|hook| attach(hook, ebpf, btf, method.when.is_some())).collect();
        match links {
            Ok(links) => return Some((method, links)),
            Err(error) => *refusal = Some(lockdown.explain(error)),
        }
    }
    None
}

fn attach(hook: &ProgramHook, ebpf: &mut Ebpf, btf: &Btf, is_on_demand: bool) -> Result<Link, String> {
    let fail = |error: &(dyn Error + 'static)| format!("{}: {}", hook.program, error_summary(error));
    let began = Instant::now();
    let program = Arc::new(Program::load(hook, ebpf, btf).map_err(|error| fail(&error))?);
    let loaded = began.elapsed();
    let link = program.attach().map_err(|error| fail(&error))?;
    if is_on_demand {
        link.check_reattach().map_err(|error| fail(&error))?;
    }
    // Attaching to a trampoline may wait until no task runs the previous one.
    let attached = began.elapsed().saturating_sub(loaded);
    tracing::debug!(program = hook.program, ?loaded, ?attached, "a program is attached");
    Ok(link)
}

/// Attaches a program to this tracepoint, or to the hook that it was loaded for.
fn attach_traced(program: &OwnedFd, tracepoint: Option<&str>) -> io::Result<OwnedFd> {
    let name = tracepoint.map(CString::new).transpose()?;
    let mut attr = empty_attr();
    attr.raw_tracepoint.name = name.as_ref().map_or(0, |name| name.as_ptr() as u64);
    attr.raw_tracepoint.prog_fd = program.as_raw_fd() as u32;
    // SAFETY: the name outlives the call.
    unsafe { bpf_descriptor(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr) }
}

/// The kind of perf events that kprobes are.
const KPROBES: &str = "/sys/bus/event_source/devices/kprobe";

/// Attaches a program to the entry or the return of a function by a kprobe, which is a perf event.
fn attach_probe(program: &OwnedFd, function: &str, on_return: bool) -> io::Result<OwnedFd> {
    let name = CString::new(function)?;
    // SAFETY: the structure consists of numbers.
    let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
    attr.type_ = probe_kind()?;
    attr.size = size_of::<perf_event_attr>() as u32;
    attr.config = if on_return { 1 << return_bit()? } else { 0 };
    attr.__bindgen_anon_3.kprobe_func = name.as_ptr() as u64;
    let (all_processes, cpu, no_group) = (-1, 0, -1);
    // SAFETY: `attr` says how long it is, and its name outlives the call.
    let event = unsafe {
        let flags = libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC);
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, all_processes, cpu, no_group, flags)
    };
    if event < 0 {
        return Err(explain_refusal(io::Error::last_os_error()));
    }
    // SAFETY: the kernel has just made this descriptor for us; it fits into an int.
    let event = unsafe { OwnedFd::from_raw_fd(event as i32) };
    // SAFETY: both requests take an int.
    unsafe {
        control(&event, PERF_EVENT_IOC_SET_BPF, libc::c_ulong::from(program.as_raw_fd() as u32))?;
        control(&event, PERF_EVENT_IOC_ENABLE, 0)?;
    }
    Ok(event)
}

/// Adds the likely cause to an error. Kernels of Debian and Ubuntu have one level more of
/// `kernel.perf_event_paranoid` than others, 3, and start with it: it allows no perf event without
/// CAP_SYS_ADMIN, and a kprobe is one.
fn explain_refusal(error: io::Error) -> io::Error {
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

/// Returns the kernel's id of an attached probe.
fn event_id(event: &OwnedFd) -> io::Result<u64> {
    let mut id = 0_u64;
    // SAFETY: the request writes a u64, and `id` is one.
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

/// Reads the number of kprobes among the types of perf events.
fn probe_kind() -> io::Result<u32> {
    let text = fs::read_to_string(format!("{KPROBES}/type"))
        .map_err(|error| io::Error::new(error.kind(), format!("this kernel has no kprobes ({error})")))?;
    text.trim().parse().map_err(io::Error::other)
}

/// Reads the bit of `config` that requests the return; the file contains `config:0`.
fn return_bit() -> io::Result<u32> {
    let text = fs::read_to_string(format!("{KPROBES}/format/retprobe"))?;
    let bit = text.trim().strip_prefix("config:").and_then(|bit| bit.parse().ok());
    bit.filter(|bit| *bit < u64::BITS).ok_or_else(|| io::Error::other(format!("{KPROBES}: {}", text.trim())))
}

/// Reads the kernel's information about a program or a link.
///
/// # Safety
/// `T` is the kernel's structure for it, and consists of numbers.
unsafe fn info<T>(of: &OwnedFd) -> io::Result<T> {
    // SAFETY: as the caller promises.
    let mut info: T = unsafe { std::mem::zeroed() };
    let mut attr = empty_attr();
    attr.info.bpf_fd = of.as_raw_fd() as u32;
    attr.info.info_len = size_of::<T>() as u32;
    attr.info.info = (&raw mut info) as u64;
    // SAFETY: `info` has as many bytes as `attr` states. Where it holds addresses of buffers, 0 requests none.
    unsafe { bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr) }?;
    Ok(info)
}

/// Formats an error and its causes as one short line. Of the verifier's log, which may be long, only the last
/// message is kept.
pub(super) fn error_summary(error: &(dyn Error + 'static)) -> String {
    if let Some(ProgramError::LoadError { io_error, verifier_log }) = error.downcast_ref() {
        let log = verifier_log.to_string();
        return match verifier_error(&log) {
            Some(verifier_error) => format!("the kernel refuses it: {io_error}: {verifier_error}"),
            None => format!("the kernel refuses it: {io_error}"),
        };
    }
    truncate(chain(error).lines().next().unwrap_or_default())
}

/// Returns the error in a verifier's log: the last line before its statistics.
fn verifier_error(log: &str) -> Option<String> {
    let statistics = ["processed ", "insns processed", "verification time", "stack depth", "peak_states"];
    log.lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty() && !statistics.iter().any(|start| line.starts_with(start)))
        .map(truncate)
}

fn truncate(line: &str) -> String {
    const MAX_CHARS: usize = 200;
    match line.char_indices().nth(MAX_CHARS) {
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
    fn verifier_error_is_the_last_line_before_the_statistics() {
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
        assert_eq!(truncate(&line).chars().count(), 201);
        assert_eq!(truncate("short"), "short");
    }

    #[test]
    fn error_summary_contains_each_cause_once() {
        let error = MapError::SyscallError(aya::sys::SyscallError {
            call: "bpf_map_create",
            io_error: std::io::Error::from_raw_os_error(1),
        });
        let text = error_summary(&EbpfError::from(error));
        assert!(text.contains("bpf_map_create") && text.contains("Operation not permitted"), "{text}");
        assert_eq!(text.matches("bpf_map_create").count(), 1, "{text}");
    }
}
