//! Attaching loaded programs. The kernel itself is asked: aya does it only through the object that
//! a program was loaded from, which takes memory to keep, and a program for a time is attached
//! long after that.

use std::{
    ffi::CString,
    fs, io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use super::{
    attach_method::HookPoint,
    sys::{bpf, bpf_descriptor},
};

/// A program at its place. Dropping it detaches the program.
#[derive(Debug)]
pub(super) struct Link {
    descriptor: OwnedFd,
    kind: Kind,
    code: OwnedFd,
    /// The kernel's id of the program.
    pub(super) program: u32,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A BPF link.
    Trampoline,
    /// A perf event with a program.
    PerfEvent,
}

impl Link {
    /// Attaches a loaded program with this id.
    pub(super) fn new(at: HookPoint, program: &OwnedFd, id: u32) -> io::Result<Self> {
        let (kind, descriptor) = match at {
            HookPoint::Tracepoint(_) | HookPoint::Entry(_) | HookPoint::Exit(_) => {
                (Kind::Trampoline, attach_traced(program)?)
            }
            HookPoint::Probe(function) => (Kind::PerfEvent, attach_probe(program, function, false)?),
            HookPoint::ReturnProbe(function) => (Kind::PerfEvent, attach_probe(program, function, true)?),
        };
        Ok(Self { descriptor, kind, code: program.try_clone()?, program: id })
    }

    /// See [`runs_missed`].
    pub(super) fn runs_missed(&self) -> io::Result<u64> {
        runs_missed(&self.code)
    }

    /// Asks the kernel whether the descriptor still stands for what was attached.
    pub(super) fn verify(&self) -> io::Result<()> {
        match self.kind {
            Kind::Trampoline => match info::<LinkInfo>(&self.descriptor)?.prog_id {
                program if program == self.program => Ok(()),
                other => Err(io::Error::other(format!("the link is of program {other}"))),
            },
            Kind::PerfEvent => event_id(&self.descriptor).map(drop),
        }
    }
}

/// How often the kernel did not run a program since it was loaded, because it was at work on that CPU already
/// (`recursion_misses`, from 5.12 on; 0 before). Where tasks are preempted in the kernel, that is when another
/// one comes to the same place.
pub(super) fn runs_missed(program: &OwnedFd) -> io::Result<u64> {
    Ok(info::<ProgramInfo>(program)?.recursion_misses)
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

/// Asks the kernel to attach to its trampoline, once more, a program that is there already. Kernels
/// that allow it after the program was taken off refuse it now, since it is there (EBUSY). Before 5.13 a
/// program forgets its trampoline when it is attached (`bpf_tracing_prog_attach` in
/// kernel/bpf/syscall.c), and is attached once in its life (ENOENT).
///
/// # Errors
/// If it is attached no second time.
pub(super) fn again(program: &OwnedFd) -> io::Result<()> {
    match attach_traced(program) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(io::Error::new(error.kind(), "this kernel attaches it once, and it comes and goes"))
        }
        Ok(_) | Err(_) => Ok(()),
    }
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
