//! Attaches programs to functions by kprobes, which are perf events.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use aya_obj::generated::{
    PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_ID, PERF_EVENT_IOC_SET_BPF, PERF_FLAG_FD_CLOEXEC, perf_event_attr,
};

const PROBES: &str = "/sys/bus/event_source/devices/kprobe";

/// Attaches a program to the entry or the return of a function.
pub(super) fn attach_probe(program: &OwnedFd, function: &str, on_return: bool) -> io::Result<OwnedFd> {
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
pub(super) fn event_id(event: &OwnedFd) -> io::Result<u64> {
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
    let text = fs::read_to_string(format!("{PROBES}/type"))
        .map_err(|error| io::Error::new(error.kind(), format!("this kernel has no kprobes ({error})")))?;
    text.trim().parse().map_err(io::Error::other)
}

/// Reads the bit of `config` that requests the return; the file contains `config:0`.
fn return_bit() -> io::Result<u32> {
    let text = fs::read_to_string(format!("{PROBES}/format/retprobe"))?;
    let bit = text.trim().strip_prefix("config:").and_then(|bit| bit.parse().ok());
    bit.filter(|bit| *bit < u64::BITS).ok_or_else(|| io::Error::other(format!("{PROBES}: {}", text.trim())))
}
