//! Memory cgroups: their ids, their figures, and the way up to the root.

use aya_ebpf::helpers::bpf_get_current_task;
use eviction_common::ABSENT;

use crate::{
    config::{is_online, offset},
    probe_read::{Means, Probe, Read},
};

/// A memory cgroup on the way up. The css chain has the ids and the counter chain the figures;
/// they are walked side by side, since neither pointer can be turned into the other where the
/// verifier keeps their types.
#[derive(Clone, Copy)]
pub(crate) struct Memcg {
    css: *const u8,
    counter: *const u8,
}

impl Memcg {
    /// From a pointer to a `mem_cgroup`.
    ///
    /// # Safety
    /// It is one.
    #[inline(always)]
    pub(crate) unsafe fn new(memcg: *const u8) -> Self {
        // SAFETY: the offsets are of members of `mem_cgroup`; `css` is its first.
        unsafe {
            Self {
                css: memcg.add(offset!(memcg_css) as usize),
                counter: memcg.add(offset!(memcg_memory) as usize),
            }
        }
    }

    /// From a page counter that [`is_of_memory`]. Its address is given twice: as the hook gave it,
    /// which the verifier may know the type of, and as the plain number that it is, since one
    /// cannot step back from such a pointer to what is around it.
    ///
    /// # Safety
    /// Both are the address of such a counter.
    #[inline(always)]
    pub(crate) unsafe fn of_counter(counter: *const u8, address: u64) -> Self {
        Self { css: css_of_counter(address), counter }
    }

    /// The memory cgroup of a task; null while it has none. (An `Option` of it would leave
    /// registers unset that the verifier wants set.)
    ///
    /// # Safety
    /// `task` is a pointer to a `task_struct`.
    #[inline(always)]
    pub(crate) unsafe fn of_task(task: *const u8) -> Self {
        // SAFETY: as the caller promises; any address goes.
        let css = unsafe { css_of_task::<Probe>(task) };
        // A css is the first member of its memory cgroup (the loader checks it).
        Self { css, counter: css.wrapping_add(offset!(memcg_memory) as usize) }
    }

    /// Whether there is none.
    #[inline(always)]
    pub(crate) fn is_null(&self) -> bool {
        self.css.is_null()
    }

    /// Its address, by which it is known as long as it lives.
    #[inline(always)]
    pub(crate) fn address(&self) -> u64 {
        self.css as u64
    }

    /// Its page counter.
    #[inline(always)]
    pub(crate) fn counter(&self) -> *const u8 {
        self.counter
    }

    /// Its id.
    #[inline(always)]
    pub(crate) fn id<M: Means>(&self) -> u64 {
        // SAFETY: `css` is a css.
        unsafe { id_of_css::<M::Css>(self.css) }
    }

    /// Its usage, pages.
    #[inline(always)]
    pub(crate) fn usage<M: Means>(&self) -> u64 {
        // SAFETY: `counter` is a page counter.
        unsafe { usage_of::<M>(self.counter) }
    }

    /// Its limit, pages.
    #[inline(always)]
    pub(crate) fn max<M: Means>(&self) -> u64 {
        // SAFETY: `counter` is a page counter.
        unsafe { max_of::<M>(self.counter) }
    }

    /// What tells it from others, and whether it is there.
    #[inline(always)]
    pub(crate) fn mark<M: Means>(&self) -> Mark {
        let (flags, serial) = (offset!(css_flags), offset!(css_serial));
        if flags == ABSENT || serial == ABSENT {
            return Mark { serial: 0, is_online: true };
        }
        // SAFETY: `css` is a css.
        unsafe {
            let (flags, serial) = if M::Css::AT_ONCE && serial.wrapping_sub(flags) == 4 {
                let Side { flags, low, high } = M::Css::at(self.css, flags);
                (flags, u64::from(high) << 32 | u64::from(low))
            } else {
                (M::Css::at(self.css, flags), M::Css::at(self.css, serial))
            };
            Mark { serial, is_online: is_online(flags) }
        }
    }

    /// How often it ran out of memory by its own limit, and how many of its own processes were
    /// killed; nothing where the kernel does not count it.
    #[inline(always)]
    pub(crate) fn oom_events(&self) -> Option<(u64, u64)> {
        if offset!(memcg_oom) == ABSENT || offset!(memcg_oom_kill) == ABSENT {
            return None;
        }
        // SAFETY: `css` is the first member of its memory cgroup; any address goes.
        unsafe {
            Some((Probe::at(self.css, offset!(memcg_oom)), Probe::at(self.css, offset!(memcg_oom_kill))))
        }
    }

    /// Whether the kernel kills all of its processes together.
    #[inline(always)]
    pub(crate) fn dies_together(&self) -> bool {
        if offset!(memcg_oom_group) == ABSENT {
            return false;
        }
        // SAFETY: `css` is the first member of its memory cgroup; any address goes.
        unsafe { Probe::at::<u8>(self.css, offset!(memcg_oom_group)) != 0 }
    }

    /// The name of its directory; null where it cannot be found.
    #[inline(always)]
    pub(crate) fn name(&self) -> *const u8 {
        if offset!(kn_name) == ABSENT {
            return core::ptr::null();
        }
        // SAFETY: `css` is a css, and the types of the members.
        let name: usize = unsafe {
            let cgroup: usize = Probe::at(self.css, offset!(css_cgroup));
            let node: usize = Probe::at(cgroup as *const u8, offset!(cgroup_kn));
            Probe::at(node as *const u8, offset!(kn_name))
        };
        name as *const u8
    }

    /// The next one up, or nothing at the root.
    #[inline(always)]
    pub(crate) fn parent<M: Means>(&self) -> Option<Self> {
        // SAFETY: `css` is a css and `counter` a page counter.
        let (css, counter): (usize, usize) = unsafe {
            (M::Css::at(self.css, offset!(css_parent)), M::Counter::at(self.counter, offset!(counter_parent)))
        };
        if css == 0 || counter == 0 {
            return None;
        }
        Some(Self { css: css as *const u8, counter: counter as *const u8 })
    }
}

/// See [`Memcg::mark`].
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    /// The number of its css, which no other ever gets; 0 where it is not known.
    pub(crate) serial: u64,
    /// Whether its cgroup is not removed yet; what is removed still gives back, and must not be taken into maps
    /// that are cleaned when it goes.
    pub(crate) is_online: bool,
}

/// A css' flags and its number, behind them.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Side {
    flags: u32,
    low: u32,
    high: u32,
}

/// The usage that a page counter says, pages.
///
/// # Safety
/// `counter` is a pointer to one.
#[inline(always)]
pub(crate) unsafe fn usage_of<M: Means>(counter: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { M::Counter::at(counter, offset!(counter_usage)) }
}

/// The limit that a page counter has, pages.
///
/// # Safety
/// `counter` is a pointer to one.
#[inline(always)]
pub(crate) unsafe fn max_of<M: Means>(counter: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { M::Counter::at(counter, offset!(counter_max)) }
}

/// The page counter of the next one up; null above the root's.
///
/// # Safety
/// `counter` is a pointer to one, or null.
#[inline(always)]
pub(crate) unsafe fn counter_above<M: Means>(counter: *const u8) -> *const u8 {
    // SAFETY: the caller's promise; of null it reads 0.
    let above: usize = unsafe { M::Counter::at(counter, offset!(counter_parent)) };
    above as *const u8
}

/// Whether the page counter at this address counts the memory of a memory cgroup. Others are its
/// memory with swap, kernel memory and TCP buffers, and those of other controllers: what would be
/// the css then does not belong to the memory controller, as that of any task does.
#[inline(always)]
pub(crate) fn is_of_memory(counter: u64) -> bool {
    // SAFETY: any address goes; the helper gives the running task.
    unsafe {
        let controller: usize = Probe::at(css_of_counter(counter), offset!(css_ss));
        let css = css_of_task::<Probe>(bpf_get_current_task() as *const u8);
        controller != 0 && !css.is_null() && controller == Probe::at::<usize>(css, offset!(css_ss))
    }
}

/// The css of the memory cgroup whose counter of memory is at this address.
#[inline(always)]
fn css_of_counter(counter: u64) -> *const u8 {
    let memcg = counter.wrapping_sub(offset!(memcg_memory) as u64);
    memcg.wrapping_add(offset!(memcg_css) as u64) as *const u8
}

/// The css of the memory controller that a task belongs to.
///
/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
pub(crate) unsafe fn css_of_task<R: Read>(task: *const u8) -> *const u8 {
    // SAFETY: the caller's promise, and types of members.
    unsafe {
        let set: usize = R::at(task, offset!(task_cgroups));
        if set == 0 {
            return core::ptr::null();
        }
        let css: usize = R::at(set as *const u8, offset!(cset_memory));
        css as *const u8
    }
}

/// The id of the memory cgroup that a task belongs to; 0 while it has none.
///
/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
pub(crate) unsafe fn id_of_task<R: Read>(task: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { id_or_none::<R>(css_of_task::<R>(task)) }
}

/// The id of a css' cgroup; 0 of no css.
///
/// # Safety
/// `css` is a pointer to a `cgroup_subsys_state`, or null.
#[inline(always)]
pub(crate) unsafe fn id_or_none<R: Read>(css: *const u8) -> u64 {
    match css.is_null() {
        true => 0,
        // SAFETY: the caller's promise.
        false => unsafe { id_of_css::<R>(css) },
    }
}

/// The id of a css' cgroup.
///
/// # Safety
/// `css` is a pointer to a `cgroup_subsys_state`.
#[inline(always)]
pub(crate) unsafe fn id_of_css<R: Read>(css: *const u8) -> u64 {
    // SAFETY: the caller's promise, and the type of the member.
    unsafe {
        let cgroup: usize = R::at(css, offset!(css_cgroup));
        match cgroup {
            0 => 0,
            cgroup => id_of_cgroup::<R>(cgroup as *const u8),
        }
    }
}

/// The id of a cgroup.
///
/// # Safety
/// `cgroup` is a pointer to a `cgroup`.
#[inline(always)]
pub(crate) unsafe fn id_of_cgroup<R: Read>(cgroup: *const u8) -> u64 {
    // SAFETY: the caller's promise, and the type of the member.
    unsafe {
        let node: usize = R::at(cgroup, offset!(cgroup_kn));
        match node {
            0 => 0,
            node => R::at(node as *const u8, offset!(kn_id)),
        }
    }
}
