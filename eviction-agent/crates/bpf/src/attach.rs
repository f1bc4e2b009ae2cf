//! Loads and attaches the programs of a class by the best method that holds.
//!
//! The kernel itself is asked to attach: aya does it only through the object that a program was loaded from,
//! which takes memory to keep, and an on-demand probe is attached long after that.

use std::error::Error;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use aya::programs::{BtfTracePoint, FEntry, FExit, KProbe, ProgramError, ProgramFd, RawTracePoint};
use aya::{Btf, Ebpf};

use super::attach_methods::{AttachMethod, HookPoint, ProgramHook};
use super::capabilities::Lockdown;
use super::kprobe::{attach_probe, event_id};
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
            HookPoint::RawTracepoint(_) => {
                let program: &mut RawTracePoint = program.try_into()?;
                program.load()?;
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
            HookPoint::Tracepoint(_) | HookPoint::Entry(_) | HookPoint::Exit(_) => {
                attach_traced(&self.code, None)
            }
            HookPoint::RawTracepoint(name) => attach_traced(&self.code, Some(name)),
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
            HookPoint::Tracepoint(_)
            | HookPoint::RawTracepoint(_)
            | HookPoint::Entry(_)
            | HookPoint::Exit(_) => match info::<LinkInfo>(&self.descriptor)?.prog_id {
                program if program == self.program.id => Ok(()),
                other => Err(io::Error::other(format!("the link is of program {other}"))),
            },
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
        match attach_traced(&self.program.code, None) {
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

/// Attaches a program to this tracepoint, or to the place that the kernel knows from its loading.
fn attach_traced(program: &OwnedFd, tracepoint: Option<&str>) -> io::Result<OwnedFd> {
    let name = tracepoint.map(CString::new).transpose()?;
    let mut attr = TracepointAttr {
        name: name.as_ref().map_or(0, |name| name.as_ptr() as u64),
        prog_fd: program.as_raw_fd() as u32,
        pad: 0,
        cookie: 0,
    };
    // SAFETY: `attr` is the part of `bpf_attr` that this command uses, and its name outlives the call.
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
