//! Asks the kernel itself whether programs may read any address, where it does not say how far it is locked down.

use std::io;

use super::sys::bpf_descriptor;

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;

/// `r0 = 0; exit` (linux/bpf.h: code, registers, offset, immediate).
const NOTHING: [u64; 2] = [0xb7, 0x95];

/// `r1 = r10; r1 += -8; r2 = 8; r3 = 0; call bpf_probe_read_kernel; r0 = 0; exit`.
const READS: [u64; 7] =
    [0xa1bf, 0xffff_fff8_0000_0107, 0x0000_0008_0000_02b7, 0x03b7, 0x0000_0071_0000_0085, 0xb7, 0x95];

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
}

/// Whether the kernel withholds `bpf_probe_read_kernel` from a program of this process, and only that: who may load
/// none at all learns nothing (`bpf_tracing_func_proto` in kernel/trace/bpf_trace.c; the verifier's answer to a
/// helper that is not there is EINVAL).
pub(super) fn withholds_reading() -> bool {
    let is_refused = load(&READS).is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL));
    is_refused && load(&NOTHING).is_ok()
}

fn load(program: &[u64]) -> io::Result<()> {
    let mut attr = LoadAttr {
        prog_type: BPF_PROG_TYPE_RAW_TRACEPOINT,
        insn_cnt: u32::try_from(program.len()).unwrap_or(0),
        insns: program.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
    };
    // SAFETY: it begins as the kernel's does for this command, and points to what outlives the call.
    unsafe { bpf_descriptor(BPF_PROG_LOAD, &mut attr) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_is_a_program_that_the_verifier_takes() {
        match load(&NOTHING) {
            // Unless this machine is locked down, or this user may load none.
            Ok(()) => assert_eq!(withholds_reading(), load(&READS).is_err()),
            Err(_) => assert!(!withholds_reading()),
        }
        if let Err(error) = load(&READS) {
            assert_eq!(
                error.raw_os_error().filter(|errno| *errno == libc::EACCES),
                None,
                "the verifier: {error}"
            );
        }
    }
}
