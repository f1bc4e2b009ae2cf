//! The way along a family's rungs: each is loaded and attached, and the first that holds is used.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use aya::programs::{BtfTracePoint, FEntry, FExit, KProbe, ProgramError, ProgramFd, ProgramInfo};
use aya::{Btf, Ebpf};

use super::attach::{self, Link};
use super::brief::brief;
use super::near::Near;
use super::plan::{self, At, FamilyPlan, Hook, Rejected, Rung, SourceInfo, When};
use super::probe::Lockdown;

/// The rung of a family that holds.
pub(super) struct Climbed {
    pub(super) info: SourceInfo,
    pub(super) rung: &'static Rung,
    pub(super) attached: Vec<Attached>,
}

/// A program, loaded and at its place.
pub(super) struct Attached {
    pub(super) at: At,
    pub(super) program: OwnedFd,
    pub(super) link: Link,
}

impl Attached {
    /// Whether it can be attached once more after it was taken off, as a hook for a time is.
    fn again(&self) -> io::Result<()> {
        match self.at {
            At::Entry(_) | At::Exit(_) => attach::again(&self.program),
            At::Tracepoint(_) | At::Probe(_) | At::ReturnProbe(_) => Ok(()),
        }
    }
}

/// Tries a family's rungs, best first.
pub(super) fn climb(
    plan: FamilyPlan,
    ebpf: &mut Ebpf,
    btf: &Btf,
    lockdown: Lockdown,
) -> Result<Climbed, SourceInfo> {
    let FamilyPlan { family, candidates, mut rejected } = plan;
    for rung in candidates {
        let attached: Result<Vec<_>, _> = rung
            .hooks
            .iter()
            .map(|hook| {
                let attached = attach(hook, ebpf, btf)?;
                if rung.beside.is_some() {
                    attached.again().map_err(|error| format!("{}: {}", hook.program, brief(&error)))?;
                }
                Ok(attached)
            })
            .collect();
        match attached {
            Ok(attached) => return Ok(Climbed { info: rung.info(&rejected), rung, attached }),
            Err(error) => rejected.push(Rejected { rung: rung.name, why: lockdown.explain(error) }),
        }
    }
    Err(plan::nothing(family, &rejected))
}

fn attach(hook: &Hook, ebpf: &mut Ebpf, btf: &Btf) -> Result<Attached, String> {
    let Hook { program: name, at, arguments: _ } = *hook;
    let fail = |error: &(dyn Error + 'static)| format!("{name}: {}", brief(error));
    let began = Instant::now();
    let (program, id) = load_program(hook, ebpf, btf).map_err(|error| fail(&error))?;
    let loaded = began.elapsed();
    let link = Link::new(at, &program, id).map_err(|error| fail(&error))?;
    // A trampoline may wait until no task is in the one before it.
    tracing::debug!(program = name, ?loaded, attached = ?began.elapsed().saturating_sub(loaded), "a program holds");
    Ok(Attached { at, program, link })
}

/// Hands a program to the verifier; gives its descriptor and the kernel's id of it.
fn load_program(hook: &Hook, ebpf: &mut Ebpf, btf: &Btf) -> Result<(OwnedFd, u32), ProgramError> {
    let Hook { program, at, arguments: _ } = *hook;
    let program = ebpf.program_mut(program).ok_or(ProgramError::NotLoaded)?;
    let loaded = |fd: &ProgramFd, info: ProgramInfo| {
        fd.as_fd().try_clone_to_owned().map(|fd| (fd, info.id())).map_err(ProgramError::IOError)
    };
    match at {
        At::Tracepoint(name) => {
            let program: &mut BtfTracePoint = program.try_into()?;
            program.load(name, btf)?;
            loaded(program.fd()?, program.info()?)
        }
        At::Entry(name) => {
            let program: &mut FEntry = program.try_into()?;
            program.load(name, btf)?;
            loaded(program.fd()?, program.info()?)
        }
        At::Exit(name) => {
            let program: &mut FExit = program.try_into()?;
            program.load(name, btf)?;
            loaded(program.fd()?, program.info()?)
        }
        At::Probe(_) | At::ReturnProbe(_) => {
            let program: &mut KProbe = program.try_into()?;
            program.load()?;
            loaded(program.fd()?, program.info()?)
        }
    }
}

/// The program of a rung for a time, which is taken off.
pub(super) fn keep(attached: Vec<Attached>, when: When) -> io::Result<Option<Near>> {
    let first = attached.into_iter().next();
    first.map(|Attached { at, program, link }| Near::new(when, at, program, link)).transpose()
}
