//! The way along a class's methods: each is loaded and attached, and the first that holds is used.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use aya::programs::{BtfTracePoint, FEntry, FExit, KProbe, ProgramError, ProgramFd, ProgramInfo};
use aya::{Btf, Ebpf};

use super::attach::{self, Link};
use super::attach_method::{AttachMethod, HookPoint, ProgramHook};
use super::capabilities::Lockdown;
use super::error_summary::brief;
use super::plan::{self, BackendInfo, ClassPlan, RejectedMethod};

/// The method of a class that holds.
pub(super) struct AttachedMethod {
    pub(super) info: BackendInfo,
    pub(super) method: &'static AttachMethod,
    pub(super) attached: Vec<AttachedProgram>,
}

/// A program, loaded and at its place.
pub(super) struct AttachedProgram {
    pub(super) at: HookPoint,
    pub(super) program: OwnedFd,
    pub(super) link: Link,
}

impl AttachedProgram {
    /// Whether it can be attached once more after it was taken off, as a hook for a time is.
    fn again(&self) -> io::Result<()> {
        match self.at {
            HookPoint::Entry(_) | HookPoint::Exit(_) => attach::again(&self.program),
            HookPoint::Tracepoint(_) | HookPoint::Probe(_) | HookPoint::ReturnProbe(_) => Ok(()),
        }
    }
}

/// Tries a class's methods, best first.
pub(super) fn attach_best(
    plan: ClassPlan,
    ebpf: &mut Ebpf,
    btf: &Btf,
    lockdown: Lockdown,
) -> Result<AttachedMethod, BackendInfo> {
    let ClassPlan { class, candidates, mut rejected } = plan;
    for method in candidates {
        let attached: Result<Vec<_>, _> = method
            .hooks
            .iter()
            .map(|hook| {
                let attached = attach(hook, ebpf, btf)?;
                if method.companion.is_some() {
                    attached.again().map_err(|error| format!("{}: {}", hook.program, brief(&error)))?;
                }
                Ok(attached)
            })
            .collect();
        match attached {
            Ok(attached) => return Ok(AttachedMethod { info: method.info(&rejected), method, attached }),
            Err(error) => rejected.push(RejectedMethod { method: method.name, why: lockdown.explain(error) }),
        }
    }
    Err(plan::nothing(class, &rejected))
}

fn attach(hook: &ProgramHook, ebpf: &mut Ebpf, btf: &Btf) -> Result<AttachedProgram, String> {
    let ProgramHook { program: name, at, arguments: _ } = *hook;
    let fail = |error: &(dyn Error + 'static)| format!("{name}: {}", brief(error));
    let began = Instant::now();
    let (program, id) = load_program(hook, ebpf, btf).map_err(|error| fail(&error))?;
    let loaded = began.elapsed();
    let link = Link::new(at, &program, id).map_err(|error| fail(&error))?;
    // A trampoline may wait until no task is in the one before it.
    tracing::debug!(program = name, ?loaded, attached = ?began.elapsed().saturating_sub(loaded), "a program holds");
    Ok(AttachedProgram { at, program, link })
}

/// Hands a program to the verifier; gives its descriptor and the kernel's id of it.
fn load_program(hook: &ProgramHook, ebpf: &mut Ebpf, btf: &Btf) -> Result<(OwnedFd, u32), ProgramError> {
    let ProgramHook { program, at, arguments: _ } = *hook;
    let program = ebpf.program_mut(program).ok_or(ProgramError::NotLoaded)?;
    let loaded = |fd: &ProgramFd, info: ProgramInfo| {
        fd.as_fd().try_clone_to_owned().map(|fd| (fd, info.id())).map_err(ProgramError::IOError)
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
