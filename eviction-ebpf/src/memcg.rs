//! Memory cgroups: their ids, their usage and limits, and the path up to the root.

use aya_ebpf::helpers::bpf_get_current_task;
use eviction_common::ABSENT;

use crate::{
    config::{is_online, offset},
    probe_read::{Probe, Read, ReadStrategy},
};

/// A memory cgroup on the path up. The css chain has the ids, and the page counter chain has usage and
/// limits. The programs walk both side by side, since neither pointer can be converted into the other while
/// the verifier tracks their types.
#[derive(Clone, Copy)]
pub(crate) struct Memcg {
    css: *const u8,
    /// Its page counter.
    pub(crate) counter: *const u8,
}

impl Memcg {
    /// Creates it from a pointer to a `mem_cgroup`.
    ///
    /// # Safety
    /// `memcg` is such a pointer.
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

    /// Creates it from a page counter that [`is_memory_counter`]. The address is passed twice: as the hook's
    /// pointer, of which the verifier may know the type, and as a plain number, since the verifier does not
    /// allow to step back from a typed pointer to the enclosing structure.
    ///
    /// # Safety
    /// Both are the address of such a page counter.
    #[inline(always)]
    pub(crate) unsafe fn of_counter(counter: *const u8, address: u64) -> Self {
        Self { css: css_of_counter(address), counter }
    }

    /// Returns the memory cgroup of a task; null if it has none. (With an `Option`, registers would stay
    /// unset that the verifier requires to be set.)
    ///
    /// # Safety
    /// `task` is a pointer to a `task_struct`.
    #[inline(always)]
    pub(crate) unsafe fn of_task(task: *const u8) -> Self {
        // SAFETY: as the caller promises; any address can be read.
        let css = unsafe { css_of_task::<Probe>(task) };
        // A css is the first member of its memory cgroup (the loader checks it).
        Self { css, counter: css.wrapping_add(offset!(memcg_memory) as usize) }
    }

    /// Whether there is no memory cgroup.
    #[inline(always)]
    pub(crate) fn is_null(&self) -> bool {
        self.css.is_null()
    }

    /// Returns its address, which identifies it while it exists.
    #[inline(always)]
    pub(crate) fn address(&self) -> u64 {
        self.css as u64
    }

    /// Returns its id.
    #[inline(always)]
    pub(crate) fn id<M: ReadStrategy>(&self) -> u64 {
        // SAFETY: `css` is a css.
        unsafe { id_of_css::<M::Css>(self.css) }
    }

    /// Returns its usage, in pages.
    #[inline(always)]
    pub(crate) fn usage<M: ReadStrategy>(&self) -> u64 {
        // SAFETY: `counter` is a page counter.
        unsafe { usage_of::<M>(self.counter) }
    }

    /// Returns its limit, in pages.
    #[inline(always)]
    pub(crate) fn max<M: ReadStrategy>(&self) -> u64 {
        // SAFETY: `counter` is a page counter.
        unsafe { max_of::<M>(self.counter) }
    }

    /// Returns its serial number and whether it is online.
    #[inline(always)]
    pub(crate) fn css_state<M: ReadStrategy>(&self) -> CssState {
        let (flags, serial) = (offset!(css_flags), offset!(css_serial));
        if flags == ABSENT || serial == ABSENT {
            return CssState { serial: 0, is_online: true };
        }
        // SAFETY: `css` is a css.
        unsafe {
            let (flags, serial) = if M::Css::COMBINES_READS && serial.wrapping_sub(flags) == 4 {
                let [flags, low, high]: [u32; 3] = M::Css::at(self.css, flags);
                (flags, u64::from(high) << 32 | u64::from(low))
            } else {
                (M::Css::at(self.css, flags), M::Css::at(self.css, serial))
            };
            CssState { serial, is_online: is_online(flags) }
        }
    }

    /// Returns how often it ran out of memory because of its own limit, and how many of its own processes
    /// were killed; `None` if the kernel does not count them.
    #[inline(always)]
    pub(crate) fn oom_events(&self) -> Option<(u64, u64)> {
        if offset!(memcg_oom) == ABSENT || offset!(memcg_oom_kill) == ABSENT {
            return None;
        }
        // SAFETY: `css` is the first member of its memory cgroup; any address can be read.
        unsafe {
            Some((Probe::at(self.css, offset!(memcg_oom)), Probe::at(self.css, offset!(memcg_oom_kill))))
        }
    }

    /// Whether the kernel kills all processes of the cgroup together (`memory.oom.group`).
    #[inline(always)]
    pub(crate) fn has_oom_group(&self) -> bool {
        if offset!(memcg_oom_group) == ABSENT {
            return false;
        }
        // SAFETY: `css` is the first member of its memory cgroup; any address can be read.
        unsafe { Probe::at::<u8>(self.css, offset!(memcg_oom_group)) != 0 }
    }

    /// Returns the name of its directory; null if it cannot be found.
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

    /// Returns its parent; `None` at the root.
    #[inline(always)]
    pub(crate) fn parent<M: ReadStrategy>(&self) -> Option<Self> {
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

/// The identity and state of a memory cgroup, see [`Memcg::css_state`].
#[derive(Clone, Copy)]
pub(crate) struct CssState {
    /// The serial number of its css, which is never reused; 0 if not known.
    pub(crate) serial: u64,
    /// Whether its cgroup is not removed yet. A removed cgroup still uncharges memory. It must not be added
    /// to maps whose entries are deleted at the removal.
    pub(crate) is_online: bool,
}

/// Returns the usage of a page counter, in pages.
///
/// # Safety
/// `counter` is a pointer to one.
#[inline(always)]
pub(crate) unsafe fn usage_of<M: ReadStrategy>(counter: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { M::Counter::at(counter, offset!(counter_usage)) }
}

/// Returns the limit of a page counter, in pages.
///
/// # Safety
/// `counter` is a pointer to one.
#[inline(always)]
pub(crate) unsafe fn max_of<M: ReadStrategy>(counter: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { M::Counter::at(counter, offset!(counter_max)) }
}

/// Returns the page counter of the parent; null for that of the root.
///
/// # Safety
/// `counter` is a pointer to one, or null.
#[inline(always)]
pub(crate) unsafe fn parent_counter<M: ReadStrategy>(counter: *const u8) -> *const u8 {
    // SAFETY: the caller's promise; a null pointer reads 0.
    let parent: usize = unsafe { M::Counter::at(counter, offset!(counter_parent)) };
    parent as *const u8
}

/// Whether the page counter at this address counts the memory of a memory cgroup. Other page counters count
/// memory+swap, kernel memory, TCP buffers, or belong to other controllers. For them, the address computed
/// for the css is not a css of the memory controller, whereas that of the running task is.
#[inline(always)]
pub(crate) fn is_memory_counter(counter: u64) -> bool {
    // SAFETY: any address can be read; the helper gives the running task.
    unsafe {
        let controller: usize = Probe::at(css_of_counter(counter), offset!(css_ss));
        let css = css_of_task::<Probe>(bpf_get_current_task() as *const u8);
        controller != 0 && !css.is_null() && controller == Probe::at::<usize>(css, offset!(css_ss))
    }
}

/// Returns the css of the memory cgroup whose memory page counter is at this address.
#[inline(always)]
fn css_of_counter(counter: u64) -> *const u8 {
    let memcg = counter.wrapping_sub(offset!(memcg_memory) as u64);
    memcg.wrapping_add(offset!(memcg_css) as u64) as *const u8
}

/// Returns the memory controller's css of a task.
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

/// Returns the id of a task's memory cgroup; 0 if it has none.
///
/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
pub(crate) unsafe fn id_of_task<R: Read>(task: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { id_or_none::<R>(css_of_task::<R>(task)) }
}

/// Returns the id of a css' cgroup; 0 if `css` is null.
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

/// Returns the id of a css' cgroup.
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

/// Returns the id of a cgroup.
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
