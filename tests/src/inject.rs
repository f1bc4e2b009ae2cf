//! Replaces a descriptor of another process, as if it were lost: what was open there is closed, and its number
//! refers to something else.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::interrupt::Interrupt;

/// The `syscall` instruction of x86-64.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// How long a process that does not wait in a system call is tried again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes the process put a copy of its descriptor `with` in place of `lost`. Its first thread executes the
/// call, as soon as it waits in a system call.
///
/// # Errors
/// If it cannot be traced, does not wait in a system call for ten seconds, or the kernel refuses.
pub fn replace_descriptor(pid: u32, lost: u32, with: u32) -> Result<()> {
    let thread = libc::pid_t::try_from(pid).context("a process id")?;
    Interrupt::default().until("the process waits in a system call", PATIENCE, || {
        request(libc::PTRACE_ATTACH, thread, 0).context("trace the process")?;
        let done = wait(thread).and_then(|()| dup(thread, lost, with));
        request(libc::PTRACE_DETACH, thread, 0).context("let the process go")?;
        Ok(done?.then_some(()))
    })
}

/// Returns whether the call was made. It cannot be made while the process does not wait in a system call.
fn dup(thread: libc::pid_t, lost: u32, with: u32) -> Result<bool> {
    let before = registers(thread)?;
    let memory = File::open(format!("/proc/{thread}/mem")).context("open the process's memory")?;
    let mut code = [0; 2];
    memory.read_exact_at(&mut code, before.rip - 2).context("read the process's code")?;
    if code != SYSCALL {
        return Ok(false);
    }
    let mut call = before;
    call.rip -= 2;
    call.orig_rax = u64::MAX;
    call.rax = libc::SYS_dup3.cast_unsigned();
    (call.rdi, call.rsi, call.rdx) = (with.into(), lost.into(), 0);
    set_registers(thread, &call)?;
    request(libc::PTRACE_SINGLESTEP, thread, 0).context("step the process")?;
    wait(thread)?;
    let result = registers(thread)?.rax.cast_signed();
    set_registers(thread, &before)?;
    if result < 0 {
        bail!("dup3: {}", io::Error::from_raw_os_error(i32::try_from(-result)?));
    }
    Ok(true)
}

fn wait(thread: libc::pid_t) -> Result<()> {
    let mut status = 0;
    // SAFETY: the kernel writes an int, which outlives the call.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    ensure!(waited == thread && libc::WIFSTOPPED(status), "the process did not stop: {status:#x}");
    Ok(())
}

fn registers(thread: libc::pid_t) -> Result<libc::user_regs_struct> {
    // SAFETY: the structure has only integers, for which zero is valid.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    request(libc::PTRACE_GETREGS, thread, (&raw mut registers) as usize).context("read its registers")?;
    Ok(registers)
}

fn set_registers(thread: libc::pid_t, registers: &libc::user_regs_struct) -> Result<()> {
    request(libc::PTRACE_SETREGS, thread, (&raw const *registers) as usize).context("set its registers")
}

/// The type of a request in the C library.
#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

fn request(request: Request, thread: libc::pid_t, data: usize) -> Result<()> {
    // SAFETY: of the requests made here two take a pointer, to a structure that outlives the call.
    let result = unsafe { libc::ptrace(request, thread, 0_usize, data) };
    match result {
        -1 => Err(io::Error::last_os_error().into()),
        _ => Ok(()),
    }
}
